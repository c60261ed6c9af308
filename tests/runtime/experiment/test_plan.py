"""What a run will do, before it does it."""

from __future__ import annotations

import pytest

from runtime.experiment.plan import Request, make_plan
from telemetry.errors import Unsupported, UsageError
from tests.runtime.experiment.letters import make_request, make_target, make_workload


def test_an_arm_per_drafter_and_length_beside_ordinary() -> None:
    request = make_request(drafters=("prompt-lookup", "none", "prompt-lookup"), draft_lengths=(4, 8, 4))
    plan = make_plan(request, make_workload(), make_target())
    assert [arm.name for arm in plan.arms] == ["ordinary", "prompt-lookup m=4", "prompt-lookup m=8", "none m=0"]
    assert [arm.draft_length for arm in plan.arms] == [0, 4, 8, 0]


def test_every_prompt_is_run_by_every_arm_once_a_repeat() -> None:
    plan = make_plan(make_request(repeats=3), make_workload(5), make_target())
    done = sorted((block.repeat, block.prompt.item.id, arm.name) for block in plan.blocks for arm in block.arms)
    expected = sorted((repeat, f"p{index}", arm.name) for repeat in range(3) for index in range(5) for arm in plan.arms)
    assert done == expected


def test_the_order_depends_on_the_seed_alone() -> None:
    def order(seed: int) -> list[tuple[str, str]]:
        plan = make_plan(make_request(seed=seed, repeats=2), make_workload(6), make_target())
        return [(block.prompt.item.id, arm.name) for block in plan.blocks for arm in block.arms]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_prompts_are_shuffled_anew_in_every_repeat() -> None:
    """A drift of the machine then falls on other prompts each time."""
    plan = make_plan(make_request(repeats=4), make_workload(8), make_target())
    orders = [tuple(b.prompt.item.id for b in plan.blocks if b.repeat == repeat) for repeat in range(4)]
    as_given = tuple(prompt.item.id for prompt in plan.prompts)
    assert [sorted(order) for order in orders] == [sorted(as_given)] * 4
    assert len({as_given, *orders}) == 5


def test_no_arm_always_comes_first() -> None:
    plan = make_plan(make_request(repeats=8), make_workload(6), make_target())
    assert {block.arms[0].name for block in plan.blocks} == {arm.name for arm in plan.arms}


def test_the_attributed_pass_takes_some_of_every_class_and_no_ordinary_arm() -> None:
    plan = make_plan(make_request(), make_workload(7, classes=("x", "y")), make_target())
    assert sorted(block.prompt.item.class_ for block in plan.attributed) == ["x", "x", "y", "y"]
    assert {arm.name for block in plan.attributed for arm in block.arms} == {"prompt-lookup m=4"}


def test_a_run_in_attributed_timing_has_no_further_pass() -> None:
    plan = make_plan(make_request(timing="attributed"), make_workload(), make_target())
    assert plan.attributed == ()


def test_the_number_of_generations_is_what_will_be_run() -> None:
    plan = make_plan(make_request(drafters=("oracle",)), make_workload(4), make_target())
    # Warm-up: two arms, and ordinary's output of four prompts for the oracle; then 4 x 2, and two attributed.
    assert plan.n_generations == 2 + 4 + 8 + 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": 0}, "--max-tokens is 0"),
        ({"repeats": 0}, "--repeats is 0"),
        ({"draft_lengths": (-1,)}, "--draft-length is -1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_request(**change)


def test_an_unknown_drafter_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'nobody'.*prompt-lookup"):
        make_plan(make_request(drafters=("nobody",)), make_workload(), make_target())


def test_the_assistant_needs_a_model() -> None:
    with pytest.raises(UsageError, match="--draft-model"):
        make_plan(make_request(drafters=("assistant",)), make_workload(), make_target())


def test_a_prompt_beyond_the_positions_is_named_before_anything_runs() -> None:
    target = make_target(max_positions=10)
    with pytest.raises(Unsupported, match=r"p0 has \d+ tokens .* 10 .*3 of 3"):
        make_plan(make_request(), make_workload(3), target)
    assert target.widths == []


def test_a_cache_that_cannot_be_trimmed_is_refused_for_speculation_only() -> None:
    target = make_target(cache="untrimmable")
    with pytest.raises(Unsupported, match="ScriptedLayer"):
        make_plan(make_request(), make_workload(), target)
    request: Request = make_request(drafters=())
    assert [arm.name for arm in make_plan(request, make_workload(), target).arms] == ["ordinary"]
