"""The two objectives of drafters that learn, over what the target holds likely where it wrote a token.

`disagreement` is the cross entropy of the target's distribution, which a greedy proposal agrees with once its likeliest
token is the target's. `misalignment` is the total variation between the distributions that target and drafter sample
from: one less what verification accepts. DistillSpec (Zhou et al., arXiv:2310.08461) compares such divergences, finds
histories by the target as good as the drafter's own where forward KL is taken, and total variation to be what
acceptance is.

Places are n rows: logits (n, vocab) over the drafter's tokens, and labels: ids (n, k) among them with the target's
probabilities p (n, k), those of an id that it cannot say being zero. A token known alone is a row of one id and p = 1.
"""

from __future__ import annotations

import mlx.core as mx

LEAST_MASS = 1e-6


def disagreement(logits: mx.array, ids: mx.array, p: mx.array, weights: mx.array | None = None) -> mx.array:
    """-sum p log q in nats, the mean over the mass of p, which `weights` (n,) weigh: q = softmax(logits)."""
    log_q = mx.take_along_axis(logits, ids, axis=-1) - mx.logsumexp(logits, axis=-1, keepdims=True)
    p = p if weights is None else p * weights[..., None]
    return -(p * log_q).sum() / mx.maximum(p.sum(), LEAST_MASS)


def misalignment(
    logits: mx.array, ids: mx.array, p: mx.array, temperature: float, weights: mx.array | None = None
) -> mx.array:
    """1 - sum min(p, q), the mean over rows, which `weights` (n,) weigh: q = softmax(logits / temperature), and p at
    that temperature. What the target holds likely and has no label counts as never accepted.
    """
    q = mx.take_along_axis(mx.softmax(logits / temperature, axis=-1), ids, axis=-1)
    apart = 1 - mx.minimum(p, q).sum(axis=-1)
    if weights is None:
        return apart.mean()
    return (apart * weights).sum() / mx.maximum(weights.sum(), LEAST_MASS)
