"""`roundscope archive`: what is old goes from the journals into Parquet partitions."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runtime.cli.output import write_document
from runtime.cli.run import DEFAULT_STORE

if TYPE_CHECKING:
    from telemetry.archiving import Archived


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
    type=click.DateTime(formats=["%Y-%m-%d"]),
    required=True,
    metavar="DATE",
    help="Archive what was over before this day began, in UTC.",
)
@click.option("--store", type=click.Path(path_type=Path), default=DEFAULT_STORE, show_default=True, metavar="DIR")
@click.option("--dry-run", is_flag=True, help="Only say what would be archived.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def command(before: datetime, store: Path, dry_run: bool, as_json: bool) -> None:
    """Move what old journals hold into Parquet files under STORE/archive, and delete those journals.

    A journal is archived as a whole, once its process has ended and all that it holds was over before DATE; journals
    with parts of one run go together. What was written is read back and compared with the rows before a journal is
    deleted. Reports, queries and exports show what is archived as before. If this command is broken off, the next one
    goes on. docs/archive.md describes the files.
    """
    from telemetry.archiving import archive_before

    done = archive_before(store, before.date(), dry_run=dry_run)
    for note in done.notes:
        click.echo(f"note: {note}", err=True)
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
