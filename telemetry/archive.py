"""The archive: what journals of ended processes held, as Parquet partitions in STORE/archive.

`archive/TABLE/run=ID/day=YYYY-MM-DD/BATCH-N.parquet` has the rows of a table as it is in the database, every column
with its type; `run` is the run's id (`none` without one) and `day` the UTC day on which that run began, or the
generation or journal where there is no run. A batch is what was archived at once, and `archive/manifest/BATCH.json`
names its files and the journals that it covers: a file that no manifest names is not there, and a batch is there as
soon as its manifest is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from telemetry.errors import RoundscopeError
from telemetry.records import SCHEMA_VERSION

FOLDER = "archive"
MANIFESTS = "manifest"
UNFINISHED = ".unfinished"
"""Folder of what is being written; whatever is in it may be deleted while nobody archives."""

NO_RUN = "none"
"""Partition of what was recorded outside a run."""

MAX_RUN_BYTES = 200
"""Of a run's id in the name of a folder; a longer one goes by its digest."""

SCHEMA_KEY, WRITER_KEY, TABLE_KEY = "roundscope_schema_version", "roundscope_version", "roundscope_table"
"""Keys of each file's metadata."""


class ArchivedFile(Struct, kw_only=True):
    """A partition's file; `path` is within the archive."""

    path: str
    table: str
    n_rows: int
    n_bytes: int
    sha256: str


class ArchivedJournal(Struct, kw_only=True):
    """A journal that a batch covers, as it was when it was read to its end."""

    journal: str
    n_bytes: int
    fingerprint: int
    n_lines: int


class Manifest(Struct, kw_only=True):
    """What a batch consists of."""

    batch: str
    schema_version: int
    roundscope_version: str
    created_wall_ns: int
    journals: list[ArchivedJournal]
    files: list[ArchivedFile]

    def files_of(self, table: str) -> list[ArchivedFile]:
        """The files of a table."""
        return [file for file in self.files if file.table == table]


class Refused(RoundscopeError):
    """A batch cannot be read; the message names the file and the cure."""


def list_batches(archive: Path) -> list[str]:
    """The names of the batches that are there, in the order in which they were made."""
    try:
        names = os.listdir(archive / MANIFESTS)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def read_manifest(archive: Path, batch: str) -> Manifest:
    """What a batch consists of; Refused if it cannot be read or was written by a newer version."""
    path = archive / MANIFESTS / f"{batch}.json"
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=_Version)
        if manifest.schema_version > SCHEMA_VERSION:
            raise Refused(
                f"{path} was written by roundscope {manifest.roundscope_version} (records of version "
                f"{manifest.schema_version}, known here: up to {SCHEMA_VERSION}); what it archived is left out until "
                "roundscope is upgraded"
            )
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise _damaged(path, str(error)) from error


class _Version(Struct):
    schema_version: int
    roundscope_version: str


def check_files(archive: Path, manifest: Manifest, *, thoroughly: bool = True) -> None:
    """Raise Refused unless every file of a batch is there as it was written.

    thoroughly: all content is read, else only that of files which were changed after their manifest was written, so
    that it takes little time.
    """
    since_ns = 0 if thoroughly else _find_written(archive, manifest.batch)
    for file in manifest.files:
        if fault := _find_fault(archive / file.path, file, since_ns=since_ns):
            raise _damaged(archive / file.path, fault)


def find_damaged(archive: Path, batches: Iterable[str]) -> Iterator[str]:
    """A sentence for every file that is not as it was written, of batches whose rows the database has.

    Content is read only where a file was changed after its manifest was written, so that it takes little time.
    """
    for batch in batches:
        try:
            written_ns, files = _find_written(archive, batch), read_manifest(archive, batch).files
        except Refused as error:
            yield str(error)
            continue
        for file in files:
            if fault := _find_fault(archive / file.path, file, since_ns=written_ns):
                yield (
                    f"{archive / file.path} of the archive is missing or damaged ({fault}); the database still has its "
                    "rows: restore that file from a copy before the database is deleted or made anew"
                )


def _find_written(archive: Path, batch: str) -> int:
    """When a batch's manifest was written [ns since epoch]; Refused if it is gone."""
    path = archive / MANIFESTS / f"{batch}.json"
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from error


def _find_fault(path: Path, file: ArchivedFile, *, since_ns: int) -> str | None:
    """How a file differs from what was written; content is compared if it changed after `since_ns`."""
    try:
        found = path.stat()
        if found.st_size != file.n_bytes:
            return f"it has {found.st_size:,} bytes and had {file.n_bytes:,}"
        if found.st_mtime_ns > since_ns and digest_file(path) != file.sha256:
            return "its content is not what was written"
    except OSError as error:
        return error.strerror or str(error)
    return None


def digest_file(path: Path) -> str:
    """sha256 of a file's content."""
    digest = sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def find_strays(archive: Path) -> Iterator[Path]:
    """Partition files that no manifest names: what an archiving that was broken off left. Raises Refused."""
    named = {archive / file.path for batch in list_batches(archive) for file in read_manifest(archive, batch).files}
    for path in archive.glob("*/run=*/day=*/*.parquet"):
        if path not in named:
            yield path


def _damaged(path: Path, reason: str) -> Refused:
    return Refused(
        f"{path} of the archive is missing or damaged ({reason}); what was archived with it is left out until that "
        "file is restored from a copy"
    )
