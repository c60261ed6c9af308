"""The report for a terminal: what was run, whether it pays and why, whether the record is whole, what to type next."""

from __future__ import annotations

from dashboards.report.delivery import say_undelivered
from dashboards.report.ncm import render_ncm
from dashboards.report.page import render_report, render_verdict
from dashboards.report.recommendation import Recommendation, recommend
from dashboards.report.runs import RunSummary, find_kind, list_runs, require_kind, resolve_run

__all__ = [
    "Recommendation",
    "RunSummary",
    "find_kind",
    "list_runs",
    "recommend",
    "render_ncm",
    "render_report",
    "render_verdict",
    "require_kind",
    "resolve_run",
    "say_undelivered",
]
