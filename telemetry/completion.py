"""Completes rows once all journals are read: ends and comparisons go into the rows of their runs and generations.

They may have come before their row, in another journal or in an earlier load, so they wait in a table until the row is
there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import duckdb
from msgspec import Struct

from telemetry.bulk import DUPLICATE, find_fault
from telemetry.ncm_records import NcmEnd
from telemetry.reading import SHOWN_CHARACTERS
from telemetry.records import GenerationEnd, RankEnd
from telemetry.schema import STATES, Column, describe_columns, kind_name, quote, quote_name
from telemetry.tables import TABLES, Table

_OPEN_UNTIL: dict[str, type[Struct]] = {
    "generations": GenerationEnd,
    "ncm_generations": NcmEnd,
    "ranks": RankEnd,
}
"""Tables of what goes on until a record of that kind."""


def complete_rows(con: duckdb.DuckDBPyConnection) -> None:
    """Take up what waits, say what became of every open generation and rank, count each journal's rejected lines."""
    waiting = {name for (name,) in con.execute("SELECT DISTINCT type FROM waiting").fetchall()}
    for table, kind in _find_additions():
        if kind_name(kind) in waiting:
            _take_up(con, table, kind)
    _judge_what_is_open(con)
    con.execute(
        """
        UPDATE journals SET n_rejected = n
        FROM (SELECT journal, count(*) AS n FROM rejected GROUP BY journal) AS counted
        WHERE journals.journal = counted.journal AND journals.n_rejected <> n
        """
    )


def _find_additions() -> Iterator[tuple[Table, type[Struct]]]:
    return ((table, kind) for table in TABLES for kind in table.adds)


def _take_up(con: duckdb.DuckDBPyConnection, table: Table, kind: type[Struct]) -> None:
    """Write waiting records of a kind into their rows; those that do not fit become rejected lines."""
    columns = describe_columns(kind)
    key = ", ".join(quote_name(name) for name in table.key)
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE arrived AS
        WITH parsed AS (
            SELECT journal AS from_journal, line AS from_line, record,
                from_json(record, {quote(_shape(columns))}) AS added
            FROM waiting WHERE type = {quote(kind_name(kind))}
        ),
        joined AS (
            SELECT added.*, old.* EXCLUDE ({", ".join(quote_name(column.name) for column in columns)}),
                from_journal, from_line, record, old.{_find_mark(kind)} IS NOT NULL AS is_filled
            FROM parsed JOIN {table.name} AS old ON {_match(table, "added", "old")}
        ),
        checked AS (SELECT *, {find_fault(table.checks, columns)} AS fault FROM joined)
        SELECT * EXCLUDE (fault), coalesce(fault, CASE
            WHEN is_filled OR row_number() OVER (PARTITION BY {key}, fault IS NULL ORDER BY from_journal, from_line) > 1
            THEN {quote(DUPLICATE)}
        END) AS fault
        FROM checked
        """
    )
    values = ", ".join(
        f"{quote_name(c.name)} = arrived.{quote_name(c.name)}" for c in columns if c.name not in table.key
    )
    con.execute(
        f"UPDATE {table.name} SET {values} FROM arrived WHERE fault IS NULL AND {_match(table, table.name, 'arrived')}"
    )
    con.execute(
        "INSERT INTO rejected (journal, line, reason, text) "
        f"SELECT from_journal, from_line, fault, record[:{SHOWN_CHARACTERS}] FROM arrived WHERE fault IS NOT NULL"
    )
    con.execute("DELETE FROM waiting WHERE (journal, line) IN (SELECT (from_journal, from_line) FROM arrived)")


def _shape(columns: tuple[Column, ...]) -> str:
    """The fields of a record as `from_json` wants them."""
    return json.dumps({column.name: column.sql_type for column in columns})


def _match(table: Table, left: str, right: str) -> str:
    return " AND ".join(f"{left}.{quote_name(name)} = {right}.{quote_name(name)}" for name in table.key)


def _find_mark(kind: type[Struct]) -> str:
    """A column that is NULL until a record of this kind has filled the row."""
    return [column.name for column in describe_columns(kind) if column.required and column.name != "finish_reason"][-1]


def _judge_what_is_open(con: duckdb.DuckDBPyConnection) -> None:
    states = " ".join(f"WHEN {quote(writer)} THEN {quote(state)}" for writer, state in STATES.items())
    for table, end in _OPEN_UNTIL.items():
        con.execute(
            f"""
            UPDATE {table} SET finish_reason = state
            FROM (SELECT journal, CASE writer {states} END AS state FROM journals) AS judged
            WHERE {table}.journal = judged.journal
                AND {table}.{_find_mark(end)} IS NULL
                AND {table}.finish_reason IS DISTINCT FROM state
            """
        )
