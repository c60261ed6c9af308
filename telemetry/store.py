"""The store: a folder with the journals and, made from them, a DuckDB database.

The database is open for writing only while it is brought up to date, so that reports work during a run. Where it cannot
be (somebody else holds it, the folder is read-only), the journals and the archive are read into memory instead: they
are the truth, the database is only a faster way to them. A database that cannot be read, or has other tables, is put
aside and made anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import duckdb

from telemetry import archive
from telemetry.archive_loading import find_damaged
from telemetry.archive_views import create_views
from telemetry.errors import RoundscopeError, UsageError
from telemetry.journal import FOLDER
from telemetry.loading import LoadReport, is_current, load_journals
from telemetry.schema import create_schema, has_schema

__all__ = [
    "DATABASE",
    "Connected",
    "LoadReport",
    "StoreBusy",
    "StoreUnwritable",
    "connect",
    "connect_archive",
    "load",
    "restrict",
]

DATABASE = "roundscope.duckdb"
PATIENCE_S = 2.0
"""How long to wait for somebody else who has the database open."""

Prepare: TypeAlias = Callable[[duckdb.DuckDBPyConnection], None]

# Storage that clients of DuckDB 1.1 (2024) and later can open; tried with 1.1.3, 1.3.2 and 1.4.5.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {"storage_compatibility_version": "v1.0.0"}
_QUIET = "SET enable_progress_bar = false"
"""DuckDB draws it on standard output, between the data."""
_DAMAGE = (
    "not a valid DuckDB database file",
    "Corrupt database file",
    "Could not read enough bytes",
    "version number",
    "replaying WAL",
)
_loading = threading.Lock()


class StoreBusy(RoundscopeError):
    """Somebody else has the database open."""


class StoreUnwritable(RoundscopeError):
    """The database cannot be written: no permission, no space."""


class _Damaged(Exception):
    """The database cannot be used as it is."""


@dataclass(frozen=True)
class Connected:
    """A connection to a store's tables. source: whether they are the database's, were read into memory just now, or are
    views over the archive's files."""

    con: duckdb.DuckDBPyConnection
    source: Literal["database", "memory", "archive"]
    notes: tuple[str, ...]


def load(store: Path, prepare: Prepare | None = None, *, patience_s: float = PATIENCE_S) -> LoadReport:
    """Bring STORE/roundscope.duckdb up to date with the journals, then run `prepare` on the same connection.

    Only what is new in the journals is read. Raises UsageError without a store, StoreBusy if somebody else has the
    database open for longer than `patience_s` seconds, StoreUnwritable if it cannot be written: the journals stay.
    """
    _require(store)
    path = store / DATABASE
    with _loading:
        try:
            return _load_file(path, store, prepare, patience_s)
        except _Damaged as error:
            with _explaining(path):
                aside = _put_aside(path)
            report = _load_file(path, store, prepare, patience_s)
            report.notes.insert(0, f"{error}; it was made anew from the journals, the old one is {aside}")
            return report


@contextmanager
def connect(store: Path, prepare: Prepare | None = None, *, patience_s: float = PATIENCE_S) -> Iterator[Connected]:
    """The store's tables, up to date, read-only; in memory, with a note that says why, if the database cannot be had.

    `prepare` is run on the tables when they are up to date: where nothing is new first on the database read-only, and
    where it fails there, or something is new, while they can be written. UsageError: there is no store.
    """
    _require(store)
    if not any((store / name).exists() for name in (DATABASE, FOLDER, archive.FOLDER)):
        connected = _connect_memory(store, prepare, f"nothing is recorded in {store} yet; `roundscope run` does")
    else:
        try:
            connected = _connect_file(store, prepare, patience_s)
        except (StoreBusy, StoreUnwritable) as error:
            connected = _connect_memory(store, prepare, f"{error}; the journals were read into memory instead")
    try:
        connected.con.execute(_QUIET)
        yield connected
    finally:
        connected.con.close()


@contextmanager
def connect_archive(store: Path, prepare: Prepare | None = None) -> Iterator[Connected]:
    """The tables as views over the archive's partitions; neither database nor journals are read. As `connect`."""
    _require(store)
    with closing(duckdb.connect(":memory:")) as con:
        notes = create_views(con, store / archive.FOLDER)
        if prepare is not None:
            prepare(con)
        con.execute(_QUIET)
        yield Connected(con, "archive", tuple(notes))


