"""`roundscope check`: does a run's verdict hold what is required of it? An exit code for CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from runtime.cli.options import store_option
from runtime.cli.output import say_notes
from telemetry.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from dashboards.report.rows import Row

KINDS = ("pays", "not-loses", "equal", "complete")


@click.command(
    epilog="""\b
Examples:
  roundscope check --require pays:copy-edit
  roundscope check --require 'not-loses:all:prompt-lookup m=8' --require equal --require complete
"""
)
@click.option(
    "--require",
    "requirements",
    multiple=True,
    required=True,
    metavar="WHAT",
    help="pays or not-loses, then :CLASS and :ARM if not all is meant; equal; or complete. Repeatable.",
)
@click.option("--run", "run_id", metavar="ID", help="Which run, by its id or its beginning. [default: the latest]")
@store_option
def command(requirements: tuple[str, ...], run_id: str | None, store: Path) -> None:
    """Exit with 3 and the reason unless the run is what is required.

    \b
    pays[:CLASS[:ARM]]       an arm that is exact and can be used pays on the class; ARM: that one does
    not-loses[:CLASS[:ARM]]  every such arm, or ARM, has a verdict, and it is not `loses`
    equal                    outputs were compared, and differ from ordinary decoding's at near ties alone; samples and
                             relaxed policies have none to compare
    complete                 the run ended, and no generation, round or line of it is missing
    """
    from dashboards.report import require_kind, resolve_run
    from queries import find, install_views
    from telemetry.store import connect

    wanted = [_parse(text) for text in requirements]
    with connect(store, prepare=install_views) as connected:
        say_notes(connected.notes)
        chosen = resolve_run(connected.con, run_id)
        if any(kind != "complete" for kind, *_ in wanted):
            require_kind(connected.con, chosen, find("verdict"))
        faults = [fault for one in wanted if (fault := find_fault(connected.con, chosen, *one))]
    if faults:
        raise CheckFailed(f"run {chosen}: {'; '.join(faults)}")
    click.echo(f"run {chosen}: {', '.join(requirements)} holds", err=True)


def _parse(text: str) -> tuple[str, str, str | None]:
    kind, _, rest = text.partition(":")
    class_, _, arm = rest.partition(":")
    if kind not in KINDS or (rest and kind in ("equal", "complete")):
        raise UsageError(
            f"--require {text!r} is no requirement: write pays or not-loses, then :CLASS or :CLASS:ARM if not all is "
            "meant; or equal, or complete"
        )
    return kind, class_ or "all", arm or None


def find_fault(con: DuckDBPyConnection, run_id: str, kind: str, class_: str, arm: str | None) -> str | None:
    """Why a requirement does not hold of a run; None if it does. UsageError: it is about what the run does not have."""
    from dashboards.report.rows import fetch

    if kind == "complete":
        return _find_gap(con, fetch(con, "completeness", run_id), run_id)
    rows = fetch(con, "verdict", run_id)
    if kind == "equal":
        return _find_difference([row for row in rows if row["class"] == "all"], fetch(con, "completeness", run_id))
    return _find_verdict(rows, kind, class_, arm)


def _find_verdict(rows: list[Row], kind: str, class_: str, arm: str | None) -> str | None:
    from dashboards.report.recommendation import is_usable

    about = [row for row in rows if row["class"] == class_ and arm in (None, row["arm"])]
    if rows and not about:
        raise UsageError(
            f"--require {':'.join(filter(None, (kind, class_, arm)))}: the run has no such class or arm; it has the "
            f"classes {', '.join(sorted({row['class'] for row in rows}))} and the arms "
            f"{', '.join(sorted({row['arm'] for row in rows}))}"
        )
    if arm is None:
        about = [row for row in about if is_usable(row)]
    if not about:
        known = sorted({(row["arm"], row["class"]) for row in rows})
        listed = ", ".join(f"{class_}:{arm}" for arm, class_ in known)
        asked = class_ if arm is None else f"{class_}:{arm}"
        return f"no arm that is exact and can be used was measured as {asked}; there are: {listed or 'none'}"
    told = ", ".join(f"{row['arm']} {row['verdict'] or 'has no verdict'}" for row in about)
    holds = (
        any(row["verdict"] == "pays" for row in about)
        if kind == "pays"
        else all(row["verdict"] in ("pays", "indistinguishable") for row in about)
    )
    return None if holds else f"{kind} on {class_} does not hold: {told}"


def _find_difference(rows: list[Row], counted: list[Row]) -> str | None:
    if not any(row["n_compared"] for row in rows):
        return f"no output was compared with ordinary decoding's{_explain_none(counted)}"
    faulty = [f"{row['arm']} in {row['n_divergent']} of {row['n_compared']}" for row in rows if row["n_divergent"]]
    return f"outputs differ from ordinary decoding's at no near tie: {', '.join(faulty)}" if faulty else None


def _explain_none(counted: list[Row]) -> str:
    """Why there was nothing to compare, from the rows of `completeness`."""
    run = next(row for row in counted if row["arm"] == "all")
    if run["n_sampled"]:
        return ": the run sampled, so outputs are draws from one distribution; leave `equal` out"
    return ": its arms are relaxed, and not exact" if run["n_relaxed"] else ""


def _find_gap(con: DuckDBPyConnection, rows: list[Row], run_id: str) -> str | None:
    from dashboards.report.completeness import say_completeness

    found = con.execute("select outcome from runs where run_id = ?", [run_id]).fetchone()
    outcome = found[0] if found else None
    gaps = [said.rstrip(".") for said, is_warning in say_completeness(rows) if is_warning]
    if outcome != "complete":
        gaps.insert(0, f"the run's outcome is {outcome or 'not recorded'}")
    return f"the record is not complete: {'; '.join(gaps)}" if gaps else None
