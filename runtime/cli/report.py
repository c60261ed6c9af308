"""`roundscope report`: what was recorded, as a page for people or as the rows of a query."""

from __future__ import annotations

from pathlib import Path

import click

from runtime.cli.output import Form, output_options, write_rows
from runtime.cli.run import DEFAULT_STORE

DEFAULT_QUERIES = {"speculation": "verdict", "ncm": "ncm_cache"}


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

    Without NAME: what was run, whether it pays and why, whether the record is whole, and what to type next; with --json
    or --csv, the rows of `verdict`, or of `ncm_cache` for a run of `roundscope ncm run`. NAME is one of break_even,
    completeness, ncm_cache, ncm_exit, seconds_per_token, stages, survival, verdict; docs/queries.md says what their
    columns mean.
    """
    from dashboards.report import find_kind, render_report, require_kind, resolve_run
    from queries import find, install_views, run
    from telemetry.store import connect

    query = find(name) if name else None
    with connect(store, prepare=install_views) as connected:
        for note in connected.notes:
            click.echo(f"note: {note}", err=True)
        chosen = resolve_run(connected.con, run_id)
        if query is None and form == "table":
            from rich.console import Console

            render_report(connected.con, chosen, Console(), None if store == DEFAULT_STORE else str(store))
            return
        query = query or find(DEFAULT_QUERIES[find_kind(connected.con, chosen)])
        require_kind(connected.con, chosen, query)
        result = run(connected.con, query.name, run_id=chosen)
        write_rows(result.columns, result.rows, form)
