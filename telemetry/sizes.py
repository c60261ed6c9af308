"""How much a store holds: journals, database and archive, in files and bytes."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from telemetry import archive, journal
from telemetry.archive import Refused
from telemetry.importing import find_leftover
from telemetry.store import DATABASE


class StoreSizes(Struct, kw_only=True):
    """Files and bytes. archived_journals: covered by the archive's batches; archived_rows: in them, by table."""

    journals: int
    journal_bytes: int
    database_bytes: int
    archive_files: int
    archive_bytes: int
    archived_journals: int
    archived_rows: dict[str, int]
    problems: list[str]


def measure_store(store: Path, *, thoroughly: bool = False) -> StoreSizes | None:
    """The sizes of a store; None if there is none. Nothing but its archive is opened, so it works during a run.

    `problems` names what cannot be read, what an import left, and files of the archive that are not as they were
    written. thoroughly: all of these are read, else only those that were changed after they were archived.
    """
    if not store.is_dir():
        return None
    journals, problems = _measure_journals(store / journal.FOLDER)
    database = [path.stat().st_size for path in store.glob(f"{DATABASE}*") if path.is_file()]
    sizes = StoreSizes(
        journals=len(journals),
        journal_bytes=sum(journals),
        database_bytes=sum(database),
        archive_files=0,
        archive_bytes=0,
        archived_journals=0,
        archived_rows={},
        problems=problems,
    )
    if leftover := find_leftover(store):
        sizes.problems.append(f"{leftover} is what an import left that was broken off; the next import deletes it")
    for batch in archive.list_batches(store / archive.FOLDER):
        try:
            manifest = archive.read_manifest(store / archive.FOLDER, batch)
            archive.check_files(store / archive.FOLDER, manifest, thoroughly=thoroughly)
        except Refused as error:
            sizes.problems.append(str(error))
            continue
        sizes.archived_journals += len(manifest.journals)
        for file in manifest.files:
            sizes.archive_files += 1
            sizes.archive_bytes += file.n_bytes
            sizes.archived_rows[file.table] = sizes.archived_rows.get(file.table, 0) + file.n_rows
    return sizes


def _measure_journals(folder: Path) -> tuple[list[int], list[str]]:
    """The bytes of each journal, and why they cannot be told."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(journal.SUFFIX)]
        return [(folder / name).stat().st_size for name in names], []
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{folder} cannot be read ({error.strerror}): its journals are not counted"]
