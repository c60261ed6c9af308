"""A run of the generator: what is recorded, in which order, under interruption, and how codes are compared."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from runtime.ncm import init_model
from runtime.ncm.experiment.comparison import LOGIT_TOLERANCE, Comparer, find_divergence
from runtime.ncm.experiment.execution import Execution, measure_pace
from runtime.ncm.experiment.plan import Plan
from runtime.ncm.experiment.samples import Samples
from runtime.ncm.generation import NcmOutput, generate
from telemetry.ncm_records import LevelRecord, NcmComparison, NcmEnd, NcmRecord
from telemetry.recorder import Recorder
from tests.runtime.ncm.experiment.tiny import make_config, plan_run

Kind = TypeVar("Kind")
MODEL = init_model(make_config())


def execute(plan: Plan, progress: Callable[[], None] = lambda: None) -> tuple[Execution, Recorder]:
    """Run a plan on the tiny model; what was recorded is in the recorder."""
    recorder = Recorder(run_id="run-1")
    execution = Execution(plan, MODEL, recorder, progress)
    execution.run()
    return execution, recorder


def only(recorder: Recorder, kind: type[Kind]) -> list[Kind]:
    """The records of one kind, in order."""
    return [record for record in recorder.records if isinstance(record, kind)]


def solve_all(tokens: Any, conditioning: Any) -> list[bool]:
    """Takes every output for valid."""
    return [True for _ in tokens]


def test_every_generation_is_recorded_in_the_plans_order() -> None:
    plan = plan_run(3)
    execution, recorder = execute(plan)
    begun = only(recorder, NcmRecord)
    expected = [("b0", arm.name, True, "fused") for arm in plan.arms]
    expected += [(block.batch.id, arm.name, False, "fused") for block in plan.blocks for arm in block.arms]
    expected += [(block.batch.id, arm.name, False, "attributed") for block in plan.attributed for arm in block.arms]
    assert [(one.batch_id, one.arm, one.warm_up, one.timing) for one in begun] == expected
    assert [one.sequence for one in begun] == list(range(plan.n_generations))
    assert {(one.run_id, one.repeat, one.config, one.seed, one.temperature) for one in begun} == {
        ("run-1", 0, "tiny", 0, 0.0)
    }
    assert [one.generation_id for one in only(recorder, NcmEnd)] == [one.generation_id for one in begun]
    assert {end.n_solved for end in only(recorder, NcmEnd)} == {0}
    assert not execution.interrupted


def test_cached_codes_are_held_against_uncached_ones_by_exit() -> None:
    plan = plan_run(3, repeats=2)
    execution, recorder = execute(plan)
    generations = {one.generation_id: one for one in only(recorder, NcmRecord)}
    compared = only(recorder, NcmComparison)
    # Two batches twice, both of them attributed, with and without exit.
    assert len(compared) == 2 * (2 * 2 + 2)
    assert {one.equal for one in compared} == {True}
    for one in compared:
        mine, other = generations[one.generation_id], generations[one.pair_id]
        assert (mine.cache, other.cache, mine.warm_up, other.warm_up) == (True, False, False, False)
        assert [getattr(mine, name) for name in ("batch_id", "repeat", "exit", "timing")] == [
            getattr(other, name) for name in ("batch_id", "repeat", "exit", "timing")
        ]
    assert execution.divergent == {}


def test_the_exit_ends_a_generation_at_its_first_valid_output() -> None:
    samples = Samples("all valid", plan_run(2).samples.conditioning, solve_all)
    execution, recorder = execute(plan_run(samples=samples))
    arms = {one.generation_id: one.exit for one in only(recorder, NcmRecord)}
    found = {(arms[end.generation_id], end.n_levels, end.n_solved, end.finish_reason) for end in only(recorder, NcmEnd)}
    assert found == {("none", 3, 2, "complete"), ("verified", 1, 2, "exited")}
    assert execution.shown is not None
    assert execution.shown[1].solved == [True, True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_run_after_the_open_generation(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    seen = 0

    def interrupt_the_sixth() -> None:
        nonlocal seen
        seen += 1
        if seen == 6:
            os.kill(os.getpid(), number)

    execution, recorder = execute(plan_run(6), interrupt_the_sixth)
    assert execution.interrupted
    assert signal.getsignal(number) is before
    assert [end.finish_reason for end in only(recorder, NcmEnd)] == ["complete"] * 6
    assert len(only(recorder, NcmRecord)) == 6


def test_counts_by_level_follow_from_the_shapes() -> None:
    _, recorder = execute(plan_run(2, exit=False))
    cached = {one.generation_id: one.cache for one in only(recorder, NcmRecord)}
    processed = {
        (cached[level.generation_id], level.level): (level.prefix_processed, level.level_processed)
        for level in only(recorder, LevelRecord)
    }
    assert processed == {
        (True, 0): (162, 2),
        (True, 1): (0, 18),
        (True, 2): (0, 162),
        (False, 0): (162, 2),
        (False, 1): (162, 18),
        (False, 2): (162, 162),
    }


def generate_pair(temperature: float = 0.0) -> tuple[Plan, NcmOutput]:
    """A plan and the uncached output of its first batch."""
    plan = plan_run(2, temperature=temperature)
    batch = plan.batches[0]
    return plan, generate(
        MODEL, batch.conditioning, cache=False, seed=0, temperature=temperature, sample_ids=batch.sample_ids
    )


def with_other_code(output: NcmOutput, sample: int, level: int) -> NcmOutput:
    """The output with another code at the first position of a level."""
    codes = [[row[:] for row in levels] for levels in output.codes]
    codes[sample][level][0] = (codes[sample][level][0] + 1) % MODEL.config.codebook_size
    return replace(output, id="cached", codes=codes)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(("tolerance", "near_tie"), [(1e-9, False), (100.0, True)])
def test_another_code_is_a_near_tie_within_the_tolerance_only(
    monkeypatch: pytest.MonkeyPatch, temperature: float, tolerance: float, near_tie: bool
) -> None:
    monkeypatch.setitem(LOGIT_TOLERANCE, "float32", tolerance)
    plan, uncached = generate_pair(temperature)
    batch = plan.batches[0]
    comparer = Comparer(MODEL, 0, temperature)
    for level in range(3):
        found = comparer.compare(batch.conditioning, batch.sample_ids, uncached, with_other_code(uncached, 1, level))
        assert found == NcmComparison(
            generation_id="cached",
            pair_id=uncached.id,
            equal=False,
            diverged_level=level,
            tolerance=tolerance,
            near_tie=near_tie,
        )


def test_all_that_was_chosen_alike_is_no_tie_to_be_explained() -> None:
    """With nothing raised, the second forward chooses what was chosen: the comparison stands on the same codes."""
    plan, uncached = generate_pair(0.7)
    batch, comparer = plan.batches[0], Comparer(MODEL, 0, 0.7)
    for row in (0, 1):
        codes = uncached.codes[row]
        for level in range(3):
            assert comparer._is_near(batch.conditioning[row], batch.sample_ids[row], codes[: level + 1], codes[level])


def test_a_depth_that_differs_is_no_near_tie() -> None:
    plan, uncached = generate_pair()
    batch = plan.batches[0]
    shorter = replace(uncached, id="cached", codes=[uncached.codes[0][:2], uncached.codes[1]])
    found = Comparer(MODEL, 0, 0.0).compare(batch.conditioning, batch.sample_ids, uncached, shorter)
    assert (found.diverged_level, found.near_tie) == (2, False)
    assert find_divergence([[1], [2, 3]], [[1], [2, 4]]) == 1


@pytest.mark.parametrize(("tolerance", "name"), [(1e-9, "output.divergent"), (100.0, "output.near_tie")])
def test_codes_that_differ_are_counted_against_their_arm_and_told(
    tolerance: float, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def corrupt(*arguments: Any, **options: Any) -> NcmOutput:
        output = generate(*arguments, **options)
        return with_other_code(output, 0, 2) if options["cache"] else output

    monkeypatch.setattr("runtime.ncm.generation.generate", corrupt)
    monkeypatch.setitem(LOGIT_TOLERANCE, "float32", tolerance)
    execution, recorder = execute(plan_run(3, exit=False))
    near_tie = name == "output.near_tie"
    assert execution.divergent == ({} if near_tie else {"cache": 4})
    compared = only(recorder, NcmComparison)
    assert [one.near_tie for one in compared] == [near_tie] * 4
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    facts = ("event", "level", "generation_id", "arm", "diverged_level", "tolerance")
    assert [[event[fact] for fact in facts] for event in events] == [
        [name, "warning", one.generation_id, "cache", 2, tolerance] for one in compared
    ]


def test_measuring_the_pace_asks_for_a_time() -> None:
    assert measure_pace(MODEL, plan_run(2)) > 0
