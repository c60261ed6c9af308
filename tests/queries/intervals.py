"""The statistics of an interval in plain Python: the t quantile and the percentile bootstrap."""

from __future__ import annotations

import hashlib
import math
import statistics
from functools import cache


@cache
def t_975(df: int, comparisons: int = 1) -> float:
    """The quantile of Student's t at 1 - 0.025 / comparisons by Simpson's rule and Newton's method.

    With t = sqrt(df) tan(a) the density is cos(a) ** (df - 1); the probability is concave in a: no step overshoots.
    """
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    weights = [1, *([4, 2] * 200)[:-1], 1]
    a = math.atan(1.9 / math.sqrt(df))
    while True:
        density = [math.cos(a * k / 400) ** (df - 1) for k in range(401)]
        half = scale * a / 400 / 3 * sum(w * v for w, v in zip(weights, density, strict=True))
        step = (0.5 - 0.025 / comparisons - half) / (scale * density[-1])
        a += step
        if abs(step) < 1e-13:
            return math.sqrt(df) * math.tan(a)


def bootstrap(samples: tuple[list[float], ...], seed: int, resamples: int) -> tuple[float | None, float | None]:
    """The percentile interval of the speedup over resampled prompts; none under 48."""
    n = len(samples[0])
    if n < 48:
        return None, None
    speedups = []
    for b in range(resamples):
        digests = [hashlib.md5(f"{seed}|{b}|{k}".encode()).hexdigest() for k in range(0, n, 4)]
        words = [int(digest[8 * q : 8 * q + 8], 16) % n for digest in digests for q in range(4)]
        t_s, c_s, t_o, c_o = (sum(values[i] for i in words[:n]) for values in samples)
        speedups.append((t_o / c_o) / (t_s / c_s))
    cuts = statistics.quantiles(speedups, n=40, method="inclusive")
    return cuts[0], cuts[-1]
