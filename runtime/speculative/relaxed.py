"""Relaxed acceptance: more of a proposal stands than exactness allows. Its output is not the target's, nor is it
distributed as the target's.

A proposed token y stands if p(y) is above the limit of its position. p is what sampling draws from, after processors
and filters; in greedy decoding it is the logits' softmax, and the argmax stands whatever its p. What the drafter drew
from does not matter. The first token that does not stand is replaced by the target's own, as is the one after a wholly
accepted proposal: in greedy decoding the argmax, at a temperature a draw from p, by the target's stream.

    threshold=T                        limit T
    typical[,epsilon=E][,delta=D]      limit min(E, D exp(-H(p))), H the entropy in nats: typical acceptance of Medusa
                                       (Cai et al., arXiv:2401.10774, section 2.3.1)

With typical acceptance the argmax always stands, for D below 1: exp(-H) is never above the largest p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from runtime.sampling import Sampling, draw
from runtime.speculative.stochastic import Verdict
from telemetry.errors import UsageError

EXACT = "exact"
PREFIX = "relaxed:"
EPSILON, DELTA = 0.09, 0.3
"""Medusa's: delta is the root of epsilon."""

_USAGE = f"{EXACT}, {PREFIX}threshold=T, or {PREFIX}typical, which takes ,epsilon=E and ,delta=D"


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A rule of acceptance that is not exact. threshold: T. epsilon, delta: of `typical`. All from 0 to below 1."""

    kind: Literal["threshold", "typical"]
    threshold: float = 0.0
    epsilon: float = EPSILON
    delta: float = DELTA

    @property
    def rule(self) -> str:
        """The rule in full, as records have it."""
        if self.kind == "threshold":
            return f"threshold={self.threshold:g}"
        return f"typical,epsilon={self.epsilon:g},delta={self.delta:g}"

    def find_limits(self, p: Any) -> Any:
        """For every row of p (n, vocab), what a token's mass has to be above: (n, 1)."""
        import mlx.core as mx

        if self.kind == "threshold":
            return mx.full((p.shape[0], 1), self.threshold)
        logs = mx.log(mx.where(p > 0, p, 1.0))
        entropy = -mx.sum(p * logs, axis=-1, keepdims=True)
        return mx.minimum(self.epsilon, self.delta * mx.exp(-entropy))


def parse_policy(text: str) -> Relaxed | None:
    """The rule of `relaxed:...`; None for `exact`. UsageError for anything else."""
    if text == EXACT:
        return None
    kind, *settings = text.removeprefix(PREFIX).split(",") if text.startswith(PREFIX) else [""]
    name, _, value = kind.partition("=")
    given = dict(setting.partition("=")[::2] for setting in settings)
    if name == "threshold" and not settings:
        return Relaxed("threshold", threshold=_read_share(text, name, value))
    if kind == "typical" and given.keys() <= {"epsilon", "delta"} and len(given) == len(settings):
        return Relaxed("typical", **{key: _read_share(text, key, said) for key, said in given.items()})
    raise UsageError(f"policy {text!r} is none: write {_USAGE}")


def _read_share(text: str, name: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        raise UsageError(f"policy {text!r}: {name} is {value!r}, which is no number; write {_USAGE}") from None
    if not 0 <= share < 1:
        raise UsageError(f"policy {text!r}: {name} is {share:g}; it must be from 0 to below 1")
    return share


def judge_relaxed(logits: Any, tokens: Any, relaxed: Relaxed, sampling: Sampling | None, position: int) -> Verdict:
    """Judge `tokens` (n,) that are to follow one another from `position` of the output on, as `stochastic.judge` does.

    logits: (n + 1, vocab), or (n, vocab) where nothing has to follow n accepted tokens. sampling None: greedy.
    """
    import mlx.core as mx

    p = (sampling or Sampling(1.0)).distribution(logits)
    n, rows = tokens.shape[0], p.shape[0]
    accepted = mx.array([0])
    if n:
        at = tokens[:, None].astype(mx.int32)
        stands = mx.take_along_axis(p[:n], at, axis=-1) > relaxed.find_limits(p[:n])
        if sampling is None:
            stands = stands | (mx.argmax(logits[:n], axis=-1, keepdims=True) == at)
        accepted = mx.sum(mx.cumprod(stands[:, 0].astype(mx.int32)), keepdims=True)
    last = mx.minimum(accepted, rows - 1)
    if sampling is None:
        token = mx.argmax(mx.take(logits, last, axis=0), axis=-1)
    else:
        keys = sampling.keys("target", range(position, position + rows))
        token = draw(mx.take(p, last, axis=0), mx.take(keys, last, axis=0)[0])
    return Verdict(accepted, token, mx.array([1]))
