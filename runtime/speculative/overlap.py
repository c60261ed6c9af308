"""1 - TV(p, q) of what was judged: how often the residual rule accepts, as p and q themselves say it.

It is the sum over the vocabulary of min(p, q), and p(y) where the proposal is the point mass at y. It is measured after
the round, in attributed timing only, so that no time that is compared has it.
"""

from __future__ import annotations

from typing import Any

from runtime.device import read_floats
from runtime.protocols import Proposal
from runtime.rounds import OpenRound
from runtime.sampling import Sampling
from runtime.speculative.stochastic import take_q


class OverlapMeter:
    """Keeps the logits of a round's positions until the round is over."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._rows: list[Any] = []

    def note(self, logits: Any) -> None:
        """The logits (n, vocab) of the next n positions of the round."""
        self._rows.append(logits)

    def measure(self, open_round: OpenRound, proposal: Proposal) -> None:
        """Write the sum over the round's judged positions, and how many they were, into the round; nothing if none."""
        import mlx.core as mx

        rows, self._rows = self._rows, []
        n = min(open_round.accepted + 1, open_round.proposed - open_round.cut)
        if n < 1:
            return
        p = self._sampling.distribution(mx.concatenate(rows)[:n])
        q = take_q(proposal.q, open_round.proposed, p.shape[-1])
        found = read_floats(measure_overlap(p, mx.array(open_round.proposal[:n]), None if q is None else q[:n]))
        open_round.overlap, open_round.overlap_positions = sum(found), n


def measure_overlap(p: Any, tokens: Any, q: Any) -> Any:
    """1 - TV(p, q) of each row (n,): p and q (n, vocab), or q None for point masses at `tokens` (n,)."""
    import mlx.core as mx

    if q is None:
        return mx.take_along_axis(p, tokens[:, None].astype(mx.int32), axis=-1)[:, 0]
    return mx.minimum(mx.sum(mx.minimum(p, q), axis=-1), 1.0)
