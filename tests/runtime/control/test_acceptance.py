"""Acceptance by position, from rounds of any length, cut or not; and how soon a change is noticed."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.speculative.acceptance import PRIOR, Acceptance

LONGEST = 8


def survivals(acceptance: Acceptance) -> list[float]:
    return list(acceptance.survivals())


def test_before_anything_was_judged_every_position_has_the_prior() -> None:
    acceptance = Acceptance(3)
    assert survivals(acceptance) == pytest.approx([PRIOR, PRIOR**2, PRIOR**3])
    assert acceptance.n_rounds == 0


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


@given(st.lists(st.tuples(st.integers(0, LONGEST), st.integers(0, LONGEST)), max_size=60))
def test_survival_is_a_falling_chance(rounds: list[tuple[int, int]]) -> None:
    acceptance = Acceptance(LONGEST)
    for judged, accepted in rounds:
        acceptance.observe(judged, min(accepted, judged))
    found = [1.0, *survivals(acceptance)]
    assert len(found) == LONGEST + 1
    assert all(0 < after <= before <= 1 for before, after in pairwise(found))


def test_what_generations_agree_on_becomes_the_prior_of_the_next() -> None:
    priors = [PRIOR]
    for _ in range(5):
        acceptance = Acceptance(LONGEST, priors[-1])
        for _ in range(6):
            acceptance.observe(1, 0)
        priors.append(acceptance.hand_on())
    assert priors == sorted(priors, reverse=True)
    assert priors[1] > 0.4
    assert priors[-1] < 0.25


def test_a_prior_that_nothing_was_seen_of_goes_back() -> None:
    prior = 0.1
    for _ in range(30):
        prior = Acceptance(LONGEST, prior).hand_on()
    assert prior == pytest.approx(PRIOR, abs=0.05)
