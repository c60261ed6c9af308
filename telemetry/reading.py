"""Reads journals: which lines are whole, which are records, and whether the writer still lives.

A journal is read in batches of whole lines from where reading stopped last time. Every line is decoded by the
definitions in `telemetry.records`, strictly: a number in quotes is no number. A line that breaks off is torn, any other
that cannot be decoded is rejected with the decoder's reason; neither keeps the rest from being read.
"""

from __future__ import annotations

import fcntl
import os
import socket
import zlib
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from telemetry.records import SCHEMA_VERSION, JournalRecord, LossRecord, Record
from telemetry.schema import JournalRow, Rejected, Writer

BATCH_BYTES = 16 << 20
_PIECE_BYTES = 1 << 17
"""What is decoded at once: it and its records fit into a processor's own cache. Meanwhile no other thread of Python's
can go on, not even to give DuckDB its next task."""

SHOWN_CHARACTERS = 500
_WINDOW = 1024
_BROKEN_OFF = "Input data was truncated"

UNREADABLE = (msgspec.DecodeError, RecursionError)
"""What `decode_line` raises for a line that is no record."""

Sorted = TypeVar("Sorted")

_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
decode_line = _decoder.decode
_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(JournalRecord).decode
_decode_loss = msgspec.json.Decoder(LossRecord).decode


class Replaced(Exception):
    """A journal is not the file that was read before: what it gave is void."""


class TooNew(Exception):
    """A journal was written by a version of roundscope whose records this one does not know."""


@dataclass
class Batch:
    """Some lines of a journal. `lines` and `numbers` (from 1) belong together; `row` is the journal's after them.

    n_counted: lines of the kind that was to be counted only; they are not in `lines`.
    """

    row: JournalRow
    size: int = 0
    lines: dict[type[Struct], list[bytes]] = field(default_factory=dict)
    numbers: dict[type[Struct], list[int]] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    n_counted: int = 0


def read_journal(
    path: Path, before: JournalRow | None, *, counted: type[Struct] | None = None, limit: int | None = None
) -> Iterator[Batch]:
    """What `path` holds beyond `before`, the state in which it was left; nothing if it is as it was.

    counted: a kind whose lines are checked and counted, and not given. limit: where to stop, the end of a line. Raises
    what `read_batches` does.
    """
    sort = _sort_lines if counted is None else partial(_count_lines, counted)
    for row, size, batch in read_batches(path, before, sort, limit, None if counted is None else _PIECE_BYTES):
        if batch is None:
            batch = Batch(row)
        batch.row, batch.size = row, size
        yield batch


def read_batches(
    path: Path,
    before: JournalRow | None,
    sort: Callable[[bytes, JournalRow], Sorted],
    limit: int | None = None,
    size: int | None = None,
) -> Iterator[tuple[JournalRow, int, Sorted | None]]:
    """Some lines at a time beyond `before`: the journal's row after them, their bytes, and what `sort` makes of them.

    They are about `size` bytes (default: BATCH_BYTES), and none beyond `limit`.

    `sort` gets the lines, and the row before them, in which it takes down what they say. Where only the writer's state
    is new, there is one row without lines. A last line without an end is left for later while the writer may still
    finish it. Raises Replaced, TooNew, OSError.
    """
    with open(path, "rb", buffering=0) as file:
        fd = file.fileno()
        # Before reading: a writer that has gone by now has left all its lines.
        held = is_locked(fd)
        row = JournalRow(journal=path.name, writer="unknown") if before is None else copy(before)
        if _is_other(fd, row):
            raise Replaced(path.name)
        row.writer = _judge_writer(held, row.host)
        n_batches = 0
        for data, n_bytes in _read_lines(fd, row, limit, size or BATCH_BYTES):
            batch = sort(data, row)
            row.bytes_read += n_bytes
            row.fingerprint = _fingerprint(fd, row.bytes_read)
            row.writer = _judge_writer(held, row.host)
            n_batches += 1
            yield copy(row), n_bytes, batch
        if not n_batches and row != before:
            yield row, 0, None


def is_as_it_was(path: Path, row: JournalRow) -> bool:
    """Whether a journal holds what was read of it, and nothing more. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return os.fstat(file.fileno()).st_size == row.bytes_read and not _is_other(file.fileno(), row)


def is_locked(fd: int) -> bool | None:
    """Whether another open file holds the lock; None where the file system cannot tell.

    Asks for a shared lock and lets go at once. A writer that begins at this very moment waits for microseconds, as it
    asks for its own lock without a time limit.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _judge_writer(held: bool | None, host: str | None) -> Writer:
    if held:
        return "running"
    return "ended" if held is False and host == socket.gethostname() else "unknown"


