"""Greedy verification: how much of a proposal the target would have said itself.

The longest prefix of the proposal that equals the target's argmax is accepted, and one token of the target's
follows: its correction at the first mismatch, or a bonus if there is none (Stern, Shazeer and Uszkoreit,
arXiv:1811.03115; greedy case of Leviathan, Kalman and Matias, arXiv:2211.17192). What the target says beyond
a mismatch was computed on a history that never came to be, and is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from telemetry.records import Outcome


def count_accepted(proposal: Sequence[int], predictions: Sequence[int]) -> int:
    """Length of the longest common prefix of the proposed ids and the target's argmax at the same positions."""
    for index, token in enumerate(proposal):
        if token != predictions[index]:
            return index
    return len(proposal)


def name_outcome(proposed: int, accepted: int) -> Outcome:
    """The kind of the target's own token that ends a round nothing else ended."""
    if proposed == 0:
        return "step"
    return "bonus" if accepted == proposed else "correction"
