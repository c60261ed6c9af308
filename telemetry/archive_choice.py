"""Which journals can be archived: those whose processes have ended, with all that they hold over before a moment.

Journals that have rows of the same run go together or not at all. Tables are looked at by what columns they have, so
that a new one takes part without being named here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import duckdb

from telemetry.schema import Layout, layouts
from telemetry.tables import TABLES

RECORDING = "their processes still record"
UNKNOWN = "whether their processes have ended is not known: they are another machine's, or have no first line"
LATER = "they hold what was not over before that day"
SHARED = "they have a part in a run of which another journal stays"


@dataclass
class Choice:
    """Journals that belong together, by name, in groups; and those that stay, by reason."""

    groups: list[list[str]] = field(default_factory=list)
    left: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def choose(con: duckdb.DuckDBPyConnection, before_wall_ns: int) -> Choice:
    """What of a store's tables, which are up to date, can be archived."""
    last = dict(con.execute(_find_last_moments()).fetchall())
    rows = con.execute("SELECT journal, writer FROM journals WHERE archived_in IS NULL ORDER BY journal").fetchall()
    reasons = {journal: _find_reason(writer, last[journal] < before_wall_ns) for journal, writer in rows}
    choice = Choice()
    for group in _group(list(reasons), con.execute(_find_runs()).fetchall()):
        stays = any(reasons[journal] for journal in group)
        if not stays:
            choice.groups.append(group)
        for journal in group if stays else ():
            choice.left[reasons[journal] or SHARED].append(journal)
    return choice


def _find_reason(writer: str, is_over: bool) -> str | None:
    if writer != "ended":
        return RECORDING if writer == "running" else UNKNOWN
    return None if is_over else LATER


def _group(journals: list[str], runs: list[tuple[str, str]]) -> list[list[str]]:
    """Journals in groups that share no run with each other; `runs` are pairs of journal and run."""
    leader = {journal: journal for journal in journals}

    def find(journal: str) -> str:
        while leader[journal] != journal:
            journal = leader[journal]
        return journal

    first: dict[str, str] = {}
    for journal, run_id in runs:
        if journal in leader:
            one, other = sorted((find(journal), find(first.setdefault(run_id, journal))))
            leader[other] = one
    groups: dict[str, list[str]] = defaultdict(list)
    for journal in journals:
        groups[find(journal)].append(journal)
    return list(groups.values())


def tables_with(*columns: str) -> list[Layout]:
    """The tables of records that have all these columns."""
    names = {table.name for table in TABLES}
    return [
        layout
        for layout in layouts()
        if layout.name in names and set(columns) <= {column.name for column in layout.columns}
    ]


def _find_runs() -> str:
    return " UNION ".join(
        f"SELECT journal, run_id FROM {layout.name} WHERE run_id IS NOT NULL" for layout in tables_with("run_id")
    )


def _find_last_moments() -> str:
    """A query for the last moment that each journal speaks of, in nanoseconds since the epoch."""
    moments = " UNION ALL ".join(
        [
            "SELECT journal, coalesce(created_wall_ns, 0) AS ns FROM journals",
            *(
                f"SELECT journal, {column.name} FROM {layout.name}"
                for layout in tables_with()
                for column in layout.columns
                if column.name.endswith("_wall_ns")
            ),
            *_find_ends(),
        ]
    )
    return f"SELECT journal, max(ns) FROM ({moments}) GROUP BY journal"


def _find_ends() -> Iterator[str]:
    """Ends of generations and of their parts, which count from the generation's start."""
    begun = tables_with("generation_id", "started_wall_ns")
    for layout in begun:
        if "total_ns" in {column.name for column in layout.columns}:
            yield f"SELECT journal, started_wall_ns + total_ns FROM {layout.name}"
    starts = " UNION ALL ".join(f"SELECT generation_id, started_wall_ns FROM {layout.name}" for layout in begun)
    for layout in tables_with("generation_id", "start_ns"):
        duration = next(column.name for column in layout.columns if column.name.startswith("t_"))
        yield (
            f"SELECT p.journal, g.started_wall_ns + p.ns FROM ({starts}) AS g JOIN (SELECT journal, generation_id, "
            f"max(start_ns + {duration}) AS ns FROM {layout.name} GROUP BY ALL) AS p USING (generation_id)"
        )
