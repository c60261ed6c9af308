"""Runs the queries on a connection whose tables `telemetry.store` made."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import duckdb

from queries.catalogue import VIEWS, find, read_source
from queries.span_view import render_view
from telemetry.errors import UsageError

MARKED = "ncm_comparisons"
_CREATE = re.compile(r"\bcreate or replace (?=view|macro)", re.IGNORECASE)


@dataclass(frozen=True)
class Result:
    """What a query gave: the names of its columns, and its rows as tuples of plain Python values."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def install_views(con: duckdb.DuckDBPyConnection) -> None:
    """Makes the shared views and macros, or makes them anew.

    They are kept in the database where it can be written, so that any client finds them there; on a read-only one they
    are temporary, which also hides those that another version of roundscope left.
    """
    sql = "\n".join([*(read_source(source) for source in VIEWS), render_view()])
    mark = hashlib.sha256(sql.encode()).hexdigest()
    if _has_views(con, mark):
        return
    if _is_read_only(con):
        sql = _CREATE.sub("create or replace temp ", sql)
    for statement in duckdb.extract_statements(sql):
        con.execute(statement)
    con.execute(f"comment on view {MARKED} is '{mark}'")


def run(con: duckdb.DuckDBPyConnection, name: str, **variables: object) -> Result:
    """Runs a query with its DuckDB variables set to these values; None leaves the default.

    `install_views` must have been called on this database. UsageError: no such query, or it has no such variable.
    """
    query = find(name)
    known = [variable.name for variable in query.variables]
    if unknown := [given for given in variables if given not in known]:
        raise UsageError(f"query {name!r} has no variable {', '.join(unknown)}; it has: {', '.join(known)}")
    given = {key: value for key, value in variables.items() if value is not None}
    for key, value in given.items():
        con.execute(f"set variable {key} = ?", [value])
    try:
        cursor = con.execute(query.sql)
        return Result(tuple(column for column, *_ in cursor.description or ()), cursor.fetchall())
    finally:
        for key in given:
            con.execute(f"reset variable {key}")


def _has_views(con: duckdb.DuckDBPyConnection, mark: str) -> bool:
    """Whether the views are there already, by the digest of their text that the last of them carries."""
    found = con.execute("select comment from duckdb_views() where view_name = ?", [MARKED]).fetchall()
    return (mark,) in found


def _is_read_only(con: duckdb.DuckDBPyConnection) -> bool:
    row = con.execute("select readonly from duckdb_databases() where database_name = current_database()").fetchone()
    return bool(row and row[0])
