"""Quantiles of Student's t at any probability; the views have the one that verdicts need."""

from __future__ import annotations

import math

_HALVINGS = 100
"""Bisections of the angle: more than a double has bits."""


def t_quantile(probability: float, df: int) -> float:
    """The quantile of Student's t with `df` degrees of freedom (1 or more); `probability` from 0.5 to below 1.

    With t = sqrt(df) tan(a), the probability within +-t is a finite sum for whole df (Abramowitz and Stegun 26.7.3 and
    26.7.4), which grows with the angle a: it is found by bisection.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        angle = (low + high) / 2
        if _within(angle, df) < 2 * probability - 1:
            low = angle
        else:
            high = angle
    return math.sqrt(df) * math.tan(low)


def _within(angle: float, df: int) -> float:
    """The probability between -t and t."""
    square = math.cos(angle) ** 2
    odd = df % 2
    term = math.cos(angle) if odd else 1.0
    total = term if df > 1 else 0.0
    for k in range(2 + odd, df - 1, 2):
        term *= square * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total
