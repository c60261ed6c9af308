"""Where a test's spans come from: records, OpenTelemetry's live spans, a store, an OTLP-JSON file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from telemetry.errors import UsageError
from telemetry.records import Record
from telemetry.span_data import HAS_IS_REMOTE, IS_REMOTE, OTHER_ERROR, SAMPLED, SpanData, SpanLink
from telemetry.span_names import ERROR_TYPE
from telemetry.testing.conditions import plain
from telemetry.testing.tree import Span

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext


def convert(data: SpanData) -> Span:
    """The same span for a test, sequences among its attributes as tuples."""
    return Span(**{**vars(data), "attributes": plain(data.attributes)})


def convert_records(records: Iterable[Record]) -> Iterator[Span]:
    """The spans of what was recorded."""
    from telemetry.spans import build_spans

    return map(convert, build_spans(records))


def convert_live(spans: Iterable[ReadableSpan]) -> Iterator[Span]:
    """OpenTelemetry's spans. TypeError: one has no context or start, as only spans of the SDK have."""
    return (_read_live(span) for span in spans)


def read_store(store: Path, run_id: str | None) -> Iterator[Span]:
    """The spans of a run in a store, or of everything in it; generations that are still going on are left out."""
    from telemetry.store import connect

    with connect(store) as connected:
        yield from read_tables(connected.con, run_id)


def read_tables(con: DuckDBPyConnection, run_id: str | None = None) -> Iterator[Span]:
    """The same on a connection to a store's tables."""
    from telemetry.spans import spans_of
    from telemetry.stored import Stored

    for recorded in Stored(con, run_id).read():
        yield from map(convert, spans_of(recorded))


def read_otlp_json(path: Path) -> Iterator[Span]:
    """The spans of an OTLP-JSON file."""
    from telemetry.otlp_json import read_otlp_json

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read spans from {path}: {error}; name an OTLP-JSON file") from error
    return map(convert, read_otlp_json(text))


def _read_live(span: Any) -> Span:
    context: SpanContext | None = getattr(span, "context", None)
    if context is None or span.start_time is None:
        raise TypeError(f"{type(span).__name__} cannot be read: only recorded spans of OpenTelemetry's SDK can")
    failed = span.status.status_code.name == "ERROR"
    attributes = plain(dict(span.attributes or {}))
    return Span(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=None if span.parent is None else f"{span.parent.span_id:016x}",
        name=span.name,
        start_unix_ns=span.start_time,
        end_unix_ns=span.end_time,
        attributes=attributes,
        links=tuple(
            SpanLink(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links or ()
        ),
        kind=span.kind.name.lower(),
        status=span.status.status_code.name.lower(),
        error_type=str(attributes.get(ERROR_TYPE, OTHER_ERROR)) if failed else None,
        flags=(context.trace_flags & SAMPLED) | HAS_IS_REMOTE | (IS_REMOTE if _is_remote(span.parent) else 0),
    )


def _is_remote(parent: SpanContext | None) -> bool:
    return parent is not None and parent.is_remote
