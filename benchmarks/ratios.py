"""Paired ratios and their intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean, stdev

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Quantile 0.975 of Student's t at 1 to 15 degrees of freedom; 2.131 is on the safe side beyond."""


@dataclass(frozen=True)
class Ratio:
    """A ratio with its 95 % interval over `n` pairs, or blocks."""

    value: float
    low: float
    high: float
    n: int
    what: str = "pairs"

    def __str__(self) -> str:
        return f"{self.value:.3f} (95 % {self.low:.3f} to {self.high:.3f}, {self.n} {self.what})"


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """sum(numerators) / sum(denominators), pairs being independent (delta method, Student's t)."""
    n, over, under = len(numerators), mean(numerators), mean(denominators)
    value = over / under
    influences = [a / over - b / under for a, b in zip(numerators, denominators, strict=True)]
    half = T_975[min(n - 1, len(T_975)) - 1] * stdev(influences) / math.sqrt(n)
    return Ratio(value, value * math.exp(-half), value * math.exp(half), n)


def blocked_ratio(
    measure: Callable[[Sequence[float]], float],
    numerators: Sequence[Sequence[float]],
    denominators: Sequence[Sequence[float]],
    *,
    draws: int = 1000,
) -> Ratio:
    """`measure` of all numerators over that of all denominators.

    Interval: percentiles of a bootstrap that draws whole blocks, as what disturbs one of a block's values disturbs its
    neighbours (Efron and Tibshirani, An Introduction to the Bootstrap, 1993).
    """
    chance = random.Random(0)

    def draw(blocks: Sequence[Sequence[float]]) -> list[float]:
        return [value for block in chance.choices(blocks, k=len(blocks)) for value in block]

    ratios = sorted(measure(draw(numerators)) / measure(draw(denominators)) for _ in range(draws))
    value = measure(list(chain(*numerators))) / measure(list(chain(*denominators)))
    low, high = ratios[round(0.025 * draws)], ratios[round(0.975 * draws) - 1]
    return Ratio(value, low, high, len(numerators), "blocks")
