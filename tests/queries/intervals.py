"""The statistics of an interval in plain Python: the t quantile, the error over classes, the percentile bootstrap."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Error:
    """The standard error of a mean of influences, and its degrees of freedom."""

    value: float
    df: int

    def half_width(self, comparisons: int = 1) -> float:
        """Of the 95 % interval."""
        return t_975(self.df, comparisons) * self.value


def stratify(classes: Sequence[str | None]) -> list[list[int]]:
    """The prompts of each class by their places; single ones and those without a class together."""
    counted = Counter(classes)
    strata = defaultdict(list)
    for place, class_ in enumerate(classes):
        strata[class_ if class_ is not None and counted[class_] > 1 else None].append(place)
    return [strata[name] for name in sorted(strata, key=lambda name: (name is None, name or ""))]


def find_error(d: Sequence[float], classes: Sequence[str | None]) -> Error:
    """Of the mean of `d` if classes are fixed and their prompts random; `d` sums to 0."""
    parts = []
    for places in stratify(classes):
        values = [d[place] for place in places]
        variance = statistics.variance(values) if len(values) > 1 else values[0] ** 2
        parts.append((len(values) * variance, max(len(values) - 1, 1)))
    total, squares = math.fsum(v for v, _ in parts), math.fsum(v * v / df for v, df in parts)
    df = int(total**2 / squares + 1e-6) if squares else len(d) - 1
    return Error(math.sqrt(total) / len(d), df)


def bootstrap(
    samples: tuple[list[float], ...], classes: Sequence[str | None], seed: int, resamples: int
) -> tuple[float | None, float | None]:
    """The percentile interval of the speedup over prompts resampled within their classes; none under 48."""
    n = len(samples[0])
    strata = stratify(classes)
    alike = [places for places in strata for _ in places]
    if n < 48:
        return None, None
    speedups = []
    for b in range(resamples):
        digests = [hashlib.md5(f"{seed}|{b}|{k}".encode()).hexdigest() for k in range(0, n, 4)]
        words = [int(digest[8 * q : 8 * q + 8], 16) for digest in digests for q in range(4)]
        drawn = [places[word % len(places)] for places, word in zip(alike, words, strict=False)]
        t_s, c_s, t_o, c_o = (sum(values[i] for i in drawn) for values in samples)
        speedups.append((t_o / c_o) / (t_s / c_s))
    cuts = statistics.quantiles(speedups, n=40, method="inclusive")
    return cuts[0], cuts[-1]
