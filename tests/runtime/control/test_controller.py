"""What is chosen, why, and what is left out: the controller without any loop."""

from __future__ import annotations

from collections import Counter

import pytest

from runtime.speculative.acceptance import PRIOR
from runtime.speculative.controller import CHECK_EVERY, SHARE, Choice, Controller
from runtime.speculative.costs import Curve
from runtime.speculative.standing import FIRST_PROBE, LAST_PROBE
from tests.runtime.control.worlds import STEP

CHEAP = Curve({(0, w): STEP * (1 + 0.05 * (w - 1)) for w in (1, 17)})


def step(controller: Controller, n: int = 1) -> None:
    for _ in range(n):
        controller.observe_step(STEP, 0, is_pipelined=True)


def fail(controller: Controller, n: int, m: int = 8) -> None:
    for _ in range(n):
        controller.observe_round(round(STEP * (1 + 0.05 * m)), 0, m, m, 0, 1)


def test_it_begins_by_its_prior_and_goes_on_by_its_estimates() -> None:
    controller = Controller(CHEAP)
    first = controller.decide(0, 16, free=[0])
    assert (first.m > 1, first.reason) == (True, "prior")
    assert first.expected_ns is not None
    assert first.step_ns == STEP
    assert first.expected_ns < STEP
    controller.observe_round(round(STEP * (1 + 0.05 * first.m)), 0, first.m, first.m, first.m, first.m + 1)
    second = controller.decide(0, 16, free=[0])
    assert (second.m > first.m, second.reason) == (True, "best")


def test_a_drafter_whose_cost_is_unknown_is_first_asked_for_one_token() -> None:
    assert Controller(CHEAP).decide(0, 16).m == 1


def test_without_a_curve_a_step_comes_first() -> None:
    controller = Controller()
    assert controller.decide(0, 16, free=[0]) == (0, "prior", None, None, None)
    step(controller)
    assert controller.decide(0, 16, free=[0]).m > 0


def test_where_no_token_may_be_proposed_it_says_so() -> None:
    assert Controller(CHEAP).decide(0, 0)[:2] == (0, "last")


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_it_never_asks_for_more_than_it_may(limit: int) -> None:
    assert Controller(CHEAP).decide(0, limit, free=[0]).m <= limit
    assert Controller(CHEAP, longest=2).decide(0, 16, free=[0]).m <= 2


def test_what_fails_is_given_up_and_probed_for_ever_more_seldom() -> None:
    controller = Controller(CHEAP)
    fail(controller, 20)
    assert controller.decide(0, 16)[:2] == (0, "best")
    waits, since = [], 0
    for _ in range(20_000):
        decision = controller.decide(0, 16)
        if decision.m:
            assert decision[:2] == (1, "probe")
            waits.append(since)
            since = 0
            fail(controller, 1, m=1)
        else:
            since += 1
            step(controller)
    assert waits[-1] == LAST_PROBE
    assert waits[0] >= FIRST_PROBE
    assert sorted(waits[1:]) == waits[1:]
    assert controller._lost <= 2 * SHARE * controller._elapsed


def test_a_few_failures_in_a_row_are_no_proof() -> None:
    """It is tried again while that has cost less than a step; less often where the generation before speaks against."""
    dear = {(0, 1): float(STEP), (0, 17): 5.0 * STEP}
    controller, tries = Controller(Curve(dear)), []
    for _ in range(2):
        controller.begin()
        reasons = []
        while (choice := controller.decide(0, 1)).m:
            reasons.append(choice.reason)
            controller.observe_round(round(1.25 * STEP), 0, 1, 1, 0, 1)
        tries.append(reasons.count("probe"))
        assert controller._lost <= STEP
        step(controller, 100)
    assert tries[0] > tries[1]


def test_a_probe_that_is_due_and_too_dear_is_left_out_and_said_to_be() -> None:
    controller = Controller(CHEAP)
    fail(controller, 20)
    step(controller, FIRST_PROBE)
    assert controller.decide(0, 16)[:2] == (0, "budget")


def test_a_drafter_that_is_watched_is_not_probed() -> None:
    controller = Controller(CHEAP)
    fail(controller, 20)
    step(controller, 5000)
    assert controller.decide(0, 16, free=[0])[:2] == (0, "best")
    for _ in range(4):
        controller.parts[0].acceptance.observe(16, 16)
    assert controller.decide(0, 16, free=[0]).m > 4


def test_a_probe_that_succeeds_is_followed_by_another() -> None:
    controller = Controller(CHEAP)
    fail(controller, 20)
    step(controller, 5000)
    assert controller.decide(0, 16)[:2] == (1, "probe")
    controller.observe_round(round(1.05 * STEP), 0, 1, 1, 1, 2)
    assert controller.decide(0, 16).m > 0


def test_after_many_rounds_a_step_is_looked_at_again() -> None:
    controller = Controller(CHEAP)
    for _ in range(CHECK_EVERY):
        assert controller.decide(0, 16, free=[0]).m > 0
        controller.observe_round(round(1.8 * STEP), 0, 16, 16, 16, 17)
    assert controller.decide(0, 16, free=[0])[:2] == (0, "probe")
    controller.observe_step(2 * STEP, 0, is_pipelined=None)  # the first of several tells nothing
    assert controller.decide(0, 16, free=[0])[:2] == (0, "probe")
    step(controller)
    assert controller.decide(0, 16, free=[0]).m > 0


def test_a_generation_begins_with_costs_known_and_acceptance_not() -> None:
    controller = Controller(CHEAP)
    fail(controller, 20)
    controller.begin()
    assert controller.decide(0, 16).reason == "prior"
    assert controller.parts[0].costs.is_known


