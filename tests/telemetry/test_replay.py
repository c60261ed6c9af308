"""`telemetry.instrument`: our spans on a user's own provider, as the same tree with the same ids."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from runtime.generate import decode, speculate
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry import instrument
from telemetry.recorder import Recorder
from telemetry.records import GenerationEnd
from telemetry.replay import Replay
from telemetry.spans import SpanData, SpanLink, build_spans
from tests.runtime.scripted import always, counting
from tests.telemetry.stores import whole_generation
from tests.telemetry.traces import IDS, every_kind

TARGET = ScriptedTarget(counting(20), vocab_size=20)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Where a user's provider exports to."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    """A provider as a user sets one up."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def _read(span: ReadableSpan) -> SpanData:
    assert span.context is not None
    return SpanData(
        trace_id=f"{span.context.trace_id:032x}",
        span_id=f"{span.context.span_id:016x}",
        parent_id=None if span.parent is None else f"{span.parent.span_id:016x}",
        name=span.name,
        start_unix_ns=span.start_time or 0,
        end_unix_ns=span.end_time,
        attributes={
            key: list(value) if isinstance(value, tuple) else value for key, value in (span.attributes or {}).items()
        },
        links=tuple(SpanLink(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links),
        status="error" if span.status.status_code is trace.StatusCode.ERROR else "unset",
        error_type=(span.attributes or {}).get("error.type"),  # type: ignore[arg-type]
        flags=0x301 if span.parent is not None and span.parent.is_remote else 0x101,
    )


def _key(span: SpanData) -> str:
    return span.span_id


def test_a_provider_gets_the_spans_as_they_are(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    spans = list(build_spans(every_kind()))
    Replay(provider).replay(spans)
    assert sorted(map(_read, exporter.get_finished_spans()), key=_key) == sorted(spans, key=_key)
    assert {
        span.instrumentation_scope.schema_url for span in exporter.get_finished_spans() if span.instrumentation_scope
    } == {"https://opentelemetry.io/schemas/1.41.0"}


def test_generations_are_replayed_when_they_are_over(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    end = instrument(provider)
    try:
        recorder = Recorder()
        with provider.get_tracer("mine").start_as_current_span("request") as request:
            generation = speculate(
                TARGET, ScriptedDrafter(always([13, 19])), [1], draft_length=2, max_tokens=4, recorder=recorder
            )
            next(generation)
            assert exporter.get_finished_spans() == ()
            generation.drain()
            assert trace.get_current_span() is request
        decode(TARGET, [1], max_tokens=1).drain()
    finally:
        end()
    decode(TARGET, [1], max_tokens=1).drain()
    spans = [_read(span) for span in exporter.get_finished_spans() if span.name != "request"]
    assert len({span.trace_id for span in spans}) == 2
    mine = [span for span in spans if span.trace_id == f"{request.get_span_context().trace_id:032x}"]
    expected = list(build_spans(recorder.records))
    assert {span.span_id: span for span in mine} == {span.span_id: span for span in expected}


@pytest.mark.parametrize("way", ["next", "close", "forgotten"])
def test_the_last_round_is_handed_out_before_the_replay(
    provider: TracerProvider, exporter: InMemorySpanExporter, way: str
) -> None:
    """Else a processor of the application that takes its time would hold it."""
    end = instrument(provider)
    try:
        recorder = Recorder()
        generation = decode(TARGET, [1], max_tokens=3, recorder=recorder)
        closed = [next(generation) for _ in range(3)]
        assert (sum(each.committed for each in closed), generation.finish_reason) == (3, "length")
        assert isinstance(recorder.records[-1], GenerationEnd)
        assert exporter.get_finished_spans() == ()
        if way == "next":
            assert next(generation, None) is None
        if way == "close":
            generation.close()
        del generation
    finally:
        end()
    spans = list(build_spans(recorder.records))
    assert sorted(map(_read, exporter.get_finished_spans()), key=_key) == sorted(spans, key=_key)


def test_generations_that_end_in_several_threads_keep_their_ids(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Two threads meet after each has said which ids the next span has, and before either has taken them."""
    meeting = threading.Barrier(2, timeout=60)
    replay = Replay(provider)
    start_span = replay._tracer.start_span

    def meet(*arguments: Any, **options: Any) -> Any:
        meeting.wait()
        return start_span(*arguments, **options)

    replay._tracer.start_span = meet  # type: ignore[method-assign]
    kinds = [list(build_spans(whole_generation(id))) for id in IDS[:2]]
    threads = [threading.Thread(target=replay.replay, args=(spans,)) for spans in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = sorted(map(_read, exporter.get_finished_spans()), key=_key)
    assert found == sorted((span for spans in kinds for span in spans), key=_key)


def test_a_callers_decision_not_to_sample_holds(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    end = instrument(provider)
    recorder = Recorder()
    decode(TARGET, [1], max_tokens=2, recorder=recorder, traceparent=f"00-{'a' * 32}-{'b' * 16}-00").drain()
    end()
    assert (exporter.get_finished_spans(), len(recorder.records)) == ((), 4)


def test_the_providers_sampler_decides(exporter: InMemorySpanExporter) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    Replay(provider).replay(build_spans(every_kind()))
    assert exporter.get_finished_spans() == ()


def test_a_provider_that_fails_fails_no_generation(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise OSError("no")

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Failing())
    end = instrument(provider)
    tokens = decode(TARGET, [1], max_tokens=2).drain().tokens
    end()
    assert len(tokens) == 2
    assert "instrument.failed" in capsys.readouterr().err


def test_a_provider_without_an_id_generator_gives_its_own_ids() -> None:
    Replay(trace.NoOpTracerProvider()).replay(build_spans(every_kind()))
