"""What the next token is drawn from, and by which randomness: one implementation for ordinary decoding, for
verification and for the drafters that sample.

p comes from the logits after the logits processors, in the order of mlx-lm's samplers: top-p, min-p and top-k judge
the distribution that the logits stand for, then what they keep is sharpened or flattened by the temperature. Each of
the three is a floor under the logits, so tokens that tie at the floor are kept or dropped together.

Randomness comes in four streams that never meet (what the target draws, what the drafter draws, the latent that its
draws are given, what decides on acceptance), each keyed by the seed and the position in the output. So what a drafter
does moves nobody else's numbers: with nothing proposed a generation is ordinary sampling's, token for token, and every
one can be repeated.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, TypeAlias

from runtime.ncm.temperature import COLDEST, is_temperature
from telemetry.errors import UsageError

if TYPE_CHECKING:
    import mlx.core as mx

Stream: TypeAlias = Literal["target", "drafter", "latent", "acceptance"]

SEED_BITS = 63
"""A seed fits a BIGINT of the store."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. UsageError for what defines no distribution.

    temperature: divides the logits; above 0. top_k: only the k likeliest; 0: all. top_p: only the smallest set of
    likeliest tokens with that much mass; 1: all. min_p: only tokens with that share of the likeliest one's probability;
    0: all. seed: of the four streams.
    """

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature or not is_temperature(self.temperature):
            raise UsageError(
                f"temperature is {self.temperature}; it must be 0 (greedy decoding) or a number from {COLDEST:g} up"
            )
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}; it must be a whole number, 0 (every token) or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (every token)")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min_p is {self.min_p}; it must be from 0 (every token) to 1")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**SEED_BITS:
            raise UsageError(f"seed is {self.seed}; it must be a whole number from 0 to 2**{SEED_BITS} - 1")

    def distribution(self, logits: mx.array) -> mx.array:
        """p (n, vocab) in float32, normalised, from logits (n, vocab); rows do not depend on one another."""
        import mlx.core as mx

        logits = logits.astype(mx.float32)
        best = mx.max(logits, axis=-1, keepdims=True)
        # A logit may be infinite (a processor that forces a token), and inf - inf is no number.
        scaled = mx.where(logits == best, 0.0, (logits - best) / self.temperature)
        for floor in self._floors(logits, best):
            scaled = mx.where(logits < floor, -mx.inf, scaled)
        return mx.softmax(scaled, axis=-1, precise=True)

    def _floors(self, logits: mx.array, best: mx.array) -> list[mx.array]:
        """For every option that acts, the smallest logit (n, 1) that it keeps."""
        import mlx.core as mx

        floors, candidates = [], logits
        if 0 < self.top_k < logits.shape[-1]:
            candidates = mx.topk(logits, self.top_k, axis=-1)
            floors.append(mx.min(candidates, axis=-1, keepdims=True))
        if self.top_p < 1:
            ordered = -mx.sort(-candidates, axis=-1)  # 4 ms over 49,152 tokens on a CPU; few where top_k acts too
            masses = mx.exp(ordered - mx.logsumexp(logits, axis=-1, keepdims=True))
            mass_above = mx.cumsum(masses, axis=-1, inclusive=False)
            floors.append(mx.min(mx.where(mass_above < self.top_p, ordered, mx.inf), axis=-1, keepdims=True))
        if self.min_p:
            floors.append(best + math.log(self.min_p))
        return floors

    def choose(self, logits: mx.array, position: int) -> mx.array:
        """The token (1,) at `position` of the output, from its logits (1, vocab), by the target's stream."""
        return draw(self.distribution(logits), self.keys("target", [position])[0])

    def keys(self, stream: Stream, positions: Sequence[int]) -> mx.array:
        """A key of mlx's generator for each position of the output: (n, 2)."""
        import mlx.core as mx

        digests = [self._digest(stream, position) for position in positions]
        words = [[int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")] for digest in digests]
        return mx.array(words, mx.uint32)

    def chances(self, positions: Sequence[int]) -> list[float]:
        """A number from [0, 1) for each position of the output, from the acceptance stream; below 1 in float32 too."""
        digests = [self._digest("acceptance", position) for position in positions]
        return [min(int.from_bytes(digest[:8], "big") / 2**64, 1 - 2**-24) for digest in digests]

    def _digest(self, stream: Stream, position: int) -> bytes:
        return sha256(f"{self.seed} {stream} {position}".encode()).digest()


def draw(weights: mx.array, key: mx.array) -> mx.array:
    """Ids (1,) drawn in proportion to non-negative `weights` (1, vocab), which need not add up to one.

    The first of exponential clocks to ring, each as fast as its token's weight. The early ones come from numbers near
    0, which are fine-grained in float32; the Gumbel maximum, equal on paper, takes its winners from numbers near 1.
    """
    import mlx.core as mx

    clocks = -mx.log1p(-mx.random.uniform(shape=weights.shape, key=key))
    return mx.argmax(weights / mx.maximum(clocks, 1e-37), axis=-1)


def make_sampling(
    temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int | None = None
) -> Sampling | None:
    """The options as a `Sampling`, with a fresh seed unless there is one; None for greedy decoding, temperature 0.

    Raises UsageError for what `Sampling` refuses, and for options that greedy decoding would ignore.
    """
    if temperature:
        return Sampling(temperature, top_k, top_p, min_p, secrets.randbits(SEED_BITS) if seed is None else seed)
    given = {"top_k": top_k != 0, "top_p": top_p != 1, "min_p": min_p != 0, "seed": seed is not None}
    if ignored := [name for name, is_given in given.items() if is_given]:
        raise UsageError(
            f"{', '.join(ignored)} would have no effect: temperature 0 always takes the likeliest token; give a "
            "temperature, or leave it out"
        )
    return None
