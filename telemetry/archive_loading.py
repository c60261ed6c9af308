"""Brings archived rows into the tables, as journals are: each batch once, known by its manifest.

A batch whose journals were loaded before they were archived is only noted, in `journals.archived_in`; another is
inserted from its files. One that cannot be read is left out whole, and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb

from telemetry.archive import ArchivedFile, Manifest, Refused, check_files, list_batches, read_manifest
from telemetry.archive import find_damaged as find_damaged_files
from telemetry.bulk import escape_glob
from telemetry.schema import Layout, layouts, quote, quote_name
from telemetry.unique import check_unique


class Stale(Exception):
    """The tables hold what neither archive nor journals account for: they are to be made anew. Says why."""


def load_batches(con: duckdb.DuckDBPyConnection, archive: Path) -> list[str]:
    """Take in the batches that are new, each in a transaction of its own; what could not be read is named.

    Raises Stale.
    """
    notes = []
    noted = _fetch_noted(con)
    batches = list_batches(archive)
    if gone := noted - set(batches):
        raise Stale(f"the archive {archive} has no batch {min(gone)} any more")
    for batch in batches:
        if batch not in noted:
            try:
                _take(con, archive, read_manifest(archive, batch))
            except Refused as error:
                notes.append(str(error))
    return notes


def has_batches(con: duckdb.DuckDBPyConnection, archive: Path) -> bool:
    """Whether the tables have all that is archived, and nothing that was."""
    return _fetch_noted(con) == set(list_batches(archive))


def find_damaged(con: duckdb.DuckDBPyConnection, archive: Path) -> list[str]:
    """What of the archive is no longer as it was written, though the tables have its rows."""
    return list(find_damaged_files(archive, sorted(_fetch_noted(con) & set(list_batches(archive)))))


def _fetch_noted(con: duckdb.DuckDBPyConnection) -> set[str]:
    rows = con.execute("SELECT DISTINCT archived_in FROM journals WHERE archived_in IS NOT NULL").fetchall()
    return {batch for (batch,) in rows}


def _take(con: duckdb.DuckDBPyConnection, archive: Path, manifest: Manifest) -> None:
    names = [each.journal for each in manifest.journals]
    rows = con.execute(
        "SELECT journal, bytes_read, fingerprint, archived_in FROM journals WHERE list_contains(?, journal)", [names]
    ).fetchall()
    if others := [(journal, other) for journal, _, _, other in rows if other is not None]:
        journal, other = min(others)
        raise Refused(
            f"batch {manifest.batch} of the archive {archive} has the journal {journal}, which batch {other} has "
            "already; it is left out: take the manifest of one of the two away"
        )
    known = {journal: (bytes_read, fingerprint) for journal, bytes_read, fingerprint, _ in rows}
    if not known:
        check_files(archive, manifest)
        _insert(con, archive, manifest)
    elif known == {each.journal: (each.n_bytes, each.fingerprint) for each in manifest.journals}:
        con.execute(
            "UPDATE journals SET archived_in = ?, writer = 'ended' WHERE list_contains(?, journal)",
            [manifest.batch, names],
        )
    else:
        raise Stale(f"journals of batch {manifest.batch} were archived before they were loaded to their ends")


def _insert(con: duckdb.DuckDBPyConnection, archive: Path, manifest: Manifest) -> None:
    con.begin()
    try:
        for layout in layouts():
            files = manifest.files_of(layout.name)
            if files:
                con.execute(f"INSERT INTO {layout.name} {select_rows(con, archive, layout, files)}")
        check_unique(con, [each.journal for each in manifest.journals])
        con.commit()
    except (duckdb.ConstraintException, duckdb.ConversionException) as error:
        con.rollback()
        reason = str(error).partition("\n")[0]
        raise Refused(
            f"batch {manifest.batch} of the archive {archive} does not fit the rest of the store ({reason}); it is "
            "left out: take its manifest away if it belongs to another store"
        ) from error
    except BaseException:
        con.rollback()
        raise


def select_rows(con: duckdb.DuckDBPyConnection, archive: Path, layout: Layout, files: Sequence[ArchivedFile]) -> str:
    """A SELECT of the columns of a table, in their order, from its files. A column that they lack is NULL."""
    source = read_parquet([archive / file.path for file in files])
    found = {name for name, *_ in con.execute(f"DESCRIBE FROM {source}").fetchall()}
    columns = ", ".join(
        quote_name(column.name) if column.name in found else f"NULL::{column.sql_type} AS {quote_name(column.name)}"
        for column in layout.columns
    )
    return f"SELECT {columns} FROM {source}"


def read_parquet(paths: Sequence[Path]) -> str:
    """The rows of these files, as something to select from; with the columns `run` and `day` of their folders."""
    listed = ", ".join(quote(escape_glob(path)) for path in paths)
    return (
        f"read_parquet([{listed}], union_by_name = true, hive_partitioning = true, "
        "hive_types = {'run': VARCHAR, 'day': DATE})"
    )
