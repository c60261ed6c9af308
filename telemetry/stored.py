"""Generations as they were recorded, back from a store's tables.

Rows of the tables hold what records held, so the records can be made again, whether the journals are still there or
were archived.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import duckdb
import msgspec
from msgspec import Struct

from telemetry.grouping import UNCACHED, Recorded
from telemetry.ncm_records import LevelRecord, NcmComparison, NcmEnd, NcmRecord
from telemetry.records import ComparisonRecord, GenerationEnd, GenerationRecord, RoundRecord
from telemetry.schema import quote
from telemetry.tables import describe_fields

AT_ONCE = 200
R = TypeVar("R", bound=Struct)

# Open: its process may still be writing. A generation of a run that goes on is open until it was compared, too.
_WANTED = """
    SELECT g.*, {open} AS is_open
    FROM {table} AS g
    LEFT JOIN journals AS j ON g.journal = j.journal
    WHERE
        ($run_id::VARCHAR IS NULL OR starts_with(g.run_id, $run_id))
        AND ($generation_id::VARCHAR IS NULL OR g.generation_id = $generation_id)
    ORDER BY g.started_wall_ns, g.generation_id
"""
_OPEN = "coalesce(g.finish_reason IN ('running', 'unknown'), false)"
_COMPARED = """
    coalesce(
        j.writer = 'running' AND g.pair_id IS NULL AND g.finish_reason IN ('stop', 'length')
        AND g.run_id IN (SELECT run_id FROM runs WHERE outcome IS NULL) AND g.drafter IS NOT NULL AND NOT g.warm_up,
        false
    )
"""
_NCM_COMPARED = f"""
    coalesce(
        j.writer = 'running' AND g.pair_id IS NULL AND g.finish_reason IN ('complete', 'exited')
        AND EXISTS (
            FROM runs AS r
            WHERE r.run_id = g.run_id AND r.outcome IS NULL AND list_contains(r.arms, {quote(UNCACHED)} || g.arm)
        ) AND g.cache AND NOT g.warm_up,
        false
    )
"""


class Stored:
    """The generations of a store, of one run (its id, or the beginning of it) or of all, in the order of their start.

    With `generation_id` that one alone. `n_open` counts, once they were read, those that are left out because they may
    still be going on.
    """

    def __init__(
        self, con: duckdb.DuckDBPyConnection, run_id: str | None = None, generation_id: str | None = None
    ) -> None:
        self._con = con
        self._wanted = {"run_id": run_id, "generation_id": generation_id}
        self.n_open = 0

    def read(self) -> Iterator[Recorded]:
        """Every generation that is over."""
        yield from self._read(GenerationRecord, GenerationEnd, "generations", RoundRecord, "rounds", '"index"')
        yield from self._read(NcmRecord, NcmEnd, "ncm_generations", LevelRecord, "levels", "level")

    def _read(
        self,
        start: type[GenerationRecord | NcmRecord],
        end: type[GenerationEnd | NcmEnd],
        table: str,
        part: type[RoundRecord | LevelRecord],
        parts: str,
        order: str,
    ) -> Iterator[Recorded]:
        is_open = f"{_OPEN} OR {_COMPARED if start is GenerationRecord else _NCM_COMPARED}"
        rows = self._fetch(_WANTED.format(table=table, open=is_open), self._wanted)
        wanted = [row for row in rows if not row["is_open"]]
        self.n_open += len(rows) - len(wanted)
        for first in range(0, len(wanted), AT_ONCE):
            some = wanted[first : first + AT_ONCE]
            found: dict[str, list[Any]] = defaultdict(list)
            for row in self._fetch(
                f"SELECT * FROM {parts} WHERE list_contains($ids, generation_id) ORDER BY {order}",
                {"ids": [row["generation_id"] for row in some]},
            ):
                found[row["generation_id"]].append(_make(part, row))
            for row in some:
                yield _put_together(row, start, end, found[row["generation_id"]])

    def _fetch(self, sql: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        cursor = self._con.execute(sql, parameters)
        names = [name for name, *_ in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _put_together(
    row: Mapping[str, Any],
    start: type[GenerationRecord | NcmRecord],
    end: type[GenerationEnd | NcmEnd],
    parts: list[Any],
) -> Recorded:
    recorded = Recorded(_make(start, row))
    (recorded.levels if start is NcmRecord else recorded.rounds).extend(parts)
    if row["total_ns"] is not None:
        recorded.end = _make(end, row)
    if row["pair_id"] is not None:
        recorded.comparison = _make(NcmComparison, row) if start is NcmRecord else _make(ComparisonRecord, row)
    return recorded


def _make(kind: type[R], row: Mapping[str, Any]) -> R:
    names = [field.name for field in describe_fields(kind)]
    return msgspec.convert({name: row[name] for name in names if row[name] is not None}, kind)
