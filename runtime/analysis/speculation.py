"""The residual rule of speculative sampling in exact fractions, on examples small enough to enumerate.

The rule (Leviathan, Kalman and Matias, arXiv 2211.17192, section 2.3): a token y drawn from the proposal q is accepted
with min(1, p(y) / q(y)), else one is drawn from the normalised positive part of p - q. Enumerated here are its output's
distribution, which must be the target's p, and its chance of acceptance, which must be 1 - TV(p, q).
These are checks of arithmetic: they say nothing about a sampler in floating point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

Distribution = Sequence[Fraction]
"""A probability for each token, in the order of their ids."""


@dataclass(frozen=True)
class Fixture:
    """A target p and a proposal q over the same tokens."""

    p: tuple[Fraction, ...]
    q: tuple[Fraction, ...]


def make_fixture(p: str, q: str) -> Fixture:
    """A fixture from two lists of fractions, such as `1/2 1/3 1/6`; ValueError unless both are distributions."""
    parsed = Fixture(parse_distribution(p), parse_distribution(q))
    if len(parsed.p) != len(parsed.q):
        raise ValueError(f"p has {len(parsed.p)} tokens and q {len(parsed.q)}")
    return parsed


def parse_distribution(text: str) -> tuple[Fraction, ...]:
    """The fractions in `text`; ValueError unless they are a distribution."""
    values = tuple(Fraction(word) for word in text.split())
    if sum(values) != 1 or min(values) < 0:
        raise ValueError(f"no distribution: {text}")
    return values


FIXTURES = {
    "zero support": make_fixture("1/2 1/2 0", "0 1/3 2/3"),
    "deterministic proposal": make_fixture("1/2 1/3 1/6", "0 1 0"),
    "equal distributions": make_fixture("1/4 1/4 1/2", "1/4 1/4 1/2"),
    "general": make_fixture("1/2 1/4 1/8 1/8", "1/8 1/2 1/4 1/8"),
}
"""Each side lacks a token of the other's; a point mass; nothing to correct; everything at once."""


def accept(p: Distribution, q: Distribution, token: int) -> Fraction:
    """The chance that `token`, which q can draw, is accepted."""
    return min(Fraction(1), p[token] / q[token])


def normalise_residual(p: Distribution, q: Distribution) -> tuple[Fraction, ...]:
    """What a rejection is corrected from; all zero where p and q are equal, and nothing can be rejected."""
    excess = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    total = sum(excess)
    return tuple(value / total if total else value for value in excess)


def enumerate_outcomes(p: Distribution, q: Distribution) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
    """For each token the mass that is accepted as it, and the mass that is corrected to it."""
    accepted = tuple(q[y] * accept(p, q, y) if q[y] else Fraction(0) for y in range(len(p)))
    rejected = 1 - sum(accepted)
    return accepted, tuple(rejected * value for value in normalise_residual(p, q))


def measure_distance(p: Distribution, q: Distribution) -> Fraction:
    """The total variation: half the L1 distance."""
    return sum((abs(a - b) for a, b in zip(p, q, strict=True)), Fraction(0)) / 2


@dataclass(frozen=True)
class Mixture:
    """A target over pairs of tokens and, by latent, a proposal for each of the two positions, independent given it.

    first: p of the first token. second: p of the second by the first. latents: weight, q of first and of second.
    """

    first: tuple[Fraction, ...]
    second: Mapping[int, tuple[Fraction, ...]]
    latents: tuple[tuple[Fraction, tuple[Fraction, ...], tuple[Fraction, ...]], ...]


MIXTURE = Mixture(
    parse_distribution("2/3 1/3"),
    {0: parse_distribution("1/4 3/4"), 1: parse_distribution("4/5 1/5")},
    (
        (Fraction(3, 7), parse_distribution("1/2 1/2"), parse_distribution("1/3 2/3")),
        (Fraction(4, 7), parse_distribution("1/6 5/6"), parse_distribution("9/10 1/10")),
    ),
)
"""Two tokens, two latents; neither latent's proposal is the target, and their mixture is not either."""


def list_pairs(mixture: Mixture) -> dict[tuple[int, int], Fraction]:
    """The target's probability of every pair of tokens."""
    tokens = range(len(mixture.first))
    return {(a, b): mixture.first[a] * mixture.second[a][b] for a, b in product(tokens, tokens)}


def enumerate_block(mixture: Mixture, latent: int) -> dict[tuple[int, int], Fraction]:
    """The law of the first two output tokens when a proposal of two, drawn given `latent`, is verified.

    Once the first is rejected its correction is what the second is conditioned on, and the second is the target's own.
    """
    _, q_first, q_second = mixture.latents[latent]
    accepted, corrected = enumerate_outcomes(mixture.first, q_first)
    law = {}
    for a in range(len(mixture.first)):
        kept, repaired = enumerate_outcomes(mixture.second[a], q_second)
        for b in range(len(mixture.first)):
            law[a, b] = accepted[a] * (kept[b] + repaired[b]) + corrected[a] * mixture.second[a][b]
    return law


def mix(mixture: Mixture) -> dict[tuple[int, int], Fraction]:
    """The same law over the drawn latent."""
    laws = [(weight, enumerate_block(mixture, z)) for z, (weight, *_) in enumerate(mixture.latents)]
    return {pair: sum((weight * law[pair] for weight, law in laws), Fraction(0)) for pair in laws[0][1]}


def expect_committed(alpha: Fraction, m: int) -> Fraction:
    """E[C] of a round of `m` proposed tokens, each accepted with `alpha` on its own: 1 + alpha + ... + alpha^m."""
    return sum((alpha**j for j in range(m + 1)), Fraction(0))


def enumerate_committed(alpha: Fraction, m: int) -> Fraction:
    """The same by going through all 2^m outcomes: the accepted ones in front count, and one token more."""
    total = Fraction(0)
    for outcome in product((True, False), repeat=m):
        chance = alpha ** sum(outcome) * (1 - alpha) ** (m - sum(outcome))
        total += chance * (1 + (outcome.index(False) if False in outcome else m))
    return total
