"""Puts the report together and prints it on a rich console."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dashboards.report.completeness import say_completeness
from dashboards.report.control import say_controllers
from dashboards.report.heading import describe_run
from dashboards.report.ncm import render_ncm
from dashboards.report.printing import STYLES, make_grid, say
from dashboards.report.ranks import say_ranks
from dashboards.report.recommendation import choose, say_draft_lengths
from dashboards.report.rows import POOLED, Row, fetch
from dashboards.report.runs import NCM, find_kind, list_runs
from dashboards.report.sentences import say_arm, say_break_even, say_overlap, say_proposers

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def render_report(con: DuckDBPyConnection, run_id: str, console: Console, store: str | None = None) -> None:
    """The whole report of a run: heading, verdicts, recommendation, and what to type next (for the store `store`)."""
    for run in list_runs(con, run_id)[:1]:
        console.print(make_grid(describe_run(run)))
        console.print()
    if find_kind(con, run_id) == NCM:
        render_ncm(con, run_id, console)
        following = [name for name in ("ncm_cache", "ncm_exit", "completeness") if fetch(con, name, run_id)]
    else:
        rows = fetch(con, "verdict", run_id)
        _render_arms(rows, con, run_id, console)
        console.print()
        say(console, choose(rows).sentence, "bold")
        following = ["stages", "survival", "seconds_per_token"]
    options = shlex.join(["--run", run_id, *(["--store", store] if store else [])])
    console.print("\nNext:")
    for name in following:
        # A command to paste is not broken over lines.
        console.print(Text(f"  roundscope report {name} {options}"), soft_wrap=True)


def render_verdict(con: DuckDBPyConnection, run_id: str, console: Console) -> None:
    """What a run found: each arm in words and as a table by class, break-even, and whether the record is whole."""
    _render_arms(fetch(con, "verdict", run_id), con, run_id, console)


def _render_arms(rows: Sequence[Row], con: DuckDBPyConnection, run_id: str, console: Console) -> None:
    break_even = {(row["arm"], row["class"]): row for row in fetch(con, "break_even", run_id)}
    if not rows:
        say(console, "No drafter was measured in this run, so there is nothing to compare ordinary decoding with.")
    for arm, group in groupby(rows, key=lambda row: row["arm"]):
        of_arm = list(group)
        say(console, say_arm(of_arm), STYLES[next(row["verdict"] for row in of_arm if row["class"] == POOLED)])
        console.print(_make_table(of_arm))
        if said := say_break_even(break_even[arm, POOLED]):
            say(console, said)
        console.print()
    lengths = fetch(con, "draft_length", run_id)
    for paragraph in (
        list(say_draft_lengths(lengths)),
        list(say_controllers(fetch(con, "controller", run_id), lengths)),
        list(say_proposers(fetch(con, "drafters", run_id))),
    ):
        for said in paragraph:
            say(console, said)
        if paragraph:
            console.print()
    if overlaps := [row for row in fetch(con, "overlap", run_id) if row["class"] == POOLED]:
        for row in overlaps:
            say(console, say_overlap(row))
        console.print()
    for line, is_warning in (
        *say_completeness(fetch(con, "completeness", run_id)),
        *say_ranks(fetch(con, "ranks", run_id)),
    ):
        say(console, line, "yellow" if is_warning else "")


def _make_table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True, header_style="dim")
    table.add_column("class", overflow="fold")
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("speedup", justify="right", no_wrap=True)
    table.add_column("95 %\ninterval", no_wrap=True)
    table.add_column("ms a\ntoken", justify="right", no_wrap=True)
    table.add_column("accepted\na round", justify="right", no_wrap=True)
    table.add_column("limited by")
    for row in rows:
        table.add_row(*_format_row(row))
    return table


def _format_row(row: Row) -> Iterator[Text]:
    low, high = row["speedup_low"], row["speedup_high"]
    yield Text(row["class"], style="bold" if row["class"] == POOLED else "")
    yield Text(str(row["n_prompts"]))
    yield Text(row["verdict"] or "-", style=STYLES[row["verdict"]])
    yield Text(_format(row["speedup"]))
    yield Text("-" if low is None else f"{low:.2f}-{high:.2f}")
    yield Text(_format(row["seconds_per_token"], 1e3))
    yield Text(_format(row["accepted_per_round"]))
    yield Text(row["limited_by"] or "-")


def _format(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:.2f}"
