"""Loads large journals whole: DuckDB reads the files while their lines are checked here, and both must count the same.

Almost all lines of a large journal are of one kind. DuckDB's own reader of JSON, which is several times as fast as
sorting lines in Python, inserts those, leniently; meanwhile every line is decoded strictly, at once and not one by
one, and the rest are inserted as usual. If anything is odd, the transaction is undone, and the journals are left to be
loaded line by line: a refused row, a line that is no record (one that breaks off is no harm), another number of lines.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb
from msgspec import Struct

from telemetry.bulk import Spool, insert, select_kind
from telemetry.inserting import OPENS, REFUSALS, insert_batches, transaction
from telemetry.reading import UNREADABLE, Batch, TooNew, decode_line, is_locked, read_journal
from telemetry.records import SCHEMA_VERSION, JournalRecord
from telemetry.schema import JournalRow, describe_columns, kind_name
from telemetry.unique import check_unique

LARGE_BYTES = 8 << 20
"""What is new in a journal from here up is worth it."""

GROUP_BYTES = 2 << 30
"""About as much is committed at once."""

_SAMPLE_BYTES = 1 << 18


class Odd(Exception):
    """Journals are to be loaded line by line."""


@dataclass(frozen=True)
class Large:
    """A journal with much that is new, most of it lines of one kind. source: where DuckDB finds that, up to `limit`."""

    path: Path
    before: JournalRow | None
    kind: type[Struct]
    size: int
    source: Path
    limit: int | None


def load_large(
    con: duckdb.DuckDBPyConnection, paths: Iterable[Path], known: dict[str, JournalRow], spool: Spool
) -> None:
    """Load what is large among these journals; what is odd is left as it was. Raises Replaced."""
    for group in _group(_find_large(paths, known, spool)):
        with suppress(Odd, TooNew, OSError, duckdb.IOException, *REFUSALS), _in_no_order(con), transaction(con):
            insert_batches(con, _insert_large(con, group), spool, carefully=False)
            check_unique(con, {large.path.name for large in group})
        spool.clear()


@contextmanager
def _in_no_order(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let all threads insert, which needs rows to come in no order."""
    # As many as there are processors: with one more, the thread that checks the lines is the last to end, alone.
    con.execute("SET preserve_insertion_order = false")
    try:
        yield
    finally:
        con.execute("SET preserve_insertion_order = true")


def _find_large(paths: Iterable[Path], known: dict[str, JournalRow], spool: Spool) -> Iterator[Large]:
    for path in paths:
        before = known.get(path.name)
        if before is None or before.archived_in is None:
            with suppress(OSError), path.open("rb", buffering=0) as file:
                large = _look(file.fileno(), path, before, spool)
                if large is not None:
                    yield large


def _look(fd: int, path: Path, before: JournalRow | None, spool: Spool) -> Large | None:
    start = 0 if before is None else before.bytes_read
    end = os.fstat(fd).st_size
    if end - start < LARGE_BYTES:
        return None
    kind = _find_kind(os.pread(fd, _SAMPLE_BYTES, start).split(b"\n")[:-1])
    if kind is None:
        return None
    if start == 0 and is_locked(fd) is False:
        return Large(path, before, kind, end, path, None)
    # What may grow, or is known in part, is copied up to the end of a line.
    end -= _SAMPLE_BYTES
    end += os.pread(fd, _SAMPLE_BYTES, end).rfind(b"\n") + 1
    return Large(path, before, kind, end - start, spool.copy(fd, path.name, start, end), end)


def _find_kind(sample: list[bytes]) -> type[Struct] | None:
    """The kind of most of these lines, if they are rows of a table."""
    kinds: Counter[type[Struct]] = Counter()
    for line in sample:
        with suppress(*UNREADABLE):
            record = decode_line(line)
            kinds[type(record)] += 1
            if isinstance(record, JournalRecord) and record.schema_version > SCHEMA_VERSION:
                return None
    [(kind, n)] = kinds.most_common(1) or [(JournalRecord, 0)]
    return kind if kind in OPENS and 2 * n > len(sample) else None


def _group(found: Iterator[Large]) -> Iterator[list[Large]]:
    """Journals of the same kind that are loaded together."""
    group: list[Large] = []
    for large in found:
        if group and (large.kind is not group[0].kind or sum(each.size for each in group) >= GROUP_BYTES):
            yield group
            group = []
        group.append(large)
    if group:
        yield group


def _insert_large(con: duckdb.DuckDBPyConnection, group: list[Large]) -> list[Batch]:
    """Insert the lines of their kind; the batches have the others. Raises Odd, TooNew, one of REFUSALS."""
    kind = group[0].kind
    given = describe_columns(kind)
    source = select_kind([large.source for large in group], kind_name(kind), given)
    insertion = _Insertion(con, source, kind)
    try:
        batches = [batch for large in group for batch in _check(large)]
    except BaseException:
        con.interrupt()
        insertion.join()
        raise
    if insertion.finish() != sum(batch.n_counted for batch in batches):
        raise Odd
    return batches


def _check(large: Large) -> Iterator[Batch]:
    for batch in read_journal(large.path, large.before, counted=large.kind, limit=large.limit):
        if batch.rejected:
            raise Odd
        yield batch


class _Insertion(threading.Thread):
    """Inserts while another thread reads; nobody else may use the connection before it has ended."""

    def __init__(self, con: duckdb.DuckDBPyConnection, source: str, kind: type[Struct]) -> None:
        super().__init__(name="roundscope insertion", daemon=True)
        self._con, self._source, self._kind = con, source, kind
        self._n = -1
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Insert."""
        try:
            self._n = insert(self._con, OPENS[self._kind], self._source, describe_columns(self._kind))
        except BaseException as error:
            self._error = error

    def finish(self) -> int:
        """How many rows were inserted."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._n
