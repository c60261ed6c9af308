"""Words and facts on a rich console, and the colours of verdicts: what the pages of both kinds of run share."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLES = {"pays": "green", "loses": "red", "indistinguishable": "yellow", None: "dim"}


def say(console: Console, text: str, style: str = "") -> None:
    """Prints words as they stand: what looks like markup in a name is none."""
    console.print(Text(text, style=style))


def make_grid(facts: Sequence[tuple[str, str]]) -> Table:
    """Names and facts in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, fact in facts:
        grid.add_row(name, Text(fact))
    return grid
