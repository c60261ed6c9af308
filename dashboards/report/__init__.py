"""The report for a terminal: what was run, whether it pays and why, whether the record is whole, what to type next."""

from __future__ import annotations

from dashboards.report.page import render_report, render_verdict
from dashboards.report.recommendation import Recommendation, recommend
from dashboards.report.runs import RunSummary, list_runs, resolve_run

__all__ = [
    "Recommendation",
    "RunSummary",
    "list_runs",
    "recommend",
    "render_report",
    "render_verdict",
    "resolve_run",
]
