"""A query's rows by column name, as the report's sentences and tables need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import queries

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row: TypeAlias = dict[str, Any]
POOLED = "all"
"""The class under which the queries show all classes together."""


def fetch(con: DuckDBPyConnection, name: str, run_id: str) -> list[Row]:
    """The rows of the query `name` for a run."""
    result = queries.run(con, name, run_id=run_id)
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]
