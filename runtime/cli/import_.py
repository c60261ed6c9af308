"""`roundscope import`: spans that were exported elsewhere, back into a store."""

from __future__ import annotations

from pathlib import Path

import click

from runtime.cli.options import store_option
from runtime.cli.output import write_document
from telemetry.errors import RoundscopeError


@click.command(
    "import",
    epilog="""\b
Example:
  roundscope import spans.otlp.json --store ./elsewhere
""",
)
@click.argument("file", type=click.Path(path_type=Path))
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def command(file: Path, store: Path, as_json: bool) -> None:
    """Write the generations of an OTLP-JSON file into a journal of the store, from which the tables are made.

    Only spans that roundscope exported are taken, and only if the records made from them would give the same spans
    again and the tables take them; all others are refused, and counted by reason. Generations that the store has
    already are left as they are. Spans hold neither text nor the environment of the run. Exit code 1 if something was
    refused, or if the journal could not be written as a whole: then nothing is taken.
    """
    from telemetry.importing import import_file

    result = import_file(file, store)
    if as_json:
        document = {"generations": result.n_taken, "generations_already_there": result.n_known}
        write_document({**document, "spans_refused": dict(result.refused)})
    else:
        click.echo(f"generations: {result.n_taken} taken, {result.n_known} were there already")
    if result.refused:
        told = "; ".join(f"{n} because: {reason}" for reason, n in result.refused.most_common())
        raise RoundscopeError(f"spans or documents that were refused: {told}")
