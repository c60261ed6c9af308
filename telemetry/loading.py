"""Fills the tables from journals and the archive: what is new in them, each line once, in whatever order they come.

Rows are committed together with the note of how far each journal was read, so a load that is broken off loses nothing
and is taken up by the next. Large journals are taken whole (`telemetry.large`) where nothing about them is odd; of the
others, while one group of batches is inserted, another thread reads the next.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from telemetry.archive import list_batches
from telemetry.archive_loading import Stale, has_batches, load_batches
from telemetry.bulk import Spool
from telemetry.completion import complete_rows
from telemetry.errors import RoundscopeError
from telemetry.inserting import REFUSALS, find_origins, insert_batches, transaction
from telemetry.journal import SUFFIX
from telemetry.large import load_large
from telemetry.logs import get_logger
from telemetry.reading import BATCH_BYTES, Batch, Replaced, TooNew, is_as_it_was, read_journal
from telemetry.schema import JournalRow, layouts
from telemetry.unique import check_unique

GROUPS_AT_ONCE = 16
"""Groups in a transaction. Long ones save DuckDB from writing rows twice, to its log and to its tables."""

_COUNTS = ("n_lines", "n_rejected", "n_torn", "n_lost")


@dataclass
class LoadReport:
    """What was new in the journals, and what a user should know of it."""

    n_lines: int = 0
    n_rejected: int = 0
    n_torn: int = 0
    n_lost: int = 0
    notes: list[str] = field(default_factory=list)


def load_journals(con: duckdb.DuckDBPyConnection, folder: Path, archive: Path | None = None) -> LoadReport:
    """Bring the tables up to date with the journals in `folder`, and with what was archived."""
    before = _sum_up(con)
    with TemporaryDirectory(prefix="roundscope-") as spool:
        try:
            notes = _load(con, folder, archive, Spool(Path(spool)))
        except KeyboardInterrupt:
            get_logger().warning(
                "store.load_interrupted",
                unread_bytes=_measure_unread(con, folder),
                effect="the tables lack the end of these journals until the store is read again",
            )
            raise
        except (Replaced, Stale) as error:
            _clear(con)
            before = _sum_up(con)
            notes = _load(con, folder, archive, Spool(Path(spool)))
            what = f"the journal {error} is not the file it was" if isinstance(error, Replaced) else str(error)
            notes.append(f"{what}: all tables were made anew from the journals")
    after = _sum_up(con)
    report = LoadReport(notes=notes, **{name: after[name] - before[name] for name in _COUNTS})
    if report.n_rejected or report.n_torn or report.n_lost:
        notes.append(
            f"new in the journals: {report.n_torn} torn lines, {report.n_rejected} rejected ones (see the table "
            f"`rejected`), {report.n_lost} records that could not be written"
        )
    return report


def is_current(con: duckdb.DuckDBPyConnection, folder: Path, archive: Path) -> bool:
    """Whether the tables have all that the journals in `folder` and the archive hold; nothing is changed."""
    known = _fetch_known(con)
    try:
        # Sizes first: a journal that has grown need not be read to know.
        if any(path.name not in known or path.stat().st_size != known[path.name].bytes_read for path in _find(folder)):
            return False
        notes: list[str] = []
        return next(_read_all(folder, known, notes), None) is None and not notes and has_batches(con, archive)
    except (Replaced, OSError):
        return False


def _sum_up(con: duckdb.DuckDBPyConnection) -> dict[str, int]:
    sums = ", ".join(f"coalesce(sum({name}), 0)::bigint" for name in _COUNTS)
    [row] = con.execute(f"SELECT {sums} FROM journals").fetchall()
    return dict(zip(_COUNTS, row, strict=True))


def _clear(con: duckdb.DuckDBPyConnection) -> None:
    with transaction(con):
        for layout in layouts():
            con.execute(f"DELETE FROM {layout.name}")


def _load(con: duckdb.DuckDBPyConnection, folder: Path, archive: Path | None, spool: Spool) -> list[str]:
    """Load what is new, and say what could not be read."""
    while True:
        batches = [] if archive is None else list_batches(archive)
        archived = [] if archive is None else load_batches(con, archive)
        notes = [*archived, *_load_new(con, folder, spool)]
        # What was archived meanwhile may be in neither: its journal had gone before it was read.
        if archive is None or list_batches(archive) == batches:
            break
    with transaction(con):
        complete_rows(con)
    return notes


def _load_new(con: duckdb.DuckDBPyConnection, folder: Path, spool: Spool) -> list[str]:
    load_large(con, _find(folder), _fetch_known(con), spool)
    [(threads,)] = con.execute("SELECT current_setting('threads')").fetchall()
    con.execute(f"SET threads = {max(1, threads - 1)}")  # one processor is left to the thread that reads
    try:
        notes = _load_at_once(con, folder, spool)
    except REFUSALS:
        notes = _load_in_steps(con, folder, spool)
    finally:
        con.execute(f"SET threads = {threads}")
    return notes


def _load_at_once(con: duckdb.DuckDBPyConnection, folder: Path, spool: Spool) -> list[str]:
    """Insert without looking: fast, but one bad row undoes what is not committed yet, and raises."""
    notes: list[str] = []
    with closing(_read_ahead(_group(_read_all(folder, _fetch_known(con), notes)))) as groups:
        n_done = GROUPS_AT_ONCE
        while n_done == GROUPS_AT_ONCE:
            n_done = 0
            with transaction(con):
                journals: set[str] = set()
                for group in islice(groups, GROUPS_AT_ONCE):
                    insert_batches(con, group, spool, carefully=False)
                    journals |= find_origins(group)
                    n_done += 1
                check_unique(con, journals)
    return notes


def _load_in_steps(con: duckdb.DuckDBPyConnection, folder: Path, spool: Spool) -> list[str]:
    """Insert group by group; where a group has a bad row, judge its rows one by one."""
    notes: list[str] = []
    with closing(_read_ahead(_group(_read_all(folder, _fetch_known(con), notes)))) as groups:
        for group in groups:
            try:
                with transaction(con):
                    insert_batches(con, group, spool, carefully=False)
                    check_unique(con, find_origins(group))
            except REFUSALS:
                with transaction(con):
                    insert_batches(con, group, spool, carefully=True)
    return notes


def _fetch_known(con: duckdb.DuckDBPyConnection) -> dict[str, JournalRow]:
    names = JournalRow.__struct_fields__
    rows = con.execute(f"SELECT {', '.join(names)} FROM journals").fetchall()
    return {row[0]: JournalRow(**dict(zip(names, row, strict=True))) for row in rows}


def _find(folder: Path) -> list[Path]:
    """The journals. Raises RoundscopeError if the folder cannot be read: it would look as if nothing was recorded."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RoundscopeError(
            f"cannot read the journals in {folder}: {error.strerror}; ask as somebody who may, or let others read it"
        ) from error
    return sorted(path for name in names if name.endswith(SUFFIX) and (path := folder / name).is_file())


