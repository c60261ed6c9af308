"""What steps and rounds cost: from a curve, from what was seen, and from both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.speculative.costs import BUBBLE, CAUTIOUS, Curve, Level, RoundCosts, StepCosts
from tests.runtime.control.worlds import STEP

POINTS = {(0, 1): 100.0, (0, 5): 140.0, (0, 9): 200.0, (100, 1): 110.0, (100, 5): 200.0, (100, 9): 400.0}


@given(st.integers(1, 9), st.integers(0, 100))
def test_a_curve_is_straight_between_what_was_measured(width: int, context: int) -> None:
    rows = [np.interp(width, [1, 5, 9], [POINTS[c, w] for w in (1, 5, 9)]) for c in (0, 100)]
    assert Curve(POINTS).at(width, context) == pytest.approx(np.interp(context, [0, 100], rows))


def test_beyond_its_ends_a_curve_goes_on_rising() -> None:
    curve = Curve(POINTS)
    assert curve.at(13, 0) == pytest.approx(260)
    assert curve.at(9, 200) == pytest.approx(600)


@pytest.mark.parametrize("points", [{}, {(0, 2): 1.0}, {(0, 1): 1.0, (8, 3): 2.0}])
def test_a_curve_needs_a_step_at_every_context(points: dict[tuple[int, int], float]) -> None:
    with pytest.raises(ValueError, match="width 1 at every context"):
        Curve(points)


def test_without_anything_seen_nothing_is_known_and_a_curve_is_believed() -> None:
    assert not StepCosts().is_known
    steps = StepCosts(Curve(POINTS))
    rounds = RoundCosts(steps, longest=8)
    assert (steps.is_known, rounds.is_known) == (True, False)
    assert steps.step(0) == pytest.approx(100)
    assert steps.single(0) == pytest.approx(100 * BUBBLE)
    assert rounds.round(8, 0) == pytest.approx(100 * BUBBLE + 100)


def test_without_a_curve_widths_are_guessed_until_they_were_seen() -> None:
    steps = StepCosts()
    rounds = RoundCosts(steps, longest=8)
    steps.observe(STEP, 10, is_pipelined=True)
    assert rounds.round(4, 10) == pytest.approx(STEP * (BUBBLE + 4 * CAUTIOUS))
    for _ in range(20):
        rounds.observe(3 * STEP, 4, 10)
    assert rounds.round(4, 10) == pytest.approx(3 * STEP, rel=0.02)
    assert STEP * BUBBLE < rounds.round(2, 10) < rounds.round(4, 10) < rounds.round(8, 10)


def test_steps_that_are_not_pipelined_are_a_cost_of_their_own() -> None:
    steps = StepCosts()
    steps.observe(12 * STEP // 10, 10, is_pipelined=False)
    assert steps.step(10) == pytest.approx(1.2 * STEP / BUBBLE)
    steps.observe(STEP, 10, is_pipelined=True)
    assert (steps.step(10), steps.single(10)) == (STEP, pytest.approx(1.2 * STEP))
    for _ in range(30):
        steps.observe(2 * STEP, 10, is_pipelined=True)
    assert steps.single(10) == pytest.approx(1.2 * 2 * STEP, rel=0.03), "a slower machine is slower at both"


def test_a_round_that_takes_less_than_a_step_shows_that_steps_take_less() -> None:
    """As after a long context, where steps were dearer than the curve has it: else nothing would ever be compared."""
    steps = StepCosts(Curve({(0, 1): STEP, (0, 9): 1.4 * STEP}))
    rounds = RoundCosts(steps, longest=8)
    steps.observe(13 * STEP // 10, 700, is_pipelined=False)
    for _ in range(12):
        rounds.observe(11 * STEP // 10, 1, 0)
    assert steps.step(0) < 1.12 * STEP
    assert rounds.round(1, 0) == pytest.approx(1.1 * STEP, rel=0.02)


def test_rounds_that_grow_dear_are_followed_while_no_step_is_made() -> None:
    steps = StepCosts(Curve({(0, 1): STEP, (0, 9): 1.4 * STEP}))
    rounds = RoundCosts(steps, longest=8)
    for took in np.linspace(1.4, 4, 60):
        rounds.observe(int(took * STEP), 8, 0)
    assert rounds.round(8, 0) > 3.5 * STEP
    assert steps.step(0) == pytest.approx(STEP)


def test_an_outlier_moves_a_level_little_and_a_lasting_change_much() -> None:
    level = Level()
    for _ in range(20):
        level.observe(10)
    level.observe(1000)
    assert level.value == pytest.approx(10, rel=0.3)
    for _ in range(40):
        level.observe(1000)
    assert level.value == pytest.approx(1000, rel=0.1)
