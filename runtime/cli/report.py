"""`roundscope report`: what was recorded, as a page for people or as the rows of a query."""

from __future__ import annotations

from pathlib import Path

import click

from runtime.cli.output import Form, output_options, write_rows
from runtime.cli.run import DEFAULT_STORE


@click.command(
    "report",
    epilog="""\b
Examples:
  roundscope report
  roundscope report stages --run 20260314T101500
  roundscope report verdict --json
""",
)
@click.argument("name", required=False)
@click.option(
    "--run", "run_id", metavar="ID", help="Which run, by its id or the beginning of it. [default: the latest]"
)
@click.option("--store", type=click.Path(path_type=Path), default=DEFAULT_STORE, show_default=True, metavar="DIR")
@output_options
def command(name: str | None, run_id: str | None, store: Path, form: Form) -> None:
    """Show what a run found; works while it is still going on.

    Without NAME: what was run, whether each arm pays and why, whether the record is whole, and what to type next; with
    --json or --csv, the rows of `verdict`. NAME is one of baseline_drift, break_even,
    break_even_surface, compare, completeness, context_growth, draft_length, history, memory, seconds_per_token,
    slowest_rounds, stages, survival, trim_and_rewind, verdict, verify_cost, where_time_goes; docs/queries.md says what
    their columns mean.
    """
    from dashboards.report import render_report, resolve_run
    from queries import find, install_views, run
    from telemetry.store import connect

    query = find(name or "verdict")
    with connect(store, prepare=install_views) as connected:
        for note in connected.notes:
            click.echo(f"note: {note}", err=True)
        chosen = resolve_run(connected.con, run_id)
        if name is None and form == "table":
            from rich.console import Console

            render_report(connected.con, chosen, Console(), None if store == DEFAULT_STORE else str(store))
        else:
            latest = "run_id" if any(variable.name == "run_id" for variable in query.variables) else "run_b"
            result = run(connected.con, query.name, **{latest: chosen})
            write_rows(result.columns, result.rows, form)
