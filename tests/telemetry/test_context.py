"""W3C trace context in: from an argument, the active span, the environment; and never touched on the way."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from runtime.generate import decode, speculate
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.context import Caller, find_caller, parse_traceparent, recall, remember
from telemetry.errors import UsageError
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord, RoundRecord
from telemetry.spans import build_spans
from tests.conftest import run_python
from tests.runtime.scripted import always, counting, rows

T, S = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{T}-{S}-01"
OTHER = f"00-{'b' * 32}-{'c' * 16}-00"


@pytest.fixture(autouse=True)
def _no_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACEPARENT", raising=False)


def _decode(recorder: Recorder, **options: Any) -> Any:
    return decode(ScriptedTarget(counting(20), vocab_size=20), [1, 2], max_tokens=3, recorder=recorder, **options)


def _active(trace_id: str = T, span_id: str = S, flags: int = 1) -> Any:
    context = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(flags))
    return trace.use_span(NonRecordingSpan(context))


def _recorded(recorder: Recorder) -> list[tuple[str | None, str | None, bool | None]]:
    return [(each.trace_id, each.parent_span_id, each.sampled) for each in rows(recorder.records, GenerationRecord)]


@pytest.mark.parametrize(
    ("text", "caller"),
    [
        (PARENT, Caller(T, S, True)),
        (f"00-{T}-{S}-00", Caller(T, S, False)),
        (f"00-{T}-{S}-03", Caller(T, S, True)),
        (f"01-{T}-{S}-01", Caller(T, S, True)),
        (f"01-{T}-{S}-01-more", Caller(T, S, True)),
        (f"00-{T}-{S}-01-more", None),
        (f"ff-{T}-{S}-01", None),
        (f"00-{'0' * 32}-{S}-01", None),
        (f"00-{T}-{'0' * 16}-01", None),
        (f"00-{T.upper()}-{S}-01", None),
        (f"00-{T}-{S}", None),
        ("", None),
    ],
)
def test_traceparent(text: str, caller: Caller | None) -> None:
    assert parse_traceparent(text) == caller
    if caller is not None:
        assert parse_traceparent(caller.traceparent) == caller


def test_an_argument_comes_before_the_active_span_and_that_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_caller() is None
    monkeypatch.setenv("TRACEPARENT", OTHER)
    assert find_caller() == Caller("b" * 32, "c" * 16, False)
    with _active():
        assert find_caller() == Caller(T, S, True)
        assert find_caller(OTHER) == Caller("b" * 32, "c" * 16, False)


def test_an_argument_that_is_none_is_refused_by_the_call() -> None:
    with pytest.raises(UsageError, match="traceparent is 'nonsense'; it must be 00-TRACE-SPAN-01"):
        _decode(Recorder(), traceparent="nonsense")


def test_an_environment_that_is_none_is_ignored_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACEPARENT", "nonsense of this test")
    assert (find_caller(), find_caller()) == (None, None)
    assert capsys.readouterr().err.count("context.traceparent_ignored") == 1


def test_the_context_is_that_of_the_call_and_is_recorded_at_the_start() -> None:
    recorder = Recorder()
    with _active(flags=0):
        generation = _decode(recorder)
    generation.drain()
    assert _recorded(recorder) == [(T, S, False)]


@pytest.mark.parametrize("rank", [None, 1])
@pytest.mark.parametrize("given", [None, PARENT, OTHER])
def test_a_generations_own_context_is_its_root_spans(given: str | None, rank: int | None) -> None:
    recorder = Recorder(rank=rank)
    generation = _decode(recorder, traceparent=given)
    before = generation.traceparent
    generation.drain()
    root = next(build_spans(recorder.records))
    assert parse_traceparent(before) == Caller(root.trace_id, root.span_id, root.sampled)
    assert generation.traceparent == before


def test_of_many_generations_the_earliest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telemetry.context.N_REMEMBERED", 2)
    monkeypatch.setattr("telemetry.context._callers", OrderedDict())
    callers = {name: Caller(T, name * 16, True) for name in "abc"}
    for name, caller in callers.items():
        remember(name, caller)
    with _active():
        assert [recall(name) for name in "abc"] == [Caller(T, S, True), callers["b"], callers["c"]]


@pytest.mark.parametrize("sampled", ["00", "01"])
def test_sampling_touches_no_row(sampled: str) -> None:
    recorder = Recorder()
    _decode(recorder, traceparent=f"00-{T}-{S}-{sampled}").drain()
    assert (_recorded(recorder), len(rows(recorder.records, RoundRecord))) == ([(T, S, sampled == "01")], 3)


def test_the_commands_parent_comes_from_the_environment() -> None:
    code = (
        "from telemetry.context import find_caller; import sys; print(find_caller()); "
        "print([m for m in sys.modules if 'opentelemetry' in m])"
    )
    child = run_python(code, env={"TRACEPARENT": PARENT})
    assert child.stdout == f"{Caller(T, S, True)}\n[]\n"


def _speculate(recorder: Recorder) -> Any:
    drafter = ScriptedDrafter(always([13, 19]))
    target = ScriptedTarget(counting(20), vocab_size=20)
    return speculate(target, drafter, [1, 2], draft_length=2, max_tokens=8, recorder=recorder)


@pytest.mark.parametrize("start", [_decode, _speculate])
def test_the_callers_span_stays_the_current_one_whatever_becomes_of_the_generation(start: Any) -> None:
    with _active() as span:
        kept: list[Iterator[Any]] = []
        for _ in start(Recorder()):
            assert trace.get_current_span() is span
        for _ in start(Recorder()):
            break
        abandoned = start(Recorder())
        next(abandoned)
        del abandoned
        kept.append(start(Recorder()))
        next(kept[0])
        assert trace.get_current_span() is span
    outside = trace.get_current_span()
    next(kept[0])
    kept[0].close()  # type: ignore[attr-defined]
    assert trace.get_current_span() is outside
    assert not outside.get_span_context().is_valid


def test_interleaved_generations_without_a_caller_are_two_traces() -> None:
    recorder = Recorder()
    for _ in zip(_decode(recorder), _decode(recorder), strict=True):
        pass
    roots = [span for span in build_spans(recorder.records) if span.parent_id is None]
    assert len({span.trace_id for span in roots}) == 2


def test_seeding_random_twice_gives_different_traces() -> None:
    recorder = Recorder()
    for _ in range(2):
        random.seed(0)
        _decode(recorder).drain()
    traces = {span.trace_id for span in build_spans(recorder.records)}
    assert len(traces) == 2
