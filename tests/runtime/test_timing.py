"""Where time goes: scripted costs on a fake clock land in the stage that spent them, and everything adds up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from runtime.generate import decode, speculate
from runtime.generation import Generation
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.recorder import Recorder
from telemetry.records import GenerationEnd, GenerationRecord, RoundRecord
from telemetry.testing import FakeClock
from tests.runtime.scripted import KeepingDrafter, counting, guessing, rows

MS = 1_000_000
SCRIPT = counting(90)


def _speculate(
    clock: FakeClock, *, timing: Any = "fused", drafter: Any = None, **target: Any
) -> tuple[Generation, Recorder]:
    recorder = Recorder(clock=clock)
    if drafter is None:
        drafter = ScriptedDrafter(guessing(SCRIPT, 90, percent=60), cost_ns=20 * MS, clock=clock)
    options = {"cost_ns": lambda width, context: 5 * MS + width * MS, "clock": clock, **target}
    generation = speculate(
        ScriptedTarget(SCRIPT, vocab_size=90, **options),
        drafter,
        [0, 1, 2, 3],
        draft_length=3,
        timing=timing,
        max_tokens=20,
        recorder=recorder,
    )
    return generation, recorder


@pytest.mark.parametrize("timing", ["fused", "attributed"])
def test_what_a_stage_spends_lands_in_that_stage(timing: str) -> None:
    """sglang#16219, omlx#1311: 20 ms injected into the drafter land in `draft`; a forward's cost in `verify`."""
    generation, recorder = _speculate(FakeClock(), timing=timing)
    rounds = list(generation)
    for entry in rounds:
        assert {name: ns for name, (ns, _) in entry.stages.items()} == {
            "draft": 20 * MS,
            "verify": (5 + entry.width) * MS,
            "synchronize": 0,
            "trim": 0,
            "rewind": 0,
        }
        assert entry.t_round_ns == (25 + entry.width) * MS
    assert [record.draft_ns for record in rows(recorder.records, RoundRecord)] == [20 * MS] * len(rounds)


def test_what_a_rewind_spends_lands_in_rewind() -> None:
    clock = FakeClock()

    class Slow(KeepingDrafter):
        def commit(self, tokens: Sequence[int]) -> None:
            clock.advance(2 * MS)

        def rewind(self, length: int) -> None:
            clock.advance(3 * MS)
            super().rewind(length)

    generation, _ = _speculate(clock, drafter=Slow(lambda history, m: [0] * m))
    entry = next(generation)
    assert (entry.stages["rewind"], entry.rewind_way) == ((5 * MS, "host"), "trim")
    assert entry.stages["draft"] == (0, "host")


def test_every_look_at_the_clock_is_accounted_for() -> None:
    """With a clock that ticks at every look, stages do not overlap and the rest of the decode time is unaccounted."""
    clock = FakeClock(tick_ns=7)
    generation, recorder = _speculate(clock)
    rounds = []
    for entry in generation:
        rounds.append(entry)
        clock.advance(100 * MS)
    [end] = rows(recorder.records, GenerationEnd)
    records = rows(recorder.records, RoundRecord)
    for entry, record in zip(rounds, records, strict=True):
        assert sum(ns for ns, _ in entry.stages.values()) == entry.t_round_ns - 7
        assert record.start_ns >= end.prefill_ns
    for before, after in pairwise(records):
        assert after.start_ns >= before.start_ns + before.t_round_ns
    assert end.decode_ns == sum(entry.t_round_ns for entry in rounds) + end.unaccounted_ns
    assert records[-1].start_ns + records[-1].t_round_ns == end.prefill_ns + end.decode_ns
    assert end.consumer_ns == (len(rounds) - 1) * (100 * MS + 7)
    assert end.unaccounted_ns - end.consumer_ns == 7 * len(rounds)


def test_the_consumers_time_is_not_in_a_round() -> None:
    clock = FakeClock()
    generation, recorder = _speculate(clock)
    rounds = []
    for entry in generation:
        rounds.append(entry)
        clock.advance(100 * MS)
    [end] = rows(recorder.records, GenerationEnd)
    assert [entry.t_round_ns for entry in rounds] == [(25 + entry.width) * MS for entry in rounds]
    assert end.consumer_ns == end.unaccounted_ns == 100 * MS * (len(rounds) - 1)


