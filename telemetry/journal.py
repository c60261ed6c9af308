"""The journal: one append-only NDJSON file per process, written as things happen.

A line is handed to the operating system as soon as its record exists, so it outlives the process however that
ends. An advisory lock is held on the file while its writer lives: lock free and no end record means that the
writer died. After a failed write the next record starts on a new line, and what was lost is counted and noted
in the file once writing works.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import threading
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from telemetry import roundscope_version
from telemetry.errors import RoundscopeError
from telemetry.logs import get_logger
from telemetry.records import SCHEMA_VERSION, JournalRecord, LossRecord, Record

FOLDER = "journal"
SUFFIX = ".ndjson"
_CUT_SHORT = "only part of a line was written: the disk is probably full"

_open_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def check_writable(store: Path | str) -> None:
    """Raise RoundscopeError if no journal could be written in `store`; nothing is made."""
    folder = Path(store) / FOLDER
    place = next(place for place in (folder, *folder.parents) if place.exists())
    if not place.is_dir():
        raise _cannot_write(folder, f"{place} is not a directory")
    if not os.access(place, os.W_OK | os.X_OK):
        raise _cannot_write(folder, os.strerror(errno.EACCES))


def _cannot_write(folder: Path, reason: str | None) -> RoundscopeError:
    return RoundscopeError(f"cannot write a journal in {folder}: {reason}. Choose another place with --store DIR.")


class Journal:
    """The journal of this process in a store. A forked child gets a file of its own at its first write.

    Raises RoundscopeError if the store cannot be written to at all; later failures are counted in `n_lost`,
    not raised.
    """

    def __init__(self, store: Path | str) -> None:
        self._folder = Path(store) / FOLDER
        self._encode = msgspec.json.Encoder().encode_lines
        self._lock = threading.Lock()
        self.n_lost = 0
        self._closed = False
        self._begin_afresh()
        self._open()
        _open_journals.add(self)

    def _begin_afresh(self) -> None:
        self._fd = -1
        self._unreported = 0
        self._reason = ""
        self._torn = False
        self._well = False

    def _open(self) -> None:
        created = time.time_ns()
        stamp = datetime.fromtimestamp(created / 1e9, UTC).strftime("%Y%m%dT%H%M%S")
        host = socket.gethostname()
        self.path = self._folder / f"{stamp}-{host}-{os.getpid()}-{os.urandom(4).hex()}{SUFFIX}"
        header = JournalRecord(
            schema_version=SCHEMA_VERSION,
            host=host,
            pid=os.getpid(),
            created_wall_ns=created,
            roundscope_version=roundscope_version(),
        )
        line = self._encode((header,))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
            self._lock_file()
            if os.write(self._fd, line) != len(line):
                raise OSError(errno.ENOSPC, _CUT_SHORT)
        except OSError as error:
            self._remove()
            raise _cannot_write(self._folder, error.strerror) from error
        self._well = True

    def _lock_file(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as error:
            # Some network file systems have no locks: readers then cannot tell a dead writer from a live one.
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise

    def _remove(self) -> None:
        # A file without its first line would be a riddle to whoever loads it.
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        with contextlib.suppress(OSError):
            self.path.unlink()

    def write(self, record: Record) -> None:
        """Append one record as one line. A failure is warned about once and counted; it never raises.

        Raises ValueError after `close`.
        """
        try:
            line = self._encode((record,))
        except UnicodeEncodeError as error:
            self._lose(record, f"the record is no text: {error.reason}", torn=False)
            return
        if self._well:
            try:
                written = os.write(self._fd, line)
                if written != len(line):
                    self._cut(record, line, written)
            except OSError as error:
                self._lose(record, error.strerror or str(error), torn=False)
        else:
            self._write_after_trouble(record, line)

    def _write_after_trouble(self, record: Record, line: bytes) -> None:
        if self._closed:
            raise ValueError(f"the journal {self.path} is closed")
        try:
            with self._lock:
                if self._fd < 0:
                    self._open()
                self._note_losses()
                written = os.write(self._fd, line)
        except RoundscopeError as error:
            self._lose(record, str(error), torn=False)
        except OSError as error:
            self._lose(record, error.strerror or str(error), torn=False)
        else:
            if written == len(line):
                self._well = True
            else:
                self._cut(record, line, written)

    def _cut(self, record: Record, line: bytes, written: int) -> None:
        if written < len(line) - 1:
            self._lose(record, _CUT_SHORT, torn=True)
            return
        # The record is whole. The end of its line comes with the next one, and readers do without if there is none.
        with self._lock:
            self._well = False
            self._torn = True

    def _note_losses(self) -> None:
        notes = [LossRecord(n_records=self._unreported, reason=self._reason)] if self._unreported else []
        line = b"\n" * self._torn + self._encode(notes)
        if not line:
            return
        written = os.write(self._fd, line)
        if written != len(line):
            self._torn = True
            if notes and written == len(line) - 1:
                self._unreported = 0
            raise OSError(errno.ENOSPC, _CUT_SHORT)
        self._torn = False
        self._unreported = 0

    def _lose(self, record: Record, reason: str, *, torn: bool) -> None:
        if self.n_lost == 0:
            with contextlib.suppress(Exception):  # standard error may be closed, or on the same full disk
                get_logger().warning(
                    "journal.write_failed",
                    journal=str(self.path),
                    generation_id=getattr(record, "generation_id", None),
                    reason=reason,
                    effect="the generation goes on; records are lost until writing works again",
                    cure="free space, or choose another place with --store DIR",
                )
        with self._lock:
            self._well = False
            self._reason = reason
            self._torn = self._torn or torn
            self.n_lost += 1
            self._unreported += 1

    def close(self) -> None:
        """Let go of the file; generations without an end record count as aborted from now on."""
        if self._closed:
            return
        self._closed = True
        self._well = False
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):  # n_lost holds the number; there is nowhere to write it
            self._note_losses()
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _leave_parents_files() -> None:
    # A child shares its parent's open file: it must neither write there nor keep the parent's lock alive.
    for journal in list(_open_journals):
        if journal._fd >= 0:
            os.close(journal._fd)
        journal._lock = threading.Lock()
        journal.n_lost = 0
        journal._begin_afresh()


os.register_at_fork(after_in_child=_leave_parents_files)
