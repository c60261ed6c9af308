"""What was exported where: the cursor of exports, kept in the store.

A line a generation and destination, appended as soon as the destination has it, so that an export that is broken off
goes on where it stopped; runs' followers and `roundscope export` share it, several at a time. What is noted is not sent
again. Sent but not noted, and so sent twice with the same ids, can be: a generation whose export was killed in between,
one of which only a part arrived, and one that two exports have in hand at the same moment. The file says nothing of
what was recorded and may be deleted: then everything is exported again, with the same ids.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from telemetry.errors import RoundscopeError

FOLDER = "exported"
Loss: TypeAlias = Literal["refused", "failed"]


class Destination(Struct, tag="destination", tag_field="type"):
    """The first line: where to, and since when. A later one voids what stands before it: the destination was empty."""

    destination: str
    begun_wall_ns: int = 0


class Exported(Struct, tag="exported", tag_field="type"):
    """A generation that the destination has, or will never take."""

    generation_id: str
    sent: int
    refused: int


class Failed(Struct, tag="failed", tag_field="type"):
    """Spans that a run's follower gave up on, for the metrics; their generations can still be exported."""

    spans: int
    reason: Loss = "failed"


class Losses(Struct):
    """Of one destination: the generations that it has, or took in part; of those how many spans it refused for good,
    by id; and how many spans it refused, or were given up on, so far."""

    destination: str
    exported: set[str]
    refused: dict[str, int]
    n_spans: int = 0


Entry: TypeAlias = Destination | Exported | Failed
_decode = msgspec.json.Decoder(Entry).decode
_encode = msgspec.json.Encoder().encode


def decode_entries(data: bytes) -> Iterator[Entry]:
    """The entries in the lines of a cursor, less what is none: its writer was killed in the middle of it."""
    for line in data.split(b"\n"):
        with suppress(msgspec.DecodeError):
            yield _decode(line)


def read_losses(store: Path) -> Iterator[Losses]:
    """What each destination that something was not delivered to lacks; cursors that cannot be read are left out."""
    for path in sorted((store / FOLDER).glob("*.ndjson")):
        losses: Losses | None = None
        try:
            data = path.read_bytes()
        except OSError:
            continue
        for entry in decode_entries(data):
            if isinstance(entry, Destination):
                losses = Losses(entry.destination, set(), {})
            elif losses is None:
                continue
            elif isinstance(entry, Exported):
                losses.exported.add(entry.generation_id)
                losses.n_spans += entry.refused
                if entry.refused:
                    losses.refused[entry.generation_id] = entry.refused
            else:
                losses.n_spans += entry.spans
        if losses is not None and losses.n_spans:
            yield losses


class Ledger:
    """The generations that `destination` has, by whichever export.

    afresh: the destination is empty, so what was noted before is void. alone: RoundscopeError if another export to it
    is going on, and none can begin meanwhile.
    """

    def __init__(self, store: Path, destination: str, *, afresh: bool = False, alone: bool = False) -> None:
        name = _strip(destination)
        self.path = store / FOLDER / f"{sha256(name.encode()).hexdigest()[:16]}.ndjson"
        self._exported: set[str] = set()
        self._read_to = 0
        self._alone = alone
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._cannot_write(error) from error
        try:
            self._begin(name, afresh)
        except BaseException:
            self.close()
            raise

    def _begin(self, name: str, afresh: bool) -> None:
        if self._alone:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RoundscopeError(f"another export to {name} is going on; wait until it has ended") from None
        with self._locked():
            if afresh or not os.fstat(self._fd).st_size:
                self._write(Destination(name, time.time_ns()))

    def has(self, generation_id: str) -> bool:
        """Whether the destination has this generation, as far as anybody has noted."""
        self._read_new()
        return generation_id in self._exported

    def note(self, generation_id: str, *, sent: int, refused: int) -> None:
        """The destination has this generation."""
        self._append(Exported(generation_id, sent, refused))

    def note_failed(self, spans: int, reason: Loss = "failed") -> None:
        """The destination did not get this many spans in time, or refused them for now."""
        self._append(Failed(spans, reason))

    def _read_new(self) -> None:
        size = os.fstat(self._fd).st_size
        if size <= self._read_to:
            return
        lines, end, _ = os.pread(self._fd, size - self._read_to, self._read_to).rpartition(b"\n")
        self._read_to += len(lines) + len(end)
        for entry in decode_entries(lines):
            if isinstance(entry, Exported):
                self._exported.add(entry.generation_id)
            elif isinstance(entry, Destination):
                self._exported.clear()

    def _append(self, entry: Entry) -> None:
        with self._locked():
            self._write(entry)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else writes meanwhile; whoever reads and sends is not kept from it."""
        try:
            if not self._alone:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                if not self._alone:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _write(self, entry: Entry) -> None:
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")  # whoever wrote last was killed in the middle of it
        os.write(self._fd, _encode(entry) + b"\n")

    def _cannot_write(self, error: OSError) -> RoundscopeError:
        return RoundscopeError(
            f"cannot write the cursor of exports {self.path}: {error.strerror}; free space, or look at the permissions "
            "there"
        )

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _strip(destination: str) -> str:
    """Without what may be secret in an address: user, password and query."""
    parts = urlsplit(destination)
    if not parts.netloc:
        return destination
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
