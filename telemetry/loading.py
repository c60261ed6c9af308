"""Fills the tables from journals and the archive: what is new in them, each line once, in whatever order they come.

Rows are committed together with the note of how far each journal was read, so a load that is broken off loses nothing
and is taken up by the next. While one group of batches is inserted, another thread reads the next.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import msgspec
from msgspec import Struct

from telemetry.archive import list_batches
from telemetry.archive_loading import Stale, has_batches, load_batches
from telemetry.bulk import Spool, insert, insert_carefully
from telemetry.completion import complete_rows
from telemetry.journal import SUFFIX
from telemetry.reading import BATCH_BYTES, Batch, Replaced, TooNew, is_as_it_was, read_journal, reject
from telemetry.records import TABLES
from telemetry.schema import JournalRow, Rejected, Waiting, describe_columns, kind_name, layouts

_REFUSALS = (
    duckdb.ConstraintException,
    duckdb.ConversionException,
    duckdb.InvalidInputException,
    duckdb.OutOfRangeException,
)
_LAYOUTS = {layout.name: layout for layout in layouts()}
_OPENS = {table.opens: _LAYOUTS[table.name] for table in TABLES}
_ADDS = [kind for table in TABLES for kind in table.adds]
GROUPS_AT_ONCE = 16
"""Groups in a transaction. Long ones save DuckDB from writing rows twice, to its log and to its tables."""

_COUNTS = ("n_lines", "n_rejected", "n_torn", "n_lost")
_encode = msgspec.json.Encoder().encode


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
    with _transaction(con):
        for name in _LAYOUTS:
            con.execute(f"DELETE FROM {name}")


def _load(con: duckdb.DuckDBPyConnection, folder: Path, archive: Path | None, spool: Spool) -> list[str]:
    """Load what is new, and say what could not be read."""
    while True:
        batches = [] if archive is None else list_batches(archive)
        archived = [] if archive is None else load_batches(con, archive)
        notes = [*archived, *_load_new(con, folder, spool)]
        # What was archived meanwhile may be in neither: its journal had gone before it was read.
        if archive is None or list_batches(archive) == batches:
            break
    with _transaction(con):
        complete_rows(con)
    return notes


def _load_new(con: duckdb.DuckDBPyConnection, folder: Path, spool: Spool) -> list[str]:
    [(threads,)] = con.execute("SELECT current_setting('threads')").fetchall()
    con.execute(f"SET threads = {max(1, threads - 1)}")  # one processor is left to the thread that reads
    try:
        notes = _load_at_once(con, folder, spool)
    except _REFUSALS:
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
            with _transaction(con):
                for group in islice(groups, GROUPS_AT_ONCE):
                    _apply(con, group, spool, carefully=False)
                    n_done += 1
    return notes


def _load_in_steps(con: duckdb.DuckDBPyConnection, folder: Path, spool: Spool) -> list[str]:
    """Insert group by group; where a group has a bad row, judge its rows one by one."""
    notes: list[str] = []
    with closing(_read_ahead(_group(_read_all(folder, _fetch_known(con), notes)))) as groups:
        for group in groups:
            try:
                with _transaction(con):
                    _apply(con, group, spool, carefully=False)
            except _REFUSALS:
                with _transaction(con):
                    _apply(con, group, spool, carefully=True)
    return notes


def _fetch_known(con: duckdb.DuckDBPyConnection) -> dict[str, JournalRow]:
    names = JournalRow.__struct_fields__
    rows = con.execute(f"SELECT {', '.join(names)} FROM journals").fetchall()
    return {row[0]: JournalRow(**dict(zip(names, row, strict=True))) for row in rows}


def _find(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.is_file())


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


@contextmanager
def _transaction(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    con.begin()
    try:
        yield
    except BaseException:
        with suppress(duckdb.Error):  # after a failed write there may be nothing left to roll back
            con.rollback()
        raise
    con.commit()


def _apply(con: duckdb.DuckDBPyConnection, group: list[Batch], spool: Spool, *, carefully: bool) -> None:
    rejected = [row for batch in group for row in batch.rejected]
    for kind in _OPENS:
        parts = [batch for batch in group if kind in batch.lines]
        if parts:
            rejected += _insert_rows(con, kind, parts, spool, carefully)
    _insert_own(con, "rejected", rejected, spool)
    _insert_own(con, "waiting", [row for batch in group for row in _let_wait(batch)], spool)
    _insert_own(con, "journals", list({batch.row.journal: batch.row for batch in group}.values()), spool)


def _insert_rows(
    con: duckdb.DuckDBPyConnection, kind: type[Struct], parts: list[Batch], spool: Spool, carefully: bool
) -> list[Rejected]:
    layout, given = _OPENS[kind], describe_columns(kind)
    with spool.offer([(batch.row.journal, batch.lines[kind]) for batch in parts], given) as source:
        if not carefully:
            insert(con, layout, source, given)
            return []
        faults = dict(insert_carefully(con, layout, source, given))
    origins = ((batch, i) for batch in parts for i in range(len(batch.lines[kind])))
    return [
        reject(batch.row.journal, batch.numbers[kind][i], faults[position], batch.lines[kind][i])
        for position, (batch, i) in enumerate(origins)
        if position in faults
    ]


def _let_wait(batch: Batch) -> Iterator[Waiting]:
    for kind in _ADDS:
        for number, line in zip(batch.numbers.get(kind, ()), batch.lines.get(kind, ()), strict=True):
            yield Waiting(journal=batch.row.journal, line=number, type=kind_name(kind), record=line.decode())


def _insert_own(
    con: duckdb.DuckDBPyConnection, table: str, rows: Sequence[JournalRow | Rejected | Waiting], spool: Spool
) -> None:
    if not rows:
        return
    given = [column for column in describe_columns(type(rows[0])) if column.name != "journal"]
    with spool.offer([(row.journal, [_encode(row)]) for row in rows], given) as source:
        insert(con, _LAYOUTS[table], source, given)
