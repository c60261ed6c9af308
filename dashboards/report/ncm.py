"""The page about a run of a coarse-to-fine generator: does the prefix cache pay, does the verified exit?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dashboards.report.completeness import say_completeness
from dashboards.report.ncm_sentences import say_alone, say_cache, say_exit, say_memory, say_work
from dashboards.report.printing import STYLES, say
from dashboards.report.rows import POOLED, Row, fetch

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def render_ncm(con: DuckDBPyConnection, run_id: str, console: Console) -> None:
    """What such a run found: cache and exit in words, levels as a table, and whether the record is whole."""
    arms = fetch(con, "ncm_exit", run_id)
    # Who asked for one side alone is not told that there is no verdict.
    one_sided = not {"cache", "no-cache"} <= {row["arm"] for row in arms}
    rows = [row for row in fetch(con, "ncm_cache", run_id) if row["n_pairs"] or not one_sided]
    for pooled in (row for row in rows if row["level"] == POOLED):
        say(console, say_cache(pooled), STYLES[pooled["verdict"]])
        if pooled["n_pairs"]:
            say(console, say_work(pooled))
            say(console, say_memory(pooled))
    if levels := [row for row in rows if row["level"] != POOLED]:
        console.print()
        n_pairs = max(row["n_pairs"] for row in levels)
        say(console, f"By level, from {n_pairs} attributed pairs; positions are those of a layer and sample:", "dim")
        console.print(_make_table(levels))
    if rows:
        console.print()
    for row in (row for row in arms if row["against"] is None):
        say(console, say_alone(row))
    for row in (row for row in arms if row["against"] is not None):
        console.print()
        say(console, say_exit(row), STYLES[row["verdict"]])
    console.print()
    for line, is_warning in say_completeness(fetch(con, "completeness", run_id)):
        say(console, line, "yellow" if is_warning else "")


def _make_table(levels: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True, header_style="dim")
    for name in ("level", "ms\ncached", "ms\nuncached", "speedup", "positions\ncached", "positions\nuncached"):
        table.add_column(name, justify="right")
    for row in levels:
        table.add_row(
            row["level"],
            f"{row['cached_seconds'] * 1e3:.2f}",
            f"{row['uncached_seconds'] * 1e3:.2f}",
            Text(f"{row['speedup']:.2f}"),
            f"{row['cached_positions']:,.0f}",
            f"{row['uncached_positions']:,.0f}",
        )
    return table
