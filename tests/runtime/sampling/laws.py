"""What the output of sampling must be distributed as, and how to tell: exactly by enumeration, or by chi-square.

Nothing here takes a probability from the package: exact laws are sums over paths in fractions, and expected
frequencies come from the caller's own p.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from runtime.speculative import verification

Path = tuple[int, ...]
Conditional = Mapping[Path, Sequence[Fraction]]
"""By what was said so far, the probability of every next token."""

LIMIT = 4.0
"""Normal deviations up to which frequencies count as what was expected: with fixed seeds, nothing is left to luck."""


@dataclass(frozen=True)
class Rule:
    """The rule under test, or a mutant of it.

    shares_chance: one number decides on all positions of a block. drawn_from: what the drafter really draws from,
    given the q that it claims.
    """

    is_accepted: Callable[[Any, Any, Any], Any] = verification.is_accepted
    find_residual: Callable[[Any, Any], Any] = verification.find_residual
    shares_chance: bool = False
    drawn_from: Callable[[Sequence[Fraction]], Sequence[Fraction]] = tuple


def flatten_by_two(q: Sequence[Fraction]) -> Sequence[Fraction]:
    """q at half the temperature: squared and normalised."""
    squares = [value * value for value in q]
    return [value / sum(squares) for value in squares]


MUTANTS = {
    "no residual": Rule(find_residual=lambda p, q: p),
    "p and q swapped in the ratio": Rule(is_accepted=lambda p, q, chance: verification.is_accepted(q, p, chance)),
    "p and q swapped in the residual": Rule(find_residual=lambda p, q: verification.find_residual(q, p)),
    "one number used twice": Rule(shares_chance=True),
    "q of another temperature": Rule(drawn_from=flatten_by_two),
    "accept everything": Rule(is_accepted=lambda p, q, chance: p == p),
}


def chain(p: Conditional, length: int) -> dict[Path, Fraction]:
    """The law of the first `length` tokens of the target itself."""
    law = {(): Fraction(1)}
    for _ in range(length):
        law = {(*path, token): mass * p[path][token] for path, mass in law.items() for token in range(len(p[path]))}
    return law


def enumerate_round(p: Conditional, q: Conditional, m: int, rule: Rule) -> dict[Path, Fraction]:
    """The law of the first m + 1 tokens when a block of m is proposed and judged, and p says the rest.

    Every path is walked: each block that q can draw, each pattern of acceptance, each token that may follow.
    """
    law: dict[Path, Fraction] = defaultdict(Fraction)
    for block in product(range(len(q[()])), repeat=m):
        drawn = math.prod((rule.drawn_from(q[block[:i]])[token] for i, token in enumerate(block)), start=Fraction(1))
        if not drawn:
            continue
        for accepted, chance in _judge(p, q, block, rule):
            if not chance:
                continue
            said = block[:accepted]
            weights = np.array(p[said], dtype=object)
            if accepted < m:
                weights = rule.find_residual(weights, np.array(q[said], dtype=object))
            for token, weight in enumerate(weights):
                if weight:
                    mass = drawn * chance * weight / weights.sum()
                    for path, share in _go_on(p, (*said, token), m + 1):
                        law[path] += mass * share
    return {path: mass for path, mass in law.items() if mass}


def _judge(p: Conditional, q: Conditional, block: Path, rule: Rule) -> Iterator[tuple[int, Fraction]]:
    """How many tokens of the block stand, and with what chance: the rule is asked at every point of a grid on which
    all ratios lie, so that shares of points are exact.
    """
    masses = [(p[block[:i]][token], q[block[:i]][token]) for i, token in enumerate(block)]
    steps = math.lcm(*(ratio.denominator for a, b in masses if a and b for ratio in (a / b, b / a)))
    grid = [Fraction(k, steps) for k in range(steps)]
    stands = [[bool(rule.is_accepted(a, b, chance)) for chance in grid] for a, b in masses]
    if rule.shares_chance:
        counts = [next((i for i, row in enumerate(stands) if not row[k]), len(block)) for k in range(steps)]
        yield from ((count, Fraction(counts.count(count), steps)) for count in set(counts))
        return
    reached = Fraction(1)
    for count, row in enumerate(stands):
        share = Fraction(sum(row), steps)
        yield count, reached * (1 - share)
        reached *= share
    yield len(block), reached


def _go_on(p: Conditional, path: Path, length: int) -> Iterator[tuple[Path, Fraction]]:
    if len(path) >= length:
        yield path, Fraction(1)
        return
    for token, share in enumerate(p[path]):
        yield from ((whole, share * rest) for whole, rest in _go_on(p, (*path, token), length))


def deviate(observed: Sequence[int], expected: Sequence[Sequence[float]], groups: Sequence[Any] | None = None) -> float:
    """How far tokens are from being drawn from `expected`, one row of probabilities for each, in normal deviations.

    The sum over the tokens of a group of (what was drawn - what was expected), weighed by its covariance, is
    asymptotically chi-square, whatever each row depends on: a martingale's central limit theorem. The transformation
    to a normal deviate is Wilson and Hilferty's (1931). groups: by default all tokens are one.
    """
    sums: dict[Any, tuple[np.ndarray, np.ndarray]] = {}
    for index, (token, row) in enumerate(zip(observed, expected, strict=True)):
        p = np.asarray(row, float)
        d, covariance = sums.get(None if groups is None else groups[index], (0.0, 0.0))
        hit = np.eye(len(p))[token]
        sums[None if groups is None else groups[index]] = (d + hit - p, covariance + np.diag(p) - np.outer(p, p))
    if any(row[token] <= 0 for token, row in zip(observed, expected, strict=True)):
        return math.inf  # a token that cannot be
    statistic, freedom = 0.0, 0
    for d, covariance in sums.values():
        statistic += d @ np.linalg.pinv(covariance, rcond=1e-9, hermitian=True) @ d
        freedom += int(np.linalg.matrix_rank(covariance, rtol=1e-9, hermitian=True))
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))