def restrict(con: duckdb.DuckDBPyConnection, readable: Path | None = None) -> None:
    """Take from a connection, for good, all access to files, network, extensions and Python's variables.

    readable: a folder whose files views still need.
    """
    if readable is not None:
        con.execute("SET allowed_directories = ?", [[str(readable.resolve())]])
    for setting in (
        "python_enable_replacements = false",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        con.execute(f"SET {setting}")


def _require(store: Path) -> None:
    if store.is_file():
        raise UsageError(f"{store} is a file, and a store is a folder: name one with --store DIR")
    if not store.is_dir():
        raise UsageError(f"no store at {store}: run `roundscope run` first, or name another with --store DIR")


def _load_file(path: Path, store: Path, prepare: Prepare | None, patience_s: float) -> LoadReport:
    con = _open(path, patience_s, read_only=False)
    try:
        con.execute(_QUIET)
        with _explaining(path):
            if not has_schema(con):
                if con.execute("SELECT 1 FROM duckdb_tables()").fetchall():
                    raise _Damaged(f"{path} has the tables of another version of roundscope")
                create_schema(con)
            report = load_journals(con, store / FOLDER, store / archive.FOLDER)
            if prepare is not None:
                prepare(con)
        return report
    finally:
        con.close()


def _connect_file(store: Path, prepare: Prepare | None, patience_s: float) -> Connected:
    notes: tuple[str, ...] = ()
    con = _open_current(store, prepare)
    if con is None:
        notes = tuple(load(store, prepare, patience_s=patience_s).notes)
        con = _open(store / DATABASE, patience_s, read_only=True)
        con.execute("SET TimeZone = 'UTC'")
    return Connected(con, "database", (*notes, *find_damaged(con, store / archive.FOLDER)))


def _open_current(store: Path, prepare: Prepare | None) -> duckdb.DuckDBPyConnection | None:
    """The database read-only if the journals hold nothing new and `prepare` has nothing to write; None if they may.

    It saves opening the file twice, and what many do at once.
    """
    path = store / DATABASE
    if not path.exists():
        return None
    try:
        con = duckdb.connect(str(path), read_only=True, config=_CONFIG)
    except duckdb.Error:  # `load` waits, explains and repairs
        return None
    is_ready = False
    try:
        con.execute("SET TimeZone = 'UTC'")
        if has_schema(con) and is_current(con, store / FOLDER, store / archive.FOLDER):
            if prepare is not None:
                prepare(con)
            # What was made for this connection alone is what the file lacks.
            is_ready = not con.execute("SELECT 1 FROM duckdb_views() WHERE temporary AND NOT internal").fetchall()
    except duckdb.Error:
        return None
    finally:
        if not is_ready:
            con.close()
    return con if is_ready else None


def _connect_memory(store: Path, prepare: Prepare | None, note: str) -> Connected:
    con = duckdb.connect(":memory:")
    con.execute(_QUIET)
    create_schema(con)
    report = load_journals(con, store / FOLDER, store / archive.FOLDER)
    if prepare is not None:
        prepare(con)
    return Connected(con, "memory", (note, *report.notes))


def _open(path: Path, patience_s: float, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    end = time.monotonic() + patience_s
    while True:
        try:
            with _explaining(path):
                return duckdb.connect(str(path), read_only=read_only, config=_CONFIG)
        except StoreBusy:
            if time.monotonic() >= end:
                raise
            time.sleep(0.05)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Turn DuckDB's errors about the file `path` into ours."""
    try:
        yield
    except duckdb.ConnectionException as error:
        raise StoreBusy(f"{path} is open elsewhere in this process") from error
    except (duckdb.Error, OSError) as error:
        text = str(error).partition("\n")[0]
        if "Could not set lock" in text:
            holder = text.partition("held in ")[2].partition(")")[0]
            raise StoreBusy(f"{path} is in use by {holder})" if holder else f"{path} is in use") from error
        if any(sign in text for sign in _DAMAGE):
            raise _Damaged(f"{path} cannot be read ({text})") from error
        if isinstance(error, (duckdb.IOException, duckdb.FatalException, duckdb.TransactionException, OSError)):
            raise StoreUnwritable(f"{path} cannot be written ({text})") from error
        raise


def _put_aside(path: Path) -> Path:
    aside = path.with_name(path.name + ".old")
    path.replace(aside)
    # What is left in the write-ahead log belongs to the old file.
    path.with_name(path.name + ".wal").unlink(missing_ok=True)
    return aside
