"""`roundscope report`: what was recorded, as a page for people or as the rows of a query."""

from __future__ import annotations

from pathlib import Path

import click

from runtime.cli.options import DEFAULT_STORE, store_option
from runtime.cli.output import Form, output_options, say_notes, write_rows
from telemetry.errors import UsageError

DEFAULT_QUERIES = {"speculation": "verdict", "ncm": "ncm_cache"}


@click.command(
    "report",
    epilog="""\b
Examples:
  roundscope report
  roundscope report stages --run 20260314T101500
  roundscope report verdict --json
  roundscope report --html report.html
""",
)
@click.argument("name", required=False)
@click.option(
    "--run", "run_id", metavar="ID", help="Which run, by its id or the beginning of it. [default: the latest]"
)
@store_option
@click.option(
    "--html", "page", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with charts to FILE."
)
@click.option(
    "--generation", metavar="ID", help="Which generation the page shows round by round. [default: a typical one]"
)
@click.option("--archive-only", is_flag=True, help="Read the archive's Parquet files as they are, and nothing else.")
@output_options
def command(
    name: str | None,
    run_id: str | None,
    store: Path,
    page: Path | None,
    generation: str | None,
    archive_only: bool,
    form: Form,
) -> None:
    """Show what a run found; works while it is still going on.

    Without NAME: what was run, whether it pays and why, whether the record is whole, and what to type next; with --json
    or --csv, the rows of `verdict`, or of `ncm_cache` for a run of `roundscope ncm run`. NAME is one of baseline_drift,
    break_even, break_even_surface, compare, completeness, context_growth, controller, decisions, draft_length,
    drafters, history, memory, ncm_cache, ncm_exit, overlap, ranks, seconds_per_token, slowest_rounds, stages, survival,
    trim_and_rewind, verdict, verify_cost, where_time_goes; docs/queries.md says what their columns mean. With --html
    the same goes into one file that needs no network, with charts, for a browser or print.
    """
    if page is not None and (name or form != "table"):
        raise UsageError("--html is about the whole run: leave NAME, --json and --csv out")
    if page is None and generation is not None:
        raise UsageError("--generation goes with --html FILE; in the terminal: roundscope show ID")
    from dashboards.report import find_kind, render_report, require_kind, resolve_run, say_undelivered
    from queries import find, install_views, run
    from telemetry.store import connect, connect_archive

    query = find(name) if name else None
    with (connect_archive if archive_only else connect)(store, prepare=install_views) as connected:
        say_notes(connected.notes)
        chosen = resolve_run(connected.con, run_id)
        if page is not None:
            from dashboards.page import render_page, write_page

            write_page(page, render_page(connected.con, chosen, generation, store))
            click.echo(f"wrote {page}", err=True)
            return
        if query is None and form == "table":
            from rich.console import Console

            render_report(connected.con, chosen, Console(), None if store == DEFAULT_STORE else str(store))
            for said in say_undelivered(connected.con, chosen, store):
                click.echo(f"note: {said}", err=True)
            return
        query = query or find(DEFAULT_QUERIES[find_kind(connected.con, chosen)])
        require_kind(connected.con, chosen, query)
        latest = "run_id" if any(variable.name == "run_id" for variable in query.variables) else "run_b"
        result = run(connected.con, query.name, **{latest: chosen})
        write_rows(result.columns, result.rows, form)
