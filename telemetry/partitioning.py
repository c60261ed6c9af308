"""Writes the tables of a database as Parquet partitions, and holds what is read back to the rows that were there."""

from __future__ import annotations

from pathlib import Path

import duckdb

from telemetry import roundscope_version
from telemetry.archive import MAX_RUN_BYTES, NO_RUN, SCHEMA_KEY, TABLE_KEY, WRITER_KEY, ArchivedFile, digest_file
from telemetry.archive_choice import tables_with
from telemetry.archive_loading import read_parquet, select_rows
from telemetry.errors import RoundscopeError
from telemetry.records import SCHEMA_VERSION
from telemetry.schema import Layout, layouts, quote, quote_name


def write_partitions(con: duckdb.DuckDBPyConnection, folder: Path, batch: str) -> list[ArchivedFile]:
    """Write every table that has rows to FOLDER/TABLE/run=.../day=.../BATCH-N.parquet; the files, relative to `folder`.

    Raises RoundscopeError if what is read back is not what was written.
    """
    _place_generations(con)
    files = []
    for layout in layouts():
        if con.execute(f"SELECT 1 FROM {layout.name} LIMIT 1").fetchall():
            _copy(con, folder, layout, batch)
            written = _describe_files(con, folder, layout)
            _compare(con, folder, layout, written)
            files += written
    return files


def _place_generations(con: duckdb.DuckDBPyConnection) -> None:
    """Which run every generation belongs to and when both began, generations of all kinds in one."""
    generations = " UNION ALL ".join(
        f"SELECT generation_id, run_id, started_wall_ns FROM {layout.name}"
        for layout in tables_with("generation_id", "run_id", "started_wall_ns")
    )
    runs = " UNION ALL ".join(
        # A run's own row comes before its generations'.
        f"SELECT run_id, started_wall_ns, {layout.key != ('run_id',)} AS is_second FROM {layout.name}"
        for layout in tables_with("run_id", "started_wall_ns")
    )
    con.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE placed_generations AS
        SELECT generation_id, min(run_id) AS run_id, min(started_wall_ns) AS ns FROM ({generations}) GROUP BY ALL;
        CREATE OR REPLACE TEMP TABLE placed_runs AS
        SELECT run_id, min_by(started_wall_ns, (is_second, started_wall_ns)) AS ns FROM ({runs})
        WHERE run_id IS NOT NULL GROUP BY ALL
        """
    )


def _copy(con: duckdb.DuckDBPyConnection, folder: Path, layout: Layout, batch: str) -> None:
    names = {column.name for column in layout.columns}
    of_generation = "generation_id" in names
    run_id = "t.run_id" if "run_id" in names else "g.run_id" if of_generation else "NULL::VARCHAR"
    began = "t.started_wall_ns" if "started_wall_ns" in names else "g.ns" if of_generation else "NULL::BIGINT"
    join = "LEFT JOIN placed_generations AS g ON t.generation_id = g.generation_id" if of_generation else ""
    metadata = {SCHEMA_KEY: str(SCHEMA_VERSION), WRITER_KEY: roundscope_version(), TABLE_KEY: layout.name}
    pairs = ", ".join(f"{key}: {quote(value)}" for key, value in metadata.items())
    place = folder / layout.name
    place.mkdir(parents=True)
    con.execute(
        f"""
        COPY (
            SELECT
                t.*,
                CASE
                    WHEN coalesce({run_id}, '') = '' THEN {quote(NO_RUN)}
                    WHEN strlen(url_encode({run_id})) <= {MAX_RUN_BYTES} THEN {run_id}
                    ELSE 'sha256-' || sha256({run_id})
                END AS run,
                strftime(make_timestamp(coalesce(r.ns, {began}, j.created_wall_ns, 0) // 1000), '%Y-%m-%d') AS day
            FROM {layout.name} AS t
            {join}
            LEFT JOIN placed_runs AS r ON r.run_id = {run_id}
            LEFT JOIN journals AS j ON j.journal = t.journal
        )
        TO {quote(str(place))} (
            FORMAT parquet, COMPRESSION zstd, PARTITION_BY (run, day), FILENAME_PATTERN '{batch}-{{i}}',
            KV_METADATA {{{pairs}}}
        )
        """
    )


def _describe_files(con: duckdb.DuckDBPyConnection, folder: Path, layout: Layout) -> list[ArchivedFile]:
    files = []
    for path in sorted((folder / layout.name).glob("run=*/day=*/*.parquet")):
        [(n_rows,)] = con.execute(f"SELECT count(*) FROM {read_parquet([path])}").fetchall()
        files.append(
            ArchivedFile(
                path=path.relative_to(folder).as_posix(),
                table=layout.name,
                n_rows=n_rows,
                n_bytes=path.stat().st_size,
                sha256=digest_file(path),
            )
        )
    return files


def _compare(con: duckdb.DuckDBPyConnection, folder: Path, layout: Layout, files: list[ArchivedFile]) -> None:
    # As they are read: partitions know no ENUM.
    columns = ", ".join(f"{quote_name(column.name)}::{column.sql_type}" for column in layout.columns)
    wanted, found = (
        con.execute(f"SELECT count(*), sum(hash({columns})::HUGEINT) FROM ({source})").fetchall()
        for source in (f"FROM {layout.name}", select_rows(con, folder, layout, files))
    )
    if wanted != found:
        raise RoundscopeError(
            f"the partitions of {layout.name} in {folder} do not hold the rows that were written to them; nothing was "
            "archived, the journals are as they were: look after that disk"
        )
