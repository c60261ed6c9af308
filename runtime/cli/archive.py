"""`roundscope archive`: what is old goes from the journals into Parquet partitions."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtime.cli.options import store_option
from runtime.cli.output import say_notes, write_document

if TYPE_CHECKING:
    from telemetry.archiving import Archived


class _Day(click.ParamType[date]):
    """A calendar day, as YYYY-MM-DD."""

    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        """The day of that text."""
        try:
            return datetime.strptime(value, "%Y-%m-%d").date()
        except ValueError:
            self.fail(f"{value!r} is no day: write it as YYYY-MM-DD, for instance 2026-10-01", param, ctx)


@click.command(
    "archive",
    epilog="""\b
Examples:
  roundscope archive --before 2026-10-01 --dry-run
  roundscope archive --before 2026-10-01
""",
)
@click.option(
    "--before",
    type=_Day(),
    required=True,
    metavar="DATE",
    help="Archive what was over before this day began, in UTC.",
)
@store_option
@click.option("--dry-run", is_flag=True, help="Only say what would be archived.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def command(before: date, store: Path, dry_run: bool, as_json: bool) -> None:
    """Move what old journals hold into Parquet files under STORE/archive, and delete those journals.

    A journal is archived as a whole, once its process has ended and all that it holds was over before DATE; journals
    with parts of one run go together. What was written is read back and compared with the rows before a journal is
    deleted. Reports, queries and exports show what is archived as before. If this command is broken off, the next one
    goes on. docs/archive.md describes the files.
    """
    from telemetry.archiving import archive_before

    done = archive_before(store, before, dry_run=dry_run)
    say_notes(done.notes)
    if as_json:
        from msgspec.structs import asdict

        write_document(asdict(done) | {"dry_run": dry_run})
    else:
        _say(done, dry_run)


def _say(done: Archived, dry_run: bool) -> None:
    if done.n_finished:
        click.echo(f"deleted {done.n_finished} journals that were archived earlier")
    verb = "would archive" if dry_run else "archived"
    size = f"{done.journal_bytes:,} bytes"
    click.echo(f"{verb} {done.journals} journals, {size if dry_run else f'{size} as {done.archive_bytes:,}'}")
    for table, n_rows in done.rows.items():
        click.echo(f"  {table}: {n_rows:,}")
    for reason, n in done.left.items():
        click.echo(f"left {n}: {reason}")
