"""OTLP-JSON: span files as OpenTelemetry's tools write them, read into `SpanData`.

A file is one document, or one document a line; spans of any instrumentation are read. In the JSON form ids are
hexadecimal, enumerations numbers, and 64-bit integers strings; readers are to accept numbers too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from telemetry.errors import UsageError
from telemetry.span_data import OTHER_ERROR, SpanData, SpanLink
from telemetry.span_names import ERROR_TYPE

KINDS = ("internal", "internal", "server", "client", "producer", "consumer")
"""By OTLP's number; 0 is unspecified, which is to be taken for internal."""

STATUSES = ("unset", "ok", "error")
_TRACE_ID = re.compile(r"[0-9a-fA-F]{32}")
_SPAN_ID = re.compile(r"[0-9a-fA-F]{16}")
_UNREADABLE = (KeyError, TypeError, ValueError, IndexError, AttributeError)
Refuse = Callable[[str], None]


def read_otlp_json(text: str, refuse: Refuse | None = None) -> Iterator[SpanData]:
    """The spans of a document, or of one document a line.

    What is malformed is told to `refuse`, with the reason, and left out; without it the first raises UsageError.
    """
    refuse = refuse or _raise
    for place, document in _read_documents(text, refuse):
        for item in _walk(document, place, refuse):
            try:
                span = _read_span(item)
            except _UNREADABLE as error:
                refuse(f"{place}: a malformed span: {_explain(error)}")
            else:
                yield span


def _raise(reason: str) -> None:
    raise UsageError(f"not OTLP-JSON: {reason}")


def _explain(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)


def _read_documents(text: str, refuse: Refuse) -> Iterator[tuple[str, Any]]:
    try:
        yield "document", json.loads(text)
        return
    except ValueError as error:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) < 2 or not lines[0][1].rstrip().endswith("}"):
            refuse(f"no JSON: {error}")
            return
    for number, line in lines:
        try:
            document = json.loads(line)
        except ValueError as error:
            refuse(f"line {number}: no JSON: {error}")
        else:
            yield f"line {number}", document


def _walk(document: Any, place: str, refuse: Refuse) -> Iterator[Any]:
    try:
        resources = document["resourceSpans"]
        found = [span for each in resources for scope in each.get("scopeSpans", ()) for span in scope.get("spans", ())]
    except _UNREADABLE as error:
        refuse(f"{place}: no resourceSpans of OTLP: {_explain(error)}")
        return
    yield from found


def _read_span(item: dict[str, Any]) -> SpanData:
    status = item.get("status") or {}
    attributes = {each["key"]: _read_value(each["value"]) for each in item.get("attributes", ())}
    code = STATUSES[int(status.get("code", 0))]
    start, end = int(item["startTimeUnixNano"]), int(item.get("endTimeUnixNano", 0))
    return SpanData(
        trace_id=_read_id(item["traceId"], _TRACE_ID),
        span_id=_read_id(item["spanId"], _SPAN_ID),
        parent_id=_read_id(item["parentSpanId"], _SPAN_ID) if item.get("parentSpanId") else None,
        name=str(item["name"]),
        start_unix_ns=start,
        end_unix_ns=end or None,
        attributes=attributes,
        links=tuple(
            SpanLink(_read_id(link["traceId"], _TRACE_ID), _read_id(link["spanId"], _SPAN_ID))
            for link in item.get("links", ())
        ),
        kind=KINDS[int(item.get("kind", 0))],  # type: ignore[arg-type]
        status=code,  # type: ignore[arg-type]
        error_type=str(attributes.get(ERROR_TYPE, OTHER_ERROR)) if code == "error" else None,
        flags=int(item.get("flags", 0)),
    )


def _read_id(text: str, shape: re.Pattern[str]) -> str:
    if not shape.fullmatch(text) or not int(text, 16):
        raise ValueError(f"{text!r} is no id")
    return text.lower()


def _read_value(value: dict[str, Any]) -> Any:
    """A value of the kinds that attributes have."""
    if not value:
        return None
    [(kind, inner)] = value.items()
    if kind == "intValue":
        return int(inner)
    if kind == "doubleValue":
        return float(inner)
    if kind == "arrayValue":
        return [_read_value(each) for each in inner.get("values", ())]
    if kind == "kvlistValue":
        return {each["key"]: _read_value(each["value"]) for each in inner.get("values", ())}
    if kind in ("stringValue", "boolValue", "bytesValue"):
        return inner
    raise ValueError(f"{kind!r} is no kind of value")
