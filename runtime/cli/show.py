"""`roundscope show`: one generation, a round or a level a line."""

from __future__ import annotations

from pathlib import Path

import click

from runtime.cli.options import store_option
from runtime.cli.output import say_notes


@click.command(
    "show",
    epilog="""\b
Examples:
  roundscope show latest
  roundscope show 3f2a91
""",
)
@click.argument("generation")
@store_option
def command(generation: str, store: Path) -> None:
    """Print what happened in a generation; works while it is still going on.

    GENERATION is its id, a beginning of it that no other shares, or `latest`. A line a round: the proposal, what was
    committed, how much of it was accepted, and the times; token ids where --record-text kept them, shapes where not. Of
    a coarse-to-fine generation a line a level.
    """
    from dashboards.report.generations import read_generation
    from dashboards.report.rounds import show_generation
    from telemetry.store import connect

    with connect(store) as connected:
        say_notes(connected.notes)
        for line in show_generation(read_generation(connected.con, generation)):
            click.echo(line)
