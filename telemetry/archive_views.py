"""The tables as views over the archive's partitions: nothing is loaded, DuckDB reads what a query needs.

For what has outgrown one database file. Journals are not looked at; an end or a comparison that was archived apart from
its generation stays in `waiting`.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from telemetry.archive import Manifest, Refused, check_files, list_batches, read_manifest
from telemetry.archive_loading import select_rows
from telemetry.errors import UsageError
from telemetry.schema import create_schema, layouts


def create_views(con: duckdb.DuckDBPyConnection, archive: Path) -> list[str]:
    """Make the tables of an empty database views over the partitions in `archive`; what was left out is named.

    A table of which nothing is archived stays an empty table. Raises UsageError if nothing was ever archived there.
    """
    manifests, notes = _read_manifests(archive)
    if not manifests and not notes:
        raise UsageError(f"nothing is archived in {archive}: `roundscope archive --before DATE` does")
    create_schema(con)
    for layout in layouts():
        files = [file for manifest in manifests for file in manifest.files_of(layout.name)]
        if files:
            rows = select_rows(con, archive.resolve(), layout, files)
            con.execute(f"DROP TABLE {layout.name}; CREATE VIEW {layout.name} AS {rows}")
    return notes


def _read_manifests(archive: Path) -> tuple[list[Manifest], list[str]]:
    manifests, notes = [], []
    for batch in list_batches(archive):
        try:
            manifest = read_manifest(archive, batch)
            check_files(archive, manifest, thoroughly=False)
            manifests.append(manifest)
        except Refused as error:
            notes.append(str(error))
    return manifests, notes
