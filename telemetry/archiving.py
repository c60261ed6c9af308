"""Moves what is old from journals into the archive; killed at any point, nothing is lost and nothing there twice.

A group of journals at a time is loaded afresh, as a store of its own, and written to Parquet files in a folder of
unfinished ones. These are read back and compared with the rows that were loaded; then they are renamed into their
places, and the manifest that names them is. From that moment on the archive has the journals, and only then are they
deleted; what was broken off before it is written again, what was broken off after it is deleted by the next archiving.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import msgspec
from msgspec import Struct

from telemetry import archive, journal, roundscope_version
from telemetry.archive import ArchivedFile, ArchivedJournal, Manifest
from telemetry.archive_choice import choose
from telemetry.errors import RoundscopeError
from telemetry.loading import load_journals
from telemetry.partitioning import write_partitions
from telemetry.reading import is_as_it_was
from telemetry.records import SCHEMA_VERSION
from telemetry.schema import JournalRow, create_schema
from telemetry.serving import find_uncounted
from telemetry.store import StoreBusy, StoreUnwritable, connect, load
from telemetry.tables import TABLES

LOCK = "archive.lock"
CHANGED = "they changed while they were archived"
UNCOUNTED = "the metrics endpoint has not counted them yet; they can be archived as soon as it has"
DIFFERENT = (
    "the database has other rows of them: they repeat those of other journals, or it was changed (see `rejected`)"
)


class Archived(Struct, kw_only=True):
    """What was archived, or would be: journals, rows by table (`rejected`: lines), bytes before and after.

    n_finished: journals that an earlier archiving had taken in and not yet deleted. left: journals that stay, by
    reason.
    """

    journals: int = 0
    rows: dict[str, int] = {}
    journal_bytes: int = 0
    archive_bytes: int = 0
    n_finished: int = 0
    left: dict[str, int] = {}
    notes: list[str] = []


def archive_before(store: Path, day: date, *, dry_run: bool = False) -> Archived:
    """Archive the journals of `store` that hold nothing of `day` (UTC) or later, and whose processes have ended.

    Raises UsageError without a store, RoundscopeError if another archiving goes on, an earlier batch is damaged or the
    disk is full: then all journals whose rows are not safely archived are still there.
    """
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000_000
    with connect(store) as connected:
        notes = list(connected.notes)
        choice = choose(connected.con, midnight)
        counted = _count_rows(connected.con)
    work = Archiving(store)
    left = Counter({reason: len(names) for reason, names in choice.left.items()})
    if dry_run:
        for group in choice.groups:
            work.foresee(group, counted)
    else:
        with _alone(store), _explaining(store / archive.FOLDER):
            work.finish()
            uncounted = find_uncounted(store, [name for group in choice.groups for name in group])
            for group in choice.groups:
                reason = UNCOUNTED if uncounted.intersection(group) else work.archive(group, counted)
                if reason is not None:
                    left[reason] += len(group)
        with suppress(StoreBusy, StoreUnwritable):  # else the next load takes note of it
            load(store)
    work.done.left, work.done.notes = dict(left), notes
    return work.done


def _count_rows(con: duckdb.DuckDBPyConnection) -> dict[str, Counter[str]]:
    """Rows of records, and rejected lines, by journal and table."""
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for name in [*(table.name for table in TABLES), "rejected"]:
        for journal_name, n in con.execute(f"SELECT journal, count(*) FROM {name} GROUP BY journal").fetchall():
            counted[journal_name][name] = n
    return counted


class Archiving:
    """Archives groups of journals of a store, one after the other, and counts what was `done`."""

    def __init__(self, store: Path) -> None:
        self.done = Archived()
        self._journals = store / journal.FOLDER
        self._archive = store / archive.FOLDER
        self._unfinished = self._archive / archive.UNFINISHED

    def finish(self) -> None:
        """Do what an archiving that was broken off had left to do. Raises Refused."""
        shutil.rmtree(self._unfinished, ignore_errors=True)
        for stray in list(archive.find_strays(self._archive)):
            stray.unlink()
        for batch in archive.list_batches(self._archive):
            manifest = archive.read_manifest(self._archive, batch)
            there = [each for each in manifest.journals if (self._journals / each.journal).exists()]
            if there:
                archive.check_files(self._archive, manifest)
            for each in there:
                self.done.n_finished += self._drop(each)

    def foresee(self, group: list[str], counted: dict[str, Counter[str]]) -> None:
        """Count what `archive` would archive."""
        self._count(group, sum((counted[name] for name in group), Counter()))

    def archive(self, group: list[str], counted: dict[str, Counter[str]]) -> str | None:
        """Archive these journals; the reason if they stay. `counted`: rows by journal and table in the database."""
        batch = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{os.urandom(3).hex()}"
        folder = self._unfinished / batch
        (folder / journal.FOLDER).mkdir(parents=True)
        for name in group:
            (folder / journal.FOLDER / name).symlink_to((self._journals / name).resolve())
        with closing(duckdb.connect(str(folder / "rows.duckdb"))) as con:
            create_schema(con)
            load_journals(con, folder / journal.FOLDER)
            found = sum(_count_rows(con).values(), Counter())
            if found != sum((counted[name] for name in group), Counter()):
                return DIFFERENT
            con.execute("UPDATE journals SET archived_in = ?", [batch])
            files = write_partitions(con, folder / "tables", batch)
            rows = _fetch_journals(con)
        if not all(row.writer == "ended" and is_as_it_was(self._journals / row.journal, row) for row in rows):
            return CHANGED
        self._publish(folder / "tables", _describe(batch, rows, files))
        self._count(group, found)
        self.done.archive_bytes += sum(file.n_bytes for file in files)
        for each in rows:
            self._drop(_describe_journal(each))
        shutil.rmtree(folder)
        return None

    def _publish(self, folder: Path, manifest: Manifest) -> None:
        """Put the files into their places, then the manifest, each safely on the disk before the next step."""
        for file in manifest.files:
            place = self._archive / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / file.path, place)
            _sync(place.parent)
        path = self._archive / archive.MANIFESTS / f"{manifest.batch}.json"
        path.parent.mkdir(exist_ok=True)
        partial = folder / path.name
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        _sync(partial)
        os.replace(partial, path)
        _sync(path.parent)

    def _count(self, group: list[str], rows: Counter[str]) -> None:
        done = self.done
        done.journals += len(group)
        done.rows = dict(Counter(done.rows) + rows)
        done.journal_bytes += sum((self._journals / name).stat().st_size for name in group)

    def _drop(self, each: ArchivedJournal) -> bool:
        """Delete a journal that the archive has, unless there is another of that name; whether it was deleted."""
        path = self._journals / each.journal
        row = JournalRow(journal=each.journal, writer="ended", bytes_read=each.n_bytes, fingerprint=each.fingerprint)
        if not is_as_it_was(path, row):
            return False
        os.unlink(path)
        return True


def _fetch_journals(con: duckdb.DuckDBPyConnection) -> list[JournalRow]:
    names = JournalRow.__struct_fields__
    rows = con.execute(f"SELECT {', '.join(names)} FROM journals ORDER BY journal").fetchall()
    return [JournalRow(**dict(zip(names, row, strict=True))) for row in rows]


def _describe(batch: str, rows: list[JournalRow], files: list[ArchivedFile]) -> Manifest:
    return Manifest(
        batch=batch,
        schema_version=SCHEMA_VERSION,
        roundscope_version=roundscope_version(),
        created_wall_ns=time.time_ns(),
        journals=[_describe_journal(row) for row in rows],
        files=files,
    )


def _describe_journal(row: JournalRow) -> ArchivedJournal:
    return ArchivedJournal(
        journal=row.journal, n_bytes=row.bytes_read, fingerprint=row.fingerprint, n_lines=row.n_lines
    )


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are safe from a crash of the machine."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _alone(store: Path) -> Iterator[None]:
    with _explaining(store / LOCK), open(store / LOCK, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RoundscopeError(f"another archiving of {store} is going on; wait until it has ended") from None
        yield


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, duckdb.IOException) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error).partition("\n")[0]
        raise RoundscopeError(
            f"cannot write {path}: {reason}. What was not archived is still there; free space, or look at the "
            "permissions there, and archive again"
        ) from error
