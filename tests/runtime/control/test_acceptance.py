"""Acceptance by position, from rounds of any length, cut or not; and how soon a change is noticed."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.speculative.acceptance import (
    DOUBT,
    LATER,
    LEFT,
    MOST_LEFT,
    PRIOR,
    PRIOR_WEIGHT,
    USELESS,
    Acceptance,
    Prior,
)

LONGEST = 8


def survivals(acceptance: Acceptance) -> list[float]:
    return list(acceptance.survivals())


def test_before_anything_was_judged_every_position_has_the_prior() -> None:
    """Later ones follow a chance that nobody knows: held against the mean of its powers, in exact fractions."""
    acceptance = Acceptance(LONGEST)
    first, later = (1 - DOUBT) * PRIOR + DOUBT * USELESS, Fraction(str(PRIOR + LATER)) / 2
    good, bad = int(PRIOR_WEIGHT) * later, int(PRIOR_WEIGHT) * (1 - later)
    power, expected = Fraction(1), []
    for j in range(LONGEST):
        expected.append(first * float(power))
        power *= (good + j) / (good + bad + j)
    assert survivals(acceptance) == pytest.approx(expected)
    assert acceptance.n_rounds == 0


@given(
    fell=st.integers(0, 12),
    good=st.integers(1, 5),
    bad=st.integers(1, 5),
    doubt=st.fractions(Fraction(1, 100), Fraction(99, 100)),
)
def test_the_first_position_follows_bayes_rule(fell: int, good: int, bad: int, doubt: Fraction) -> None:
    """Held against exact fractions: rounds that all fail, by a drafter of use and by one of none."""
    prior = Prior(good / (good + bad), float(doubt))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runtime.speculative.acceptance.PRIOR_WEIGHT", float(good + bad))
        patch.setattr("runtime.speculative.acceptance.KEPT", 1.0)
        patch.setattr("runtime.speculative.acceptance.ALARM", float("inf"))
        acceptance = Acceptance(1, prior)
        for _ in range(fell):
            acceptance.observe(1, 0)
        found = survivals(acceptance)[0]
    spike = Fraction(str(USELESS))
    useful, useless = 1 - doubt, doubt
    for n in range(fell):
        useful *= Fraction(bad + n, good + bad + n)
        useless *= 1 - spike
    slab = Fraction(good, good + bad + fell)
    assert found == pytest.approx(float((useful * slab + useless * spike) / (useful + useless)))


def test_failures_end_one_that_was_never_right_and_hardly_touch_another() -> None:
    never, once = Acceptance(LONGEST), Acceptance(LONGEST)
    for _ in range(4):
        once.observe(1, 1)
    for acceptance in (never, once):
        for _ in range(4):
            acceptance.observe(1, 0)
    assert survivals(never)[0] < 0.15
    assert survivals(once)[0] > 0.4


def test_long_agreement_is_no_error() -> None:
    acceptance = Acceptance(LONGEST)
    for _ in range(3000):
        acceptance.observe(1, 1)
    assert survivals(acceptance)[0] > 0.95
    acceptance.observe(1, 0)
    assert survivals(acceptance)[0] > 0.8


def test_a_round_in_which_nothing_was_judged_tells_nothing() -> None:
    acceptance = Acceptance(3)
    acceptance.observe(0, 0)
    assert (survivals(acceptance), acceptance.n_rounds) == (survivals(Acceptance(3)), 0)


def test_what_was_cut_is_no_rejection() -> None:
    """Two tokens judged and accepted out of many: the third was not reached, and stays as likely as the second."""
    cut, rejected = Acceptance(3), Acceptance(3)
    for _ in range(50):
        cut.observe(2, 2)
        rejected.observe(3, 2)
    _, second, third = survivals(cut)
    assert third / second > 0.9
    _, second, third = survivals(rejected)
    assert third / second < 0.2


@given(seed=st.integers(0, 10_000), rate=st.sampled_from([0.1, 0.5, 0.9]))
def test_a_steady_chance_is_found_whatever_lengths_are_asked_for(seed: int, rate: float) -> None:
    chance, acceptance, believed = Random(seed), Acceptance(LONGEST), []
    for _ in range(400):
        judged = chance.randint(1, LONGEST)
        accepted = next((i for i in range(judged) if chance.random() >= rate), judged)
        acceptance.observe(judged, accepted)
        believed.append(survivals(acceptance)[0])
    assert mean(believed[50:]) == pytest.approx(rate, abs=0.15)


@pytest.mark.parametrize(("before", "after", "within"), [(8, 0, 3), (0, 8, 4)])
def test_a_change_is_noticed_within_few_rounds(before: int, after: int, within: int) -> None:
    acceptance = Acceptance(LONGEST)
    for _ in range(30):
        acceptance.observe(LONGEST, before)
    old = survivals(acceptance)[0]
    for _ in range(within):
        acceptance.observe(LONGEST, after)
    assert abs(survivals(acceptance)[0] - old) > 0.5


def test_failures_in_a_row_say_nothing_of_positions_that_were_not_reached() -> None:
    """Where text is copied whole or not at all, a run of failures does not make the next copy short."""
    acceptance = Acceptance(LONGEST)
    for _ in range(20):
        acceptance.observe(LONGEST, LONGEST)
    first = survivals(acceptance)[0]
    for _ in range(6):
        acceptance.observe(LONGEST, 0)
    fallen, *_, end = survivals(acceptance)
    assert fallen < 0.5 * first
    assert end / fallen > 0.5


@given(st.lists(st.tuples(st.integers(0, LONGEST), st.integers(0, LONGEST)), max_size=60))
def test_survival_is_a_falling_chance(rounds: list[tuple[int, int]]) -> None:
    acceptance = Acceptance(LONGEST)
    for judged, accepted in rounds:
        acceptance.observe(judged, min(accepted, judged))
    found = [1.0, *survivals(acceptance)]
    assert len(found) == LONGEST + 1
    assert all(0 < after <= before <= 1 for before, after in pairwise(found))


def test_what_generations_agree_on_becomes_the_prior_of_the_next() -> None:
    priors = [Prior()]
    for _ in range(5):
        acceptance = Acceptance(LONGEST, priors[-1])
        for _ in range(6):
            acceptance.observe(1, 0)
        priors.append(acceptance.hand_on())
    firsts = [survivals(Acceptance(LONGEST, prior))[0] for prior in priors]
    assert firsts == sorted(firsts, reverse=True)
    assert firsts[1] > 0.2
    assert firsts[-1] < 0.15


@pytest.mark.parametrize("prior", [Prior(0.1, 0.9), Prior(0.95, 0.01)])
def test_a_prior_that_nothing_was_seen_of_goes_back(prior: Prior) -> None:
    for _ in range(30):
        prior = Acceptance(LONGEST, prior).hand_on()
    assert prior == pytest.approx(Prior(), abs=0.05)


def test_a_drafter_that_was_given_up_is_believed_after_few_successes() -> None:
    acceptance = Acceptance(LONGEST, Prior(0.3, 0.95))
    for _ in range(2):
        acceptance.observe(1, 1)
    assert survivals(acceptance)[0] > 0.5


@pytest.mark.parametrize("n", [4, 400])
def test_a_prompt_of_the_same_class_begins_with_part_of_what_was_judged(n: int) -> None:
    before = Acceptance(LONGEST)
    for _ in range(n):
        before.observe(4, 2)
    left = before.leave()
    share = left.reached[0] / before._reached[0]
    assert share <= LEFT
    assert left.reached[0] <= MOST_LEFT
    assert left.accepted == pytest.approx([share * n for n in before._accepted])
    after = Acceptance(LONGEST, before.hand_on(), left)
    assert survivals(after)[:3] == pytest.approx(survivals(before)[:3], abs=0.25)
    assert survivals(after)[0] > survivals(Acceptance(LONGEST))[0]
    assert survivals(after)[2] < survivals(Acceptance(LONGEST))[2]
    after.observe(1, 0)
    assert left == before.leave()