def _is_other(fd: int, row: JournalRow) -> bool:
    size = os.fstat(fd).st_size
    if size < row.bytes_read or _fingerprint(fd, row.bytes_read) != row.fingerprint:
        return True
    # What was read ends without a line's end: it was taken for the last word of a writer that had gone. It was not.
    return size > row.bytes_read > 0 and os.pread(fd, 1, row.bytes_read - 1) != b"\n"


def _fingerprint(fd: int, length: int) -> int:
    size = min(length, _WINDOW)
    return zlib.crc32(os.pread(fd, size, 0) + os.pread(fd, size, length - size))


def _read_lines(fd: int, row: JournalRow, limit: int | None, usual: int) -> Iterator[tuple[bytes, int]]:
    """The lines from `row.bytes_read` on, about `usual` bytes of them at a time, less the end of the last one.

    With each their size in the file.
    """
    size = usual
    while True:
        size = size if limit is None else min(size, limit - row.bytes_read)
        data = os.pread(fd, size, row.bytes_read)
        end = data.rfind(b"\n")
        if end >= 0:
            yield data[:end], end + 1
        if len(data) < size or not data:
            break
        size = usual if end >= 0 else 2 * size
    if row.writer == "ended" and (tail := data[end + 1 :]):
        yield tail, len(tail)


def _sort_lines(data: bytes, row: JournalRow) -> Batch:
    """Decode every line and put it with those of its kind; count in `row` what is no record."""
    batch = Batch(row)
    lines = data.split(b"\n")
    last: type[Struct] | None = None
    for number, line in enumerate(lines, row.n_lines + 1):
        try:
            record = decode_line(line)
        except UNREADABLE as error:
            if is_torn(error):
                row.n_torn += 1
            else:
                batch.rejected.append(reject(row.journal, number, str(error), line))
            continue
        kind = type(record)
        if kind is not last:
            last = kind
            kept = batch.lines.setdefault(kind, [])
            numbers = batch.numbers.setdefault(kind, [])
        kept.append(line)
        numbers.append(number)
    row.n_lines += len(lines)
    _take_down(batch)
    return batch


def _take_down(batch: Batch) -> None:
    """Note in the journal's row what its own lines say."""
    for line in batch.lines.get(JournalRecord, ()):
        take_over(_decode_header(line), batch.row)
    batch.row.n_lost += sum(_decode_loss(line).n_records for line in batch.lines.get(LossRecord, ()))


def _count_lines(kind: type[Struct], data: bytes, row: JournalRow) -> Batch:
    """Decode all lines at once, or where anything about them is odd, one by one; those of `kind` are only counted."""
    batch = _sort_at_once(kind, data, row)
    if batch is None:
        batch = _sort_lines(data, row)
        batch.n_counted = len(batch.lines.pop(kind, ()))
        batch.numbers.pop(kind, None)
    else:
        _take_down(batch)
    return batch


def _sort_at_once(kind: type[Struct], data: bytes, row: JournalRow) -> Batch | None:
    """The batch of lines that are a record each, those of `kind` counted; None, and `row` as it was, if others may be.

    Decoding at once takes no heed of where lines end. There are as many lines as records, though, and those of other
    kinds are lines of their own; that those of `kind` are is for the caller to find, who counts them as well.
    """
    try:
        records = _decoder.decode_lines(data)
    except UNREADABLE:
        return None
    lines = BytesIO(data + b"\n").readlines()  # `split` looks at every byte
    if len(lines) != len(records):
        return None
    batch = Batch(row)
    for i, found in enumerate(map(type, records)):
        if found is not kind:
            line = _encode(records[i])
            if lines[i] != line + b"\n":
                return None
            batch.lines.setdefault(found, []).append(line)
            batch.numbers.setdefault(found, []).append(row.n_lines + 1 + i)
    batch.n_counted = len(records) - sum(map(len, batch.lines.values()))
    row.n_lines += len(records)
    return batch


def is_torn(error: BaseException) -> bool:
    """Whether `decode_line` failed because the line breaks off, and not because of what is in it."""
    return str(error) == _BROKEN_OFF


def take_over(header: JournalRecord, row: JournalRow) -> None:
    """Take down in `row` who writes the journal. Raises TooNew."""
    if header.schema_version > SCHEMA_VERSION:
        raise TooNew(
            f"{row.journal} was written by roundscope {header.roundscope_version} (records of version "
            f"{header.schema_version}, known here: up to {SCHEMA_VERSION}); it is left out until roundscope is upgraded"
        )
    if row.host is None:
        row.schema_version = header.schema_version
        row.host = header.host
        row.pid = header.pid
        row.created_wall_ns = header.created_wall_ns
        row.roundscope_version = header.roundscope_version


def reject(journal: str, number: int, reason: str, line: bytes) -> Rejected:
    """The row of `rejected` for a line."""
    text = line[: 4 * SHOWN_CHARACTERS].decode("utf-8", "replace")[:SHOWN_CHARACTERS]
    return Rejected(journal=journal, line=number, reason=reason, text=text)
