"""Stochastic verification: a whole block is judged on the device, and the host reads the result with the proposal.

Every position of the output has numbers of its own: one that decides on acceptance and, if the round ends there, one
draw of the target's. A position is judged once, so no number serves twice. p is taken from the logits that the block's
forward gave, q from the very tensor that the drafter drew from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runtime.sampling import Sampling, draw
from runtime.speculative.verification import find_residual, is_accepted


@dataclass(frozen=True, slots=True)
class Verdict:
    """Lazily (1,) each: how many leading tokens stand, the target's own token after them, and whether q(y) > 0 for
    every judged y (where it is not, q is not what was drawn from).
    """

    accepted: Any
    token: Any
    is_sound: Any

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        """All three, to be read or waited for together."""
        return self.accepted, self.token, self.is_sound


def judge(logits: Any, tokens: Any, q: Any, sampling: Sampling, position: int) -> Verdict:
    """Judge `tokens` (n,) that are to follow one another from `position` of the output on.

    logits: (n + 1, vocab), the last row for the bonus; or (n, vocab), and then nothing can be said after n accepted
    tokens. q: (n, vocab), or None for a point mass.
    """
    import mlx.core as mx

    p = sampling.distribution(logits)
    keys = sampling.keys("target", range(position, position + p.shape[0]))
    n = tokens.shape[0]
    if n == 0:
        return Verdict(mx.array([0]), draw(p, keys[0]), mx.array([1]))
    chances = mx.array(sampling.chances(range(position, position + n)))
    accepted, weights, is_sound = settle(p, tokens, q, chances)
    return Verdict(accepted, draw(weights, mx.take(keys, _last(accepted, p), axis=0)[0]), is_sound)


def settle(p: Any, tokens: Any, q: Any, chances: Any) -> tuple[Any, Any, Any]:
    """How many of `tokens` (n,), n > 0, stand (1,), what the token after them is drawn from (1, vocab), and whether
    q is sound (1,).
    """
    import mlx.core as mx

    n = tokens.shape[0]
    at = tokens[:, None].astype(mx.int32)
    q_said = mx.ones(n) if q is None else mx.take_along_axis(q, at, axis=-1)[:, 0]
    stands = is_accepted(mx.take_along_axis(p[:n], at, axis=-1)[:, 0], q_said, chances)
    accepted = mx.sum(mx.cumprod(stands.astype(mx.int32)), keepdims=True)
    rejected = mx.minimum(accepted, n - 1)
    if q is None:
        q_there = (mx.arange(p.shape[-1])[None] == mx.take(at, rejected, axis=0)).astype(mx.float32)
    else:
        q_there = mx.take(q, rejected, axis=0)
    weights = find_residual(mx.take(p, _last(accepted, p), axis=0), q_there * (accepted < n)[:, None])
    return accepted, weights, mx.all(q_said > 0, keepdims=True).astype(mx.int32)


def _last(accepted: Any, p: Any) -> Any:
    """The row of `p` that the round ends at."""
    import mlx.core as mx

    return mx.minimum(accepted, p.shape[0] - 1)


def take_q(q: Any, proposed: int, vocab_size: int) -> Any:
    """A proposal's q as a float32 array (proposed, vocab_size), or None; tokens that the drafter lacks have no mass.

    Raises ValueError for another shape.
    """
    import mlx.core as mx

    if q is None:
        return None
    rows = mx.array(q, mx.float32) if isinstance(q, (list, tuple)) else q.astype(mx.float32)
    if rows.ndim != 2 or rows.shape[0] != proposed or rows.shape[1] > vocab_size:
        raise ValueError(f"q of shape {tuple(rows.shape)} where ({proposed}, {vocab_size}) was wanted")
    return mx.pad(rows, [(0, 0), (0, vocab_size - rows.shape[1])]) if rows.shape[1] < vocab_size else rows
