"""Puts lines of NDJSON into a table, in bulk.

The lines go through a file, which DuckDB reads with several threads. The tables' constraints check the rows; since one
bad row undoes a whole insert, `insert_carefully` judges each row first and says which stay out and why.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from telemetry.errors import RoundscopeError
from telemetry.schema import Column, Layout, quote, quote_name
from telemetry.tables import Check

_LEAST_OBJECT_BYTES = 1 << 20
_PIECE_BYTES = 1 << 24
_encode = msgspec.json.Encoder().encode

UNREADABLE = "a value does not fit its column"
DUPLICATE = "a row of the same key is there already"


class Spool:
    """A folder through which lines reach DuckDB."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies = folder / "copies"
        # A name is never used again: DuckDB may keep what it read from a file of that name.
        self._serial = count()

    @contextmanager
    def offer(self, parts: Sequence[tuple[str, Sequence[bytes]]], columns: Sequence[Column]) -> Iterator[str]:
        """Lines, by the journals they come from, as something to select from.

        A row has `columns` and the name of its `journal`. There is one row a line, in order, all NULL where DuckDB
        cannot read the line. Raises RoundscopeError if there is no space for them.
        """
        path = self._folder / f"{next(self._serial)}.ndjson"
        lines: Sequence[bytes]
        if len(parts) == 1:
            [(journal, lines)] = parts
            origin = f"{quote(journal)} AS journal"
        else:
            lines, origin = [_mark(line, journal) for journal, lines in parts for line in lines], "journal"
            columns = (*columns, Column("journal", "VARCHAR", "", None))
        with self._explaining():
            path.write_bytes(b"\n".join(lines))
        names = ", ".join(quote_name(column.name) for column in columns if column.name != "journal")
        yield f"(SELECT {names}, {origin} FROM {_read_json([path], columns, 2 * max(map(len, lines)))})"
        path.unlink()

    def copy(self, fd: int, name: str, start: int, end: int) -> Path:
        """A file of this name that has these bytes of another; it is there until `clear`."""
        path = self._copies / str(next(self._serial)) / name
        with self._explaining():
            path.parent.mkdir(parents=True)
            with path.open("wb", buffering=0) as file:
                while start < end:
                    start += file.write(os.pread(fd, min(_PIECE_BYTES, end - start), start))
        return path

    def clear(self) -> None:
        """Delete the copies."""
        shutil.rmtree(self._copies, ignore_errors=True)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RoundscopeError(
                f"cannot write to the temporary folder {self._folder.parent}: {error.strerror}; "
                "free space there, or set TMPDIR to another folder"
            ) from error


def select_kind(paths: Sequence[Path], kind: str, columns: Sequence[Column]) -> str:
    """The lines of a kind in whole journals as something to select from; the names of the files are the journals'."""
    names = ", ".join(quote_name(column.name) for column in columns)
    tag = Column("type", "VARCHAR", "", None)
    source = _read_json(paths, (tag, *columns), _LEAST_OBJECT_BYTES)
    return f"(SELECT {names}, parse_filename(filename) AS journal FROM {source} WHERE type = {quote(kind)})"


def _read_json(paths: Sequence[Path], columns: Sequence[Column], largest: int) -> str:
    listed = ", ".join(quote(escape_glob(path)) for path in paths)
    types = ", ".join(f"{quote_name(column.name)}: {quote(column.sql_type)}" for column in columns)
    # Small objects make small buffers, and so more of them to share out among threads.
    return (
        f"read_json([{listed}], format = 'newline_delimited', columns = {{{types}}}, ignore_errors = true, "
        f"filename = true, maximum_object_size = {max(_LEAST_OBJECT_BYTES, largest)})"
    )


def escape_glob(path: Path) -> str:
    """The path as DuckDB's readers take it for this very file."""
    return re.sub(r"([*?[])", r"[\1]", str(path))


def _mark(line: bytes, journal: str) -> bytes:
    """The JSON object with the journal's name as its first field."""
    return b'{"journal":%b,%b' % (_encode(journal), line.lstrip()[1:])


def insert(con: duckdb.DuckDBPyConnection, layout: Layout, source: str, given: Sequence[Column]) -> int:
    """Insert all rows of `source` and say how many; raises duckdb.Error, and inserts none, if a constraint refuses one.

    In a table with one row a journal, a journal's row takes the place of its last one.
    """
    names = ", ".join([*(quote_name(column.name) for column in given), "journal"])
    verb = "INSERT OR REPLACE INTO" if layout.key == ("journal",) else "INSERT INTO"
    [(n,)] = con.execute(f"{verb} {layout.name} ({names}) SELECT {names} FROM {source}").fetchall()
    return int(n)


def insert_carefully(
    con: duckdb.DuckDBPyConnection, layout: Layout, source: str, given: Sequence[Column]
) -> list[tuple[int, str]]:
    """Insert the rows of `source` that fit; give the others' positions, from 0, each with what is wrong with it."""
    key = ", ".join(quote_name(name) for name in layout.key)
    filled = {"journal", *(column.name for column in given)}
    # Checks may speak of columns that other records fill later.
    later = "".join(
        f", NULL::{column.sql_type} AS {quote_name(column.name)}"
        for column in layout.columns
        if column.name not in filled
    )
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE staged AS SELECT row_number() OVER () - 1 AS position, *{later} FROM {source}"
    )
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE judged AS
        WITH checked AS (SELECT *, {find_fault(layout.checks, given)} AS fault FROM staged)
        SELECT
            * EXCLUDE (fault),
            coalesce(fault, CASE
                WHEN ({key}) IN (SELECT ({key}) FROM {layout.name})
                    OR row_number() OVER (PARTITION BY {key}, fault IS NULL ORDER BY position) > 1
                THEN {quote(DUPLICATE)}
            END) AS fault
        FROM checked
        """
    )
    insert(con, layout, "judged WHERE fault IS NULL", given)
    faults: list[Any] = con.execute(
        "SELECT position, fault FROM judged WHERE fault IS NOT NULL ORDER BY position"
    ).fetchall()
    return faults


def find_fault(checks: Sequence[Check], given: Sequence[Column]) -> str:
    """A SQL expression: the first thing wrong with a row of `given` columns, or NULL. A check that overflows fails."""
    missing = " OR ".join(f"{quote_name(column.name)} IS NULL" for column in given if column.required)
    branches = [f"WHEN {missing} THEN {quote(UNREADABLE)}"] if missing else []
    branches += [
        f"WHEN NOT coalesce(try(coalesce(({check.condition}), true)), false) THEN {quote(check.reason)}"
        for check in checks
    ]
    return f"CASE {' '.join(branches)} ELSE NULL END" if branches else "NULL::VARCHAR"
