"""`roundscope export`: what was recorded, as spans by OTLP or in files, as Parquet files, or as a timeline."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtime.cli.options import store_option
from runtime.cli.output import say_notes, write_document
from runtime.cli.sending import describe, otlp_option
from telemetry.errors import RoundscopeError, UsageError

if TYPE_CHECKING:
    from telemetry.exporting import Counts
    from telemetry.store import Connected
    from telemetry.stored import Stored


@click.command(
    "export",
    epilog="""\b
Examples:
  roundscope export --otlp http://127.0.0.1:4318
  roundscope export --otlp-json spans.otlp.json --run 20260314T101500
  roundscope export --parquet ./tables
  roundscope export --timeline trace.json --run 20260314T101500
""",
)
@otlp_option
@click.option("--otlp-json", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write spans to a file.")
@click.option(
    "--parquet", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Write tables and spans to DIR."
)
@click.option(
    "--timeline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a Chrome trace, for Perfetto or speedscope.",
)
@click.option("--run", "run_id", metavar="ID", help="One run only, by its id or the beginning of it. [default: all]")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def command(
    otlp: str | None,
    file: Path | None,
    folder: Path | None,
    timeline: Path | None,
    run_id: str | None,
    store: Path,
    as_json: bool,
) -> None:
    """Export every generation that is over and that the destination does not have yet.

    What a destination has is noted in the store, so an export can be repeated at any time: it goes on where it stopped.
    A generation that still goes on, or that waits to be compared, is left for the next time. Exit code 1 if spans could
    not be delivered or were refused; docs/spans.md says what they contain. A timeline is written anew each time.
    """
    if sum(destination is not None for destination in (otlp, file, folder, timeline)) != 1:
        raise UsageError("name one destination: --otlp, --otlp-json FILE, --parquet DIR or --timeline FILE")
    if folder is not None and folder.is_file():
        raise UsageError(f"--parquet {folder} is a file, and tables are written to a folder: name another")
    from dashboards.report import resolve_run
    from queries import install_views
    from telemetry.store import connect
    from telemetry.stored import Stored

    with connect(store, prepare=install_views) as connected:
        say_notes(connected.notes)
        if run_id is not None:
            run_id = resolve_run(connected.con, run_id)
        stored = Stored(connected.con, run_id)
        if timeline is not None:
            _to_timeline(connected, stored, timeline, run_id, as_json)
            return
        if folder is not None:
            counts = _to_parquet(connected, stored, store, folder)
        elif file is not None:
            counts = _to_file(stored, store, file)
        else:
            counts = _to_receiver(stored, store, otlp or None)
    _say(counts, stored.n_open, as_json)
    faults = []
    if again := counts.refused - counts.for_good + counts.failed:
        faults.append(f"{again} spans were not taken; the same command tries them again")
    if counts.for_good:
        faults.append(f"{counts.for_good} spans were refused for good by this receiver; another one may take them")
    if faults:
        raise RoundscopeError("; ".join(faults))


def _to_receiver(stored: Stored, store: Path, endpoint: str | None) -> Counts:
    from telemetry.exporting import export
    from telemetry.ledger import Ledger
    from telemetry.otlp import Sender

    with closing(Sender(endpoint)) as sender, Ledger(store, sender.endpoint) as ledger:
        return export(stored.read(), sender, ledger)


def _to_file(stored: Stored, store: Path, path: Path) -> Counts:
    from telemetry.exporting import JsonFile, export
    from telemetry.ledger import Ledger

    afresh = not path.exists()
    with closing(JsonFile(path)) as file, Ledger(store, str(path.resolve()), afresh=afresh, alone=True) as ledger:
        return export(stored.read(), file, ledger)


def _to_parquet(connected: Connected, stored: Stored, store: Path, folder: Path) -> Counts:
    from telemetry.exporting import export_parquet
    from telemetry.ledger import Ledger

    with Ledger(store, str(folder.resolve()), afresh=not folder.exists(), alone=True) as ledger:
        return export_parquet(connected.con, folder, stored.read(), ledger)


def _to_timeline(connected: Connected, stored: Stored, path: Path, run_id: str | None, as_json: bool) -> None:
    from dashboards.timeline import find_start, write_timeline

    n = write_timeline(path, stored.read(), find_start(connected.con, run_id))
    if as_json:
        write_document({"generations": n, "generations_still_open": stored.n_open})
    else:
        click.echo(f"generations: {n} on the timeline, {stored.n_open} are not over yet")


def _say(counts: Counts, n_open: int, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {
            "sent": counts.sent,
            "refused": counts.refused,
            "failed": counts.failed,
            "reasons": dict(counts.reasons),
            "generations_already_there": counts.already,
            "generations_not_sampled": counts.unsampled,
            "generations_still_open": n_open,
        }
        write_document(document)
        return
    click.echo(describe(counts.sent, counts.refused, counts.failed, counts.reasons))
    click.echo(
        f"generations: {counts.already} were there already, {counts.unsampled} are of traces that are not sampled, "
        f"{n_open} are not over yet"
    )
