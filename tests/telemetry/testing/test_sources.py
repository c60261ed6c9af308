"""The same trace, whatever it is read from: records, live spans, a store, an OTLP-JSON file; also a stranger's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from telemetry.errors import UsageError
from telemetry.otlp import write_otlp_json
from telemetry.replay import Replay
from telemetry.spans import build_spans
from telemetry.testing import Spans, TraceAssertionError, assert_rounds_consistent, assert_sinks_agree
from tests.telemetry.stores import header, write_lines
from tests.telemetry.testing.trees import record


def content(spans: Spans) -> list[dict[str, Any]]:
    """All that the spans say but their flags: who makes a span says whether its parent is near."""
    return [vars(span) | {"flags": 0, "attributes": dict(span.attributes)} for span in spans]


def test_one_trace_from_everywhere(tmp_path: Path) -> None:
    records = record().records
    expected = Spans.from_records(records)
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    replay = Replay(provider)
    for each in records:
        replay.see(each)
    write_lines(tmp_path, [header(), *records])
    file = tmp_path / "spans.otlp.json"
    file.write_text(write_otlp_json(list(build_spans(records))), encoding="utf-8")
    for found in (
        Spans.from_live(exporter.get_finished_spans()),
        Spans.from_store(tmp_path),
        Spans.from_otlp_json(file),
    ):
        assert content(found) == content(expected)
        assert_rounds_consistent(found)
        assert_sinks_agree(records=records, spans=found, store=tmp_path)
        found.assert_all_ended()
    assert len(Spans.from_store(tmp_path, run_id="another")) == 0


def test_live_spans_of_others() -> None:
    provider = TracerProvider()
    tracer = provider.get_tracer("app")
    caller = set_span_in_context(
        NonRecordingSpan(SpanContext(7, 8, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)))
    )
    request = tracer.start_span("request", caller, kind=SpanKind.SERVER, attributes={"tags": ["a", "b"]})
    query = tracer.start_span("query", set_span_in_context(request), attributes={"error.type": "Timeout"})
    query.set_status(Status(StatusCode.ERROR))
    query.end()
    request.end()
    still_open = tracer.start_span("late", set_span_in_context(request))
    spans = Spans.from_live([request, query, still_open])
    spans.find("request", {"tags": ["a", "b"]}).assert_exactly(1).assert_children("query", "late")
    spans.find("request").assert_all_ended()
    assert [(span.name, span.kind, span.status, span.error_type) for span in spans] == [
        ("request", "server", "unset", None),
        ("query", "internal", "error", "Timeout"),
        ("late", "internal", "unset", None),
    ]
    assert (spans[0].trace_id, spans[0].parent_id) == (f"{7:032x}", f"{8:016x}")
    with pytest.raises(TraceAssertionError, match=r"nearest miss: 'late' \(\w+\): has not ended"):
        spans.assert_all_ended()


def test_a_parent_that_an_exporter_never_got_is_missed() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("app")
    leaked = tracer.start_span("leaked")
    tracer.start_span("query", set_span_in_context(leaked)).end()
    with pytest.raises(TraceAssertionError, match="is not there: it never ended, or was dropped"):
        Spans.from_live(exporter.get_finished_spans()).assert_all_ended()


def test_spans_that_are_not_recorded_are_refused() -> None:
    with pytest.raises(TypeError, match="NonRecordingSpan cannot be read: only recorded spans"):
        Spans.from_live([NonRecordingSpan(SpanContext(7, 8, is_remote=False))])


def test_an_otlp_json_file_of_others(tmp_path: Path) -> None:
    """A document a line, as exporters to files write them; one span has not ended."""
    file = tmp_path / "spans.jsonl"
    first = {"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "2", "name": "a", "startTimeUnixNano": "5", "kind": 2}
    first |= {"endTimeUnixNano": "9", "attributes": [{"key": "n", "value": {"intValue": "3"}}]}
    second = {"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "3", "name": "b", "startTimeUnixNano": "6"}
    second |= {"parentSpanId": "0" * 15 + "2"}
    documents = [{"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]} for span in (first, second)]
    file.write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
    spans = Spans.from_otlp_json(file)
    spans.find("a", {"n": 3}).assert_children("b").assert_durations_within(4, 4)
    spans.assert_one_trace()
    with pytest.raises(TraceAssertionError, match=r"'b' \(0+3\): has not ended"):
        spans.assert_all_ended()


def test_files_that_are_no_spans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read spans from .*none\.json"):
        Spans.from_otlp_json(tmp_path / "none.json")
    file = tmp_path / "some.json"
    file.write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="not OTLP-JSON"):
        Spans.from_otlp_json(file)
    with pytest.raises(UsageError, match="no store at"):
        Spans.from_store(tmp_path / "none")
