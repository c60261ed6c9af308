"""OTLP-JSON: span files as OpenTelemetry's tools write them, read into `SpanData`.

A file is one document, or one document a line (if empty, none); spans of any instrumentation are read. In the JSON form
ids are hexadecimal, enumerations numbers, and 64-bit integers strings; readers are to accept numbers too.
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
_INTEGER = re.compile(r"-?[0-9]+")
_BITS = 64
_UNREADABLE = (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError)
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
    if not text.strip():  # an export that had nothing to write
        return
    try:
        yield "document", json.loads(text)
        return
    except RecursionError as error:
        refuse(f"no JSON: {error}")
        return
    except ValueError as error:
        # Not `splitlines`: JSON may have the line ends of Unicode in its strings.
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) < 2 or not lines[0][1].rstrip().endswith("}"):
            refuse(f"no JSON: {error}")
            return
    for number, line in lines:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
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
    attributes = {_read_text(each["key"]): _read_value(each["value"]) for each in item.get("attributes", ())}
    code = STATUSES[_read_natural(status.get("code", 0))]
    start, end = _read_natural(item["startTimeUnixNano"]), _read_natural(item.get("endTimeUnixNano", 0))
    return SpanData(
        trace_id=_read_id(item["traceId"], _TRACE_ID),
        span_id=_read_id(item["spanId"], _SPAN_ID),
        parent_id=_read_id(item["parentSpanId"], _SPAN_ID) if item.get("parentSpanId") else None,
        name=_read_text(item["name"]),
        start_unix_ns=start,
        end_unix_ns=end or None,
        attributes=attributes,
        links=tuple(
            SpanLink(_read_id(link["traceId"], _TRACE_ID), _read_id(link["spanId"], _SPAN_ID))
            for link in item.get("links", ())
        ),
        kind=KINDS[_read_natural(item.get("kind", 0))],  # type: ignore[arg-type]
        status=code,  # type: ignore[arg-type]
        error_type=str(attributes.get(ERROR_TYPE, OTHER_ERROR)) if code == "error" else None,
        flags=_read_natural(item.get("flags", 0)),
    )


def _read_id(text: str, shape: re.Pattern[str]) -> str:
    if not shape.fullmatch(text) or not int(text, 16):
        raise ValueError(f"{text!r} is no id")
    return text.lower()


def _read_text(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no string")
    text.encode()  # JSON can hold halves of characters, which nothing else can
    return text


def _read_integer(value: Any) -> int:
    """An integer of OTLP's: a number or digits, of 64 bits."""
    if isinstance(value, bool) or not (
        isinstance(value, int)
        or (isinstance(value, float) and value.is_integer())
        or (isinstance(value, str) and _INTEGER.fullmatch(value))
    ):
        raise ValueError(f"{value!r} is no integer")
    number = int(value)
    if number.bit_length() > _BITS:
        raise ValueError(f"{number} has more than {_BITS} bits")
    return number


def _read_natural(value: Any) -> int:
    """A moment, a number of an enumeration, flags."""
    number = _read_integer(value)
    if number < 0:
        raise ValueError(f"{number} is below 0")
    return number


def _read_value(value: dict[str, Any]) -> Any:
    """A value of the kinds that attributes have."""
    if value == {}:
        return None
    [(kind, inner)] = value.items()
    if kind == "intValue":
        return _read_integer(inner)
    if kind == "doubleValue" and not isinstance(inner, bool):
        return float(inner)
    if kind == "arrayValue":
        return [_read_value(each) for each in inner.get("values", ())]
    if kind == "kvlistValue":
        return {_read_text(each["key"]): _read_value(each["value"]) for each in inner.get("values", ())}
    if kind in ("stringValue", "bytesValue"):
        return _read_text(inner)
    if kind == "boolValue" and isinstance(inner, bool):
        return inner
    raise ValueError(f"{kind!r} is no kind of value, or {inner!r} none of that kind")