def test_steps_are_pipelined_where_offers_are_rare_and_gain_little() -> None:
    rare, frequent = Controller(CHEAP), Controller(CHEAP)
    for controller in (rare, frequent):
        controller.observe_step(round(1.1 * STEP), 0, is_pipelined=False)
        step(controller)
    for _ in range(60):
        rare.parts[0].observe_offer(0)
        frequent.parts[0].observe_offer(8)
    assert rare.is_worth_pipelining(0, 0)
    assert not frequent.is_worth_pipelining(0, 0)


def play(controller: Controller, rates: dict[int, bool], n: int) -> Counter[tuple[int | None, str]]:
    """Rounds of a composition whose parts are always right or always wrong, the first one free to ask."""
    chosen = Counter[tuple[int | None, str]]()
    for _ in range(n):
        m, reason, _, _, part = controller.decide(0, 16, free=[0])
        chosen[part, reason] += 1
        if part is None:
            step(controller)
        else:
            accepted = m if rates[part] else 0
            ns = round(STEP * (1 + 0.05 * m + 0.2 * part))
            controller.observe_round(ns, 0, m, m, accepted, accepted + 1, part=part)
    return chosen


def test_the_part_that_pays_is_asked_and_the_other_probed_within_its_budget() -> None:
    controller = Controller(CHEAP)
    controller.begin(["host", "model"])
    chosen = play(controller, {0: True, 1: False}, 5000)
    assert chosen[0, "best"] > 4900
    assert 5000 / LAST_PROBE * 0.5 < chosen[1, "probe"] < 5000 / LAST_PROBE * 2
    assert controller._probing <= 2 * SHARE * controller._elapsed


def test_a_model_that_pays_is_asked_although_the_lookup_is_wrong() -> None:
    controller = Controller(CHEAP)
    controller.begin(["host", "model"])
    chosen = play(controller, {0: False, 1: True}, 500)
    assert chosen[1, "best"] > 480
    assert chosen[0, "probe"] == 0  # watched instead


def test_of_two_that_pay_the_one_without_an_offer_is_passed_over() -> None:
    controller = Controller(CHEAP)
    controller.begin(["host", "model"])
    for part in (0, 1):
        for _ in range(20):
            controller.observe_round(round((1.4 + 0.2 * part) * STEP), 0, 8, 8, 8, 9, part=part)
    assert controller.decide(0, 16, free=[0]).part == 0
    assert controller.decide(0, 16, free=[0], without=[0]).part == 1
    assert controller.decide(0, 16, free=[0], without=[0, 1])[:2] == (0, "best")


def test_one_that_is_free_to_ask_is_preferred_where_it_is_about_as_good_but_never_to_a_step() -> None:
    """Tokens per round 1.5 of a model that always has something, and somewhat fewer of a lookup that seldom has."""

    def choose(accepted: int, model: int) -> Choice:
        controller = Controller(CHEAP)
        controller.begin(["host", "model"])
        for i in range(200):
            controller.parts[0].observe_offer(i % 2)
            for part, n in ((0, accepted), (1, model)):
                stands = i * n // 100 < (i + 1) * n // 100
                controller.observe_round(round(1.05 * STEP), 0, 1, 1, stands, 1 + stands, part=part)
        step(controller)
        return controller.decide(0, 1, free=[0])

    assert choose(50, 50).part == 0
    assert choose(48, 50).part == 0
    assert choose(30, 50).part == 1
    for model in range(12):
        for accepted in range(model):
            choice = choose(accepted, model)
            assert choice.expected_ns is not None
            assert choice.expected_ns <= STEP or choice.reason == "probe"


def test_what_was_learnt_belongs_to_the_part_of_that_name_and_place() -> None:
    controller = Controller(CHEAP)
    controller.begin(["host", "model"])
    fail(controller, 20)
    controller.begin(["other", "model"])
    assert not controller.parts[0].costs.is_known
    controller.begin(["host"])
    assert controller.parts[0].costs.is_known
    assert next(controller.parts[0].acceptance.survivals()) < PRIOR


def judge(controller: Controller, accepted: int) -> None:
    for _ in range(6):
        controller.observe_round(round(1.4 * STEP), 0, 8, 8, accepted, accepted + 1)


def test_what_was_learnt_of_one_class_of_prompts_is_remembered_for_that_class() -> None:
    controller = Controller(CHEAP)
    copied, new = controller.for_class("copied"), controller.for_class("new")
    for _ in range(3):
        copied.begin()
        judge(copied, 8)
        new.begin()
        judge(new, 0)
    lengths = []
    for each in (copied, new, controller.for_class("other"), controller.for_class(None)):
        each.begin()
        lengths.append(each.decide(0, 16, free=[0]).m)
    assert lengths[0] == 16
    assert lengths[1] == 0
    assert 0 < lengths[2] == lengths[3] < 16


def test_what_is_known_of_a_class_is_slowly_given_up_while_nothing_is_judged() -> None:
    """Nor does what one generation judged count again with every later one."""
    controller = Controller(CHEAP).for_class("new")
    controller.begin()
    judge(controller, 0)
    doubts = []
    for _ in range(30):
        controller.begin()
        doubts.append(controller.parts[0].acceptance.find_doubt())
    assert doubts[0] > 0.5
    assert doubts == sorted(doubts, reverse=True)
    assert doubts[3] > 0.4
    assert doubts[-1] < 0.3


def test_controllers_for_classes_know_the_same_costs() -> None:
    controller = Controller()
    step(controller.for_class("a"))
    other = controller.for_class("b")
    assert other.step_ns(0) == controller.step_ns(0) == STEP
    fail(other, CHECK_EVERY)
    assert controller.costs.rounds_since_step == CHECK_EVERY


def test_longest_must_be_a_length() -> None:
    with pytest.raises(ValueError, match="longest is 0"):
        Controller(longest=0)
