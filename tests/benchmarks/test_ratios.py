"""Ratios of the benchmarks: their values, and intervals that take whole blocks as what is drawn."""

from __future__ import annotations

from statistics import median

from benchmarks.ratios import Ratio, blocked_ratio


def test_the_ratio_of_known_blocks() -> None:
    """A thousand equal values of a block are one thing that was drawn: the interval reaches from block to block."""
    assert blocked_ratio(median, [[4.0, 6.0, 5.0]], [[2.0], [3.0]]).value == 2.0
    wide = blocked_ratio(median, [[1.0] * 1000, [2.0] * 1001, [3.0] * 1000], [[1.0]] * 3)
    assert wide == Ratio(2.0, 1.0, 3.0, 3, "blocks")
    assert str(wide) == "2.000 (95 % 1.000 to 3.000, 3 blocks)"
