"""A run as it happens: what is recorded, in which order, and what an interruption leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from runtime.experiment.execution import Execution
from runtime.experiment.plan import Plan, make_plan
from runtime.speculative.controller import Controller
from runtime.workloads.prompt_file import DEFAULT_CLASS
from telemetry.recorder import Recorder
from telemetry.records import (
    ComparisonRecord,
    ForecastRecord,
    GenerationEnd,
    GenerationRecord,
    RoundRecord,
    VerifyCostRecord,
)
from tests.runtime.experiment.letters import make_request, make_target, make_workload

Kind = TypeVar("Kind")


def execute(plan: Plan, target: Any, progress: Callable[[], None] = lambda: None) -> tuple[Execution, Recorder]:
    recorder = Recorder(run_id="r1")
    execution = Execution(plan, target, recorder, progress)
    execution.run()
    return execution, recorder


def only(recorder: Recorder, kind: type[Kind]) -> list[Kind]:
    return [record for record in recorder.records if isinstance(record, kind)]


def test_everything_planned_is_recorded_and_equal_to_ordinary() -> None:
    target = make_target()
    plan = make_plan(
        make_request(drafters=("prompt-lookup", "oracle", "wrong", "none"), repeats=2), make_workload(), target
    )
    execution, recorder = execute(plan, target)
    generations = only(recorder, GenerationRecord)
    assert len(generations) == plan.n_generations
    assert [g.sequence for g in generations] == list(range(plan.n_generations))
    assert {g.run_id for g in generations} == {"r1"}
    comparisons = only(recorder, ComparisonRecord)
    # 3 prompts, 2 repeats, 4 arms beside ordinary's; and 2 prompts of the attributed pass.
    assert len(comparisons) == 3 * 2 * 4 + 2 * 4
    assert all(c.equal for c in comparisons)
    assert not execution.interrupted
    assert execution.divergent == {}


def test_pairs_are_the_ordinary_generation_of_the_same_prompt_and_repeat() -> None:
    target = make_target()
    _, recorder = execute(make_plan(make_request(repeats=2), make_workload(), target), target)
    generations = {g.generation_id: g for g in only(recorder, GenerationRecord)}
    for comparison in only(recorder, ComparisonRecord):
        ours, pair = generations[comparison.generation_id], generations[comparison.pair_id]
        assert (ours.prompt_id, ours.repeat) == (pair.prompt_id, pair.repeat)
        assert (ours.arm, pair.arm) == ("prompt-lookup m=4", "ordinary")


def test_warm_up_comes_first_and_is_flagged() -> None:
    target = make_target()
    _, recorder = execute(make_plan(make_request(), make_workload(), target), target)
    flags = [g.warm_up for g in only(recorder, GenerationRecord)]
    assert flags == sorted(flags, reverse=True)
    assert flags.count(True) == 2


def test_the_bounds_accept_all_and_nothing() -> None:
    target = make_target()
    _, recorder = execute(make_plan(make_request(drafters=("oracle", "wrong")), make_workload(), target), target)
    drafters = {g.generation_id: g.drafter for g in only(recorder, GenerationRecord)}
    rounds = [(drafters[r.generation_id], r) for r in only(recorder, RoundRecord) if r.requested]
    assert all(r.accepted == r.proposed > 0 for drafter, r in rounds if drafter == "oracle")
    assert all(r.accepted == 0 < r.proposed for drafter, r in rounds if drafter == "wrong")


def test_attributed_rounds_are_flagged_and_the_main_ones_are_not() -> None:
    target = make_target()
    plan = make_plan(make_request(), make_workload(4), target)
    _, recorder = execute(plan, target)
    timings = [g.timing for g in only(recorder, GenerationRecord)]
    assert timings.count("attributed") == len(plan.attributed) == 2
    assert timings[-2:] == ["attributed", "attributed"]


def test_a_drafter_starts_fresh_on_every_prompt() -> None:
    # What prompt lookup learnt from one prompt must not help it with the next: repeats take as many rounds.
    target = make_target()
    _, recorder = execute(make_plan(make_request(repeats=3), make_workload(2), target), target)
    generations = {g.generation_id: g for g in only(recorder, GenerationRecord) if not g.warm_up and g.drafter}
    n_rounds: dict[tuple[str | None, str], set[int]] = {}
    for end in only(recorder, GenerationEnd):
        if end.generation_id in generations:
            generation = generations[end.generation_id]
            n_rounds.setdefault((generation.prompt_id, generation.timing), set()).add(end.n_rounds)
    assert all(len(counts) == 1 for counts in n_rounds.values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_open_generation_and_keeps_what_was_measured(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    target = make_target()
    seen = 0

    def interrupt_the_seventh() -> None:
        nonlocal seen
        seen += 1
        if seen == 7:
            os.kill(os.getpid(), number)

    execution, recorder = execute(make_plan(make_request(), make_workload(8), target), target, interrupt_the_seventh)
    assert execution.interrupted
    assert signal.getsignal(number) is before
    ends = only(recorder, GenerationEnd)
    assert len(ends) == len(only(recorder, GenerationRecord)) == 7
    assert [end.finish_reason for end in ends] == ["length"] * 7


def test_an_interrupt_within_a_generation_cancels_it_after_its_round() -> None:
    target = make_target()
    plan = make_plan(make_request(), make_workload(8), target)
    forward, calls = target.forward, 0

    def interrupting_forward(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 40:
            os.kill(os.getpid(), signal.SIGINT)
        return forward(*arguments)

    target.forward = interrupting_forward
    _, recorder = execute(plan, target)
    ends = only(recorder, GenerationEnd)
    assert [end.finish_reason for end in ends[:-1]] == ["length"] * (len(ends) - 1)
    assert ends[-1].finish_reason == "cancelled"
    last_rounds = [r for r in only(recorder, RoundRecord) if r.generation_id == ends[-1].generation_id]
    assert sum(r.committed for r in last_rounds) == ends[-1].n_committed


def test_forecasts_and_the_price_of_verification_follow_the_rounds() -> None:
    target = make_target()
    plan = make_plan(make_request(drafters=("prompt-lookup", "none"), repeats=2), make_workload(), target)
    _, recorder = execute(plan, target)
    ordinary = {g.generation_id: g for g in only(recorder, GenerationRecord) if g.arm == "ordinary" and not g.warm_up}
    forecasts = only(recorder, ForecastRecord)
    told = [(ordinary[f.generation_id].prompt_id, ordinary[f.generation_id].repeat, f.spec) for f in forecasts]
    assert sorted(told) == [(f"p{i}", 0, "prompt-lookup") for i in range(3)]
    assert {(f.longest, len(f.offered), len(f.right)) for f in forecasts} == {(16, 9, 9)}
    # Prompts of 12 tokens, and half of the output's limit.
    costs = only(recorder, VerifyCostRecord)
    assert {(c.context, c.run_id) for c in costs} == {(16, "r1")}
    assert [c.width for c in costs] == [1, 2, 3, 4, 5, 7, 9, 13, 17]
    assert recorder.records[-len(forecasts) - len(costs) :] == [*forecasts, *costs]


def test_a_longer_draft_length_is_forecast_and_priced_too() -> None:
    target = make_target()
    _, recorder = execute(make_plan(make_request(draft_lengths=(20,)), make_workload(), target), target)
    assert {f.longest for f in only(recorder, ForecastRecord)} == {20}
    assert max(c.width for c in only(recorder, VerifyCostRecord)) == 21


@pytest.mark.parametrize("changes", [{"drafters": ("none",)}, {"drafters": ()}, {"timing": "attributed"}])
def test_where_nothing_is_drafted_or_timed_nothing_is_forecast(changes: dict[str, Any]) -> None:
    target = make_target()
    _, recorder = execute(make_plan(make_request(**changes), make_workload(), target), target)
    assert only(recorder, ForecastRecord) == []
    assert only(recorder, VerifyCostRecord) == []


def test_a_drafter_that_is_not_a_function_of_the_history_is_not_forecast() -> None:
    target = make_target()
    plan = make_plan(make_request(drafters=("prompt-lookup", "suffix")), make_workload(), target)
    [impure] = {id(arm.drafter): arm.drafter for arm in plan.arms if arm.spec == "suffix"}.values()
    impure.pure_in_history = False  # type: ignore[union-attr]
    _, recorder = execute(plan, target)
    assert {f.spec for f in only(recorder, ForecastRecord)} == {"prompt-lookup"}


def test_at_a_temperature_outputs_are_draws_and_are_not_compared() -> None:
    """Every arm of a prompt and repeat draws by one seed, so that without proposals it gives ordinary's tokens."""
    target = make_target()
    drafters = ("prompt-lookup", "none", "oracle")
    request = make_request(drafters=drafters, repeats=2, temperature=0.7, top_k=3, min_p=0.01, record_text=True)
    execution, recorder = execute(make_plan(request, make_workload(), target), target)
    recorded = only(recorder, GenerationRecord)
    options = {(g.policy, g.temperature, g.top_k, g.top_p, g.min_p) for g in recorded}
    assert options == {("stochastic", 0.7, 3, 1.0, 0.01)}
    seeds = {(g.prompt_id, g.repeat): g.seed for g in recorded}
    assert len(set(seeds.values())) == len(seeds) == 3 * 2
    assert all(g.seed == seeds[g.prompt_id, g.repeat] for g in recorded)
    assert only(recorder, ComparisonRecord) == only(recorder, ForecastRecord) == only(recorder, VerifyCostRecord) == []
    assert execution.divergent == {}
    tokens = {g.generation_id: 0 for g in recorded}
    for entry in only(recorder, RoundRecord):
        tokens[entry.generation_id] += entry.committed
    by_arm = {(g.arm, g.prompt_id, g.repeat): tokens[g.generation_id] for g in recorded if not g.warm_up}
    for (arm, *rest), count in by_arm.items():
        if arm == "none m=0":
            assert count == by_arm["ordinary", *rest]


def test_controllers_are_told_the_classes_of_prompts_and_learn_none_from_a_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, told = make_target(), list[str | None]()
    monkeypatch.setattr(Controller, "for_class", lambda controller, class_: told.append(class_) or controller)
    workload = make_workload()
    items = (*workload.items[:2], replace(workload.items[2], class_=DEFAULT_CLASS))
    plan = make_plan(make_request(draft_lengths=("auto",)), replace(workload, items=items), target)
    _, recorder = execute(plan, target)
    assert told[0] is None
    generations = [g for g in only(recorder, GenerationRecord) if g.controlled and g.timing == "fused"]
    assert told == [None if g.warm_up or g.class_ == DEFAULT_CLASS else g.class_ for g in generations]
    assert {*told} == {None, items[0].class_, items[1].class_}
