"""What a dashboard shows, as plain data: its panels in rows, each with its question, unit and queries.

Every ratio is a ratio of sums, as all figures of roundscope are; docs/metrics.md says what the metrics mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

JOB = 'job=~"$job"'
FUSED = f'{JOB}, timing="fused", warm_up="false"'
"""Rounds whose times are true as they stand."""
ATTRIBUTED = f'{JOB}, timing="attributed", warm_up="false"'
"""Rounds whose shares are true."""


@dataclass(frozen=True)
class Shown:
    """A panel. explanation: what to see in it. unit: Grafana's name. queries: PromQL, each with its legend."""

    title: str
    explanation: str
    unit: str
    queries: Sequence[tuple[str, str]]
    kind: Literal["timeseries", "stat"] = "timeseries"


@dataclass(frozen=True)
class Dashboard:
    """A dashboard: the name of its file, its title, what it is for, and its rows of panels by their headings."""

    name: str
    title: str
    purpose: str
    rows: Sequence[tuple[str, Sequence[Shown]]]


def rate(metric: str, selector: str, by: str) -> str:
    """Growth a second of a counter, summed over all labels but `by`."""
    return f"sum by ({by}) (rate(roundscope_{metric}{{{selector}}}[$__rate_interval]))"


def total(metric: str, selector: str, by: str) -> str:
    """A counter since counting began, summed over all labels but `by`."""
    return f"sum by ({by}) (roundscope_{metric}{{{selector}}})"


def over(above: str, below: str) -> str:
    """A ratio."""
    return f"{above} / {below}"


def ratio_of_rates(above: str, below: str, selector: str, by: str) -> str:
    """How much of the counter `above` there is for each of `below` of late, both by the same labels."""
    return over(rate(above, selector, by), rate(below, selector, by))


def ratio_of_totals(above: str, below: str, selector: str, by: str) -> str:
    """The same since counting began."""
    return over(total(above, selector, by), total(below, selector, by))


def quantile(q: float, metric: str, selector: str, by: str) -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', selector, f'{by}, le')})"
