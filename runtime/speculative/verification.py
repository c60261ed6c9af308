"""The rules of verification: how much of a proposal stands, and what follows it.

Greedy: the longest prefix of the proposal that equals the target's argmax is accepted, and one token of the target's
follows: its correction at the first mismatch, or a bonus if there is none (Stern, Shazeer and Uszkoreit,
arXiv:1811.03115; greedy case of Leviathan, Kalman and Matias, arXiv:2211.17192). What the target says beyond
a mismatch was computed on a history that never came to be, and is not looked at.

Stochastic: a token y drawn from q is accepted with min(1, p(y) / q(y)), and the first that is not is corrected by a
draw from the positive part of p - q, so that the output is distributed as the target's own (Leviathan, Kalman and
Matias, arXiv:2211.17192, section 2.3; Chen et al., arXiv:2302.01318). `is_accepted` and `find_residual` are that rule,
written so that it runs over the device's arrays and, in tests, over exact fractions; `runtime.speculative.stochastic`
applies it to a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from telemetry.fields import Coupling, Outcome


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


def name_rule(coupling: Coupling | None, relaxation: str | None) -> str:
    """What an arm's name ends in, where it is not the default rule: of a relaxed one, that it is not exact."""
    if relaxation is not None:
        return f" (not exact, relaxed:{relaxation})"
    return " equality" if coupling == "equality" else ""


def is_accepted(p: Any, q: Any, chance: Any) -> Any:
    """Whether a token of mass `p` by the target stands that was drawn with mass `q`; chance: uniform in [0, 1)."""
    return chance * q < p


def find_residual(p: Any, q: Any) -> Any:
    """What a rejected token is corrected from: the positive part of p - q (n, vocab), not normalised.

    Where nothing is left, because p equals q and only rounding could reject, it is p.
    """
    excess = (p - q) * (p > q)
    return excess + p * (excess.sum(axis=-1, keepdims=True) == 0)
