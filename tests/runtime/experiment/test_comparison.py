"""Outputs held against ordinary decoding's: equal, a near tie, or wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runtime.experiment.comparison import NEAR_TIE_TOLERANCE, Output, compare, find_divergence, find_round
from runtime.testing import ScriptedTarget
from telemetry.records import ComparisonRecord

TOLERANCE = NEAR_TIE_TOLERANCE["float32"]


def make_target(second_best: float) -> ScriptedTarget:
    """Prefers 1, then 2 by a chosen gap, then 0 by a wide one; the history [9, 1] alone has that row, others say 3."""

    def logits(history: Sequence[int]) -> list[float]:
        row = [0.0] * 10
        if list(history) == [9, 1]:
            row[1], row[2] = 5.0, 5.0 - second_best
        else:
            row[3] = 5.0
        return row

    return ScriptedTarget(logits=logits, vocab_size=10)


ORDINARY = Output("o", (1, 1, 3))


def compare_with(tokens: tuple[int, ...], gap: float) -> ComparisonRecord:
    return compare(make_target(gap), [9], ORDINARY, Output("s", tokens, (1, 2)))


def test_equal_outputs() -> None:
    assert compare_with((1, 1, 3), 1.0) == ComparisonRecord(generation_id="s", pair_id="o", equal=True)


def test_a_divergence_at_a_near_tie_names_round_and_gap() -> None:
    record = compare_with((1, 2, 3), TOLERANCE / 2)
    assert record == ComparisonRecord(
        generation_id="s",
        pair_id="o",
        equal=False,
        diverged_at=1,
        diverged_round=1,
        top2_gap=pytest.approx(TOLERANCE / 2, rel=1e-2),
        tolerance=TOLERANCE,
        near_tie=True,
    )


def test_a_divergence_at_a_wide_gap_is_none() -> None:
    record = compare_with((1, 2, 3), 2 * TOLERANCE)
    assert (record.diverged_at, record.near_tie) == (1, False)


def test_a_near_tie_of_two_does_not_excuse_a_third() -> None:
    record = compare_with((1, 0, 3), TOLERANCE / 2)
    assert (record.diverged_at, record.near_tie) == (1, False)


def test_an_output_that_ends_early_is_no_near_tie() -> None:
    record = compare_with((1,), TOLERANCE / 2)
    assert (record.equal, record.diverged_at, record.near_tie) == (False, 1, False)


def test_where_outputs_part() -> None:
    assert find_divergence([1, 2, 3], [1, 2, 4]) == 2
    assert find_divergence([1, 2], [1, 2, 4]) == 2
    assert find_divergence([], [1]) == 0


def test_which_round_committed_a_position() -> None:
    assert [find_round((2, 0, 3), position) for position in range(6)] == [0, 0, 2, 2, 2, None]