def test_prefill_is_apart_and_holds_the_drafters_reset() -> None:
    """Rates start at its barrier; the first round is whole."""
    clock = FakeClock()

    class Slow(ScriptedDrafter):
        def reset(self, prompt: Sequence[int]) -> None:
            clock.advance(40 * MS)
            super().reset(prompt)

    generation, recorder = _speculate(clock, drafter=Slow(lambda history, m: []))
    generation.drain()
    [end] = rows(recorder.records, GenerationEnd)
    first = rows(recorder.records, RoundRecord)[0]
    assert (end.prefill_ns, first.start_ns, first.t_round_ns) == (48 * MS, 48 * MS, 6 * MS)
    assert (end.ttft_ns, end.decode_ns, end.total_ns) == (54 * MS, 20 * 6 * MS, 168 * MS)


@pytest.mark.parametrize("pipelined", [True, False])
def test_ordinary_rounds_add_up_too(pipelined: bool) -> None:
    """The sum of T_round is the decode time: a step launched early is paid for once, in the round that launches it."""
    clock = FakeClock()
    recorder = Recorder(clock=clock)
    target = ScriptedTarget(SCRIPT, vocab_size=90, cost_ns=10 * MS, clock=clock)
    rounds = list(decode(target, [0, 1], max_tokens=5, pipelined=pipelined, recorder=recorder))
    spent = [20, 10, 10, 10, 0] if pipelined else [10] * 5
    assert [entry.t_round_ns for entry in rounds] == [ms * MS for ms in spent]
    [begin], [end] = rows(recorder.records, GenerationRecord), rows(recorder.records, GenerationEnd)
    assert begin.pipelined is pipelined
    assert (end.prefill_ns, end.decode_ns, end.unaccounted_ns) == (10 * MS, 50 * MS, 0)
    assert {name: basis for name, (_, basis) in rounds[0].stages.items()} == {
        "verify": "host_launch",
        "synchronize": "host_wait",
    }


def test_a_wall_clock_that_steps_back_changes_no_duration() -> None:
    """LMCache#3103: durations are differences of the monotonic clock, anchored once to the wall clock."""

    def run(*, step_back: bool) -> list[Any]:
        clock = FakeClock(wall_ns=10**18)
        generation, recorder = _speculate(clock)
        for entry in generation:
            if step_back:
                clock.set_wall(10**18 - 3600 * 10**9 * (1 + entry.index))
            clock.advance(MS)
        [begin] = rows(recorder.records, GenerationRecord)
        [end] = rows(recorder.records, GenerationEnd)
        records = rows(recorder.records, RoundRecord)
        times = [(record.start_ns, record.t_round_ns, record.draft_ns, record.verify_ns) for record in records]
        return [begin.started_wall_ns, times, end.decode_ns, end.unaccounted_ns, end.total_ns, end.ttft_ns]

    assert run(step_back=True) == run(step_back=False)
    assert run(step_back=True)[0] == 10**18


def test_without_drafts_a_round_costs_an_ordinary_step() -> None:
    """mlx-lm#250: with m = 0 the sum of T_round is that of unpipelined ordinary decoding."""

    def spend(*, speculative: bool) -> list[int]:
        clock = FakeClock()
        target = ScriptedTarget(SCRIPT, vocab_size=90, cost_ns=lambda width, context: 3 * width + context, clock=clock)
        recorder = Recorder(clock=clock)
        if speculative:
            drafter = ScriptedDrafter(lambda history, m: [])
            generation = speculate(target, drafter, [0, 1], draft_length=0, max_tokens=9, recorder=recorder)
        else:
            generation = decode(target, [0, 1], max_tokens=9, pipelined=False, recorder=recorder)
        return [entry.t_round_ns for entry in generation]

    assert spend(speculative=True) == spend(speculative=False) == [3 + context for context in range(2, 11)]


def test_a_failed_round_is_timed_too() -> None:
    clock = FakeClock()
    generation, recorder = _speculate(clock, fail_at=2)
    with pytest.raises(RuntimeError):
        generation.drain()
    [end] = rows(recorder.records, GenerationEnd)
    records = rows(recorder.records, RoundRecord)
    assert [record.outcome for record in records][1:] == ["error"]
    assert end.decode_ns == sum(record.t_round_ns for record in records) + end.unaccounted_ns
    assert (records[-1].draft_ns, records[-1].verify_basis) == (20 * MS, None)


def test_time_before_the_first_round_is_asked_for_is_nobodys() -> None:
    """Nothing runs and no clock is read until then."""
    clock = FakeClock()
    generation, recorder = _speculate(clock)
    clock.advance(1000 * MS)
    assert recorder.records == []
    generation.drain()
    [begin], [end] = rows(recorder.records, GenerationRecord), rows(recorder.records, GenerationEnd)
    assert (begin.started_monotonic_ns, end.prefill_ns) == (1000 * MS, 8 * MS)
