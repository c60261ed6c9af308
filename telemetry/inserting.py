"""Inserts batches of a journal's lines into the tables, with the note of how far the journal was read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import duckdb
import msgspec
from msgspec import Struct

from telemetry.bulk import Spool, insert, insert_carefully
from telemetry.reading import Batch, reject
from telemetry.schema import JournalRow, Layout, Rejected, Waiting, describe_columns, kind_name, layouts
from telemetry.tables import TABLES

REFUSALS = (
    duckdb.ConstraintException,
    duckdb.ConversionException,
    duckdb.InvalidInputException,
    duckdb.OutOfRangeException,
)
"""What DuckDB raises where a row does not fit."""

_LAYOUTS = {layout.name: layout for layout in layouts()}
OPENS: dict[type[Struct], Layout] = {table.opens: _LAYOUTS[table.name] for table in TABLES}
"""The table whose rows begin with lines of a kind."""

_ADDS = [kind for table in TABLES for kind in table.adds]
_encode = msgspec.json.Encoder().encode


@contextmanager
def transaction(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Commit what the block does, or nothing of it."""
    con.begin()
    try:
        yield
    except BaseException:
        with suppress(duckdb.Error):  # after a failed write there may be nothing left to roll back
            con.rollback()
        raise
    con.commit()


def insert_batches(con: duckdb.DuckDBPyConnection, group: list[Batch], spool: Spool, *, carefully: bool) -> None:
    """Insert what these batches hold, and note how far their journals were read.

    carefully: rows that do not fit become rejected lines; else they raise one of REFUSALS.
    """
    rejected = [row for batch in group for row in batch.rejected]
    for kind in OPENS:
        parts = [batch for batch in group if kind in batch.lines]
        if parts:
            rejected += _insert_rows(con, kind, parts, spool, carefully)
    _insert_own(con, "rejected", rejected, spool)
    _insert_own(con, "waiting", [row for batch in group for row in _let_wait(batch)], spool)
    _insert_own(con, "journals", list({batch.row.journal: batch.row for batch in group}.values()), spool)


def find_origins(group: list[Batch]) -> set[str]:
    """The journals that gave rows to tables without an index."""
    kinds = [kind for kind, layout in OPENS.items() if not layout.indexed]
    return {batch.row.journal for batch in group if any(kind in batch.lines for kind in kinds)}


def _insert_rows(
    con: duckdb.DuckDBPyConnection, kind: type[Struct], parts: list[Batch], spool: Spool, carefully: bool
) -> list[Rejected]:
    layout, given = OPENS[kind], describe_columns(kind)
    with spool.offer([(batch.row.journal, batch.lines[kind]) for batch in parts], given) as source:
        if not carefully:
            insert(con, layout, source, given)
            return []
        faults = dict(insert_carefully(con, layout, source, given))
    origins = ((batch, i) for batch in parts for i in range(len(batch.lines[kind])))
    return [
        reject(batch.row.journal, batch.numbers[kind][i], faults[position], batch.lines[kind][i])
        for position, (batch, i) in enumerate(origins)
        if position in faults
    ]


def _let_wait(batch: Batch) -> Iterator[Waiting]:
    for kind in _ADDS:
        for number, line in zip(batch.numbers.get(kind, ()), batch.lines.get(kind, ()), strict=True):
            yield Waiting(journal=batch.row.journal, line=number, type=kind_name(kind), record=line.decode())


def _insert_own(
    con: duckdb.DuckDBPyConnection, table: str, rows: Sequence[JournalRow | Rejected | Waiting], spool: Spool
) -> None:
    if not rows:
        return
    given = [column for column in describe_columns(type(rows[0])) if column.name != "journal"]
    with spool.offer([(row.journal, [_encode(row)]) for row in rows], given) as source:
        insert(con, _LAYOUTS[table], source, given)
