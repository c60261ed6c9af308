"""`roundscope sql`: any question to the recorded tables, in SQL."""

from __future__ import annotations

from pathlib import Path

import click

from runtime.cli.options import store_option
from runtime.cli.output import Form, output_options, read_text, say_notes, write_rows


@click.command(
    "sql",
    epilog="""\b
Examples:
  roundscope sql "from runs select run_id, model, outcome"
  roundscope sql "summarize rounds"
  roundscope sql "from generations select arm, count(*), max(peak_memory_bytes) group by arm" --csv
  roundscope sql - < question.sql
""",
)
@click.argument("statement")
@store_option
@click.option("--archive-only", is_flag=True, help="Read the archive's Parquet files as they are, and nothing else.")
@output_options
def command(statement: str, store: Path, archive_only: bool, form: Form) -> None:
    """Ask the tables of the store anything, in DuckDB's SQL; `-` reads the question from standard input.

    The tables are runs, generations, rounds, ncm_generations, levels, journals, rejected and waiting, and the views of
    the queries; `describe` and docs/records.md say what their columns mean. Nothing can be written, and neither files
    nor the network can be reached. Several statements may be given, such as `set variable run_id = '...'` before a
    query that reads it; the rows are those of the last.
    """
    from queries import ask, install_views
    from telemetry.archive import FOLDER
    from telemetry.store import connect, connect_archive, restrict

    text = read_text(statement)
    with (connect_archive if archive_only else connect)(store, prepare=install_views) as connected:
        say_notes(connected.notes)
        restrict(connected.con, store / FOLDER if archive_only else None)
        result = ask(connected.con, text)
    write_rows(result.columns, result.rows, form)
