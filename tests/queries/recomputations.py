"""The rows of every query over one run in plain Python, by the query's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.queries import (
    recompute_control,
    recompute_costs,
    recompute_drafters,
    recompute_forecast,
    recompute_runs,
    recompute_times,
)
from tests.queries.recompute import Recomputed
from tests.queries.simulate import Row

FURTHER: dict[str, Callable[[Recomputed], Iterable[Row]]] = {
    "baseline_drift": recompute_times.baseline_drift,
    "break_even_surface": recompute_costs.break_even_surface,
    "context_growth": recompute_times.context_growth,
    "controller": recompute_control.controller,
    "decisions": recompute_control.decisions,
    "draft_length": recompute_forecast.draft_length,
    "drafters": recompute_drafters.drafters,
    "history": recompute_runs.history,
    "memory": recompute_times.memory,
    "slowest_rounds": recompute_times.slowest_rounds,
    "trim_and_rewind": recompute_times.trim_and_rewind,
    "verify_cost": recompute_costs.verify_cost,
    "where_time_goes": recompute_times.where_time_goes,
}

TWO_RUNS = ("compare",)
"""Queries that a single run gives nothing."""


def recompute(data: Recomputed, name: str) -> Iterable[Row]:
    """The rows of the query `name`, as `Recomputed` gives them."""
    rows: Iterable[Row] = FURTHER[name](data) if name in FURTHER else getattr(data, name)()
    return rows
