"""Runs the queries over the archive's Parquet partitions, without a database."""

from __future__ import annotations

from pathlib import Path

import duckdb

from queries.running import install_views
from telemetry.archive_views import create_views


def install_tables_over(con: duckdb.DuckDBPyConnection, archive: Path) -> list[str]:
    """Give an empty database the tables and views of the queries, as views over the partitions in `archive`.

    What could not be read is left out and named in what is returned. Raises UsageError if nothing was archived there.
    """
    notes = create_views(con, archive)
    install_views(con)
    return notes