def _read_all(folder: Path, known: dict[str, JournalRow], notes: list[str]) -> Iterator[Batch]:
    for path in _find(folder):
        before = known.pop(path.name, None)
        try:
            if before is None or before.archived_in is None:
                yield from read_journal(path, before)
            elif not is_as_it_was(path, before):
                notes.append(
                    f"{path} is not the journal of that name that was archived; it is left out: give it another name"
                )
        except TooNew as error:
            notes.append(str(error))
        except FileNotFoundError:
            continue  # archived just now
        except OSError as error:
            notes.append(f"cannot read the journal {path}: {error.strerror}")
    for gone in known.values():
        if gone.writer == "running":
            gone.writer = "unknown"
            yield Batch(gone)


def _measure_unread(con: duckdb.DuckDBPyConnection, folder: Path) -> dict[str, int]:
    """Of each journal that is not in the tables to its end: how many bytes are missing."""
    known = _fetch_known(con)
    read = {path: known[path.name].bytes_read if path.name in known else 0 for path in _find(folder)}
    return {path.name: unread for path, n_read in read.items() if (unread := path.stat().st_size - n_read)}


def _group(batches: Iterator[Batch]) -> Iterator[list[Batch]]:
    """Small batches together, so that many short journals are not many transactions."""
    group: list[Batch] = []
    for batch in batches:
        group.append(batch)
        if sum(batch.size for batch in group) >= BATCH_BYTES // 2:
            yield group
            group = []
    if group:
        yield group


def _read_ahead(groups: Iterator[list[Batch]]) -> Generator[list[Batch]]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        coming = pool.submit(next, groups, None)
        while (group := coming.result()) is not None:
            coming = pool.submit(next, groups, None)
            yield group
