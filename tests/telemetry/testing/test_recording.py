"""What runs in a test is seen, by whatever recorder, with ids and times that are the same each time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider

import telemetry
from runtime import decode
from runtime.testing import ScriptedTarget
from telemetry.recorder import MemorySink, Recorder
from telemetry.records import GenerationEnd, GenerationRecord
from telemetry.testing import FakeClock, Spans, TraceAssertionError, TraceRecording, assert_rounds_consistent
from tests.runtime.scripted import counting
from tests.telemetry.testing.trees import record

TARGET = ScriptedTarget(counting(20), vocab_size=20)


def generate(**options: Any) -> str:
    """The id of a generation of two tokens."""
    return decode(TARGET, [1, 2], max_tokens=2, **options).drain().id


def test_the_same_work_gives_the_same_records() -> None:
    """All but what was measured of the machine."""
    first, second = ([msgspec.to_builtins(each) for each in record().records] for _ in range(2))
    for each in (*first, *second):
        each.pop("peak_memory_bytes", None)
    assert first == second
    assert {each["generation_id"] for each in first} == {f"{1:032x}", f"{2:032x}"}


def test_generations_are_seen_with_and_without_a_recorder() -> None:
    sink, before = MemorySink(), Recorder()
    outside = generate()
    with TraceRecording() as recording:
        ids = [generate(), generate(recorder=Recorder(sink)), generate(recorder=Recorder().label(arm="mine"))]
        generate(recorder=before)
    generate()
    starts = [each for each in recording.records if isinstance(each, GenerationRecord)]
    assert [each.generation_id for each in starts] == ids == [f"{n:032x}" for n in (1, 2, 3)]
    assert [each.arm for each in starts] == ["ordinary", "ordinary", "mine"]
    assert {each.generation_id for each in sink.records} == {ids[1]}
    assert outside != generate()


def test_a_generation_that_was_left_has_not_ended() -> None:
    with TraceRecording() as recording:
        generation = decode(TARGET, [1, 2], max_tokens=2)
        next(generation)
        assert_rounds_consistent(recording.spans)
        with pytest.raises(TraceAssertionError, match=r"'text_completion scripted' .*: has not ended"):
            recording.spans.assert_all_ended()
        recording.spans.find("round").assert_all_ended()
        generation.drain()
        recording.spans.assert_all_ended()


def test_an_end_is_seen_when_it_is_written() -> None:
    """Though who replays it is shown it late."""
    with TraceRecording() as recording:
        generation = decode(TARGET, [1], max_tokens=2)
        assert [next(generation).committed for _ in range(2)] == [1, 1]
        assert isinstance(recording.records[-1], GenerationEnd)


def test_without_a_clock_the_time_is_the_machine_s() -> None:
    with TraceRecording() as recording:
        generate()
    [start] = recording.spans.roots()
    assert start.start_unix_ns > 1_700_000_000_000_000_000


def test_a_recorder_s_own_clock_is_left_to_it() -> None:
    with TraceRecording(FakeClock(wall_ns=1_000_000)) as recording:
        generate(recorder=Recorder(clock=FakeClock(wall_ns=5)))
        generate()
    assert [root.start_unix_ns for root in recording.spans.roots()] == [5, 1_000_000]


def test_an_application_s_spans_and_ours_are_one_trace() -> None:
    provider = TracerProvider()
    tracer = provider.get_tracer("app")
    with TraceRecording() as recording:
        recording.watch(provider)
        with tracer.start_as_current_span("request"):
            generate()
            spans = recording.spans
            assert spans.find("request")[0].end_unix_ns is None
    recording.spans.assert_one_trace().assert_all_ended()
    recording.spans.find("request").assert_children("text_completion scripted").assert_nested()
    tracer.start_span("afterwards").end()
    assert len(recording.spans.find("afterwards")) == 0


def test_spans_that_are_replayed_to_a_watched_provider_are_there_once() -> None:
    provider = TracerProvider()
    with TraceRecording() as recording:
        recording.watch(provider)
        end = telemetry.instrument(provider)
        generate()
        end()
        recording.spans.find("text_completion *").assert_exactly(1).assert_children("prefill", "round", ...)
        recording.spans.assert_one_trace()
    assert_rounds_consistent(recording.spans)
    assert len(recording.spans) == len(Spans.from_records(recording.records))
