"""What was exported where: the cursor of exports, kept in the store.

A line a generation and destination, appended as soon as the destination has it, so that an export that is broken off
goes on where it stopped and nothing is sent twice; a run's follower and `roundscope export` share it. It says nothing
of what was recorded and may be deleted: then everything is exported again, with the same ids.
"""

from __future__ import annotations

import fcntl
import os
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from telemetry.errors import RoundscopeError

FOLDER = "exported"


class Destination(Struct, tag="destination", tag_field="type"):
    """The first line: where to."""

    destination: str


class Exported(Struct, tag="exported", tag_field="type"):
    """A generation that the destination has, or will never take."""

    generation_id: str
    sent: int
    refused: int


class Failed(Struct, tag="failed", tag_field="type"):
    """Spans that a run's follower gave up on, for the metrics; their generations can still be exported."""

    spans: int


Entry: TypeAlias = Destination | Exported | Failed
_decode = msgspec.json.Decoder(Entry).decode
_encode = msgspec.json.Encoder().encode


class Ledger:
    """The generations that `destination` has. One at a time: RoundscopeError if another export to it is going on.

    afresh: the destination is empty, so what was noted before is void.
    """

    def __init__(self, store: Path, destination: str, *, afresh: bool = False) -> None:
        name = _strip(destination)
        self.path = store / FOLDER / f"{sha256(name.encode()).hexdigest()[:16]}.ndjson"
        self.entries: dict[str, Exported] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise RoundscopeError(f"cannot write the cursor of exports {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise RoundscopeError(f"another export to {name} is going on; wait until it has ended") from None
        if afresh:
            os.ftruncate(self._fd, 0)
        self._read(name)

    def _read(self, name: str) -> None:
        with open(self._fd, "rb", closefd=False) as file:
            lines = file.read().split(b"\n")
        if lines == [b""]:
            self._append(Destination(name))
        elif lines[-1]:
            os.write(self._fd, b"\n")  # whoever wrote last was killed in the middle of it
        for line in lines:
            try:
                entry = _decode(line)
            except msgspec.DecodeError:
                continue
            if isinstance(entry, Exported):
                self.entries[entry.generation_id] = entry

    def note(self, generation_id: str, *, sent: int, refused: int) -> None:
        """The destination has this generation."""
        self.entries[generation_id] = Exported(generation_id, sent, refused)
        self._append(self.entries[generation_id])

    def note_failed(self, spans: int) -> None:
        """The destination did not get this many spans in time."""
        self._append(Failed(spans))

    def _append(self, entry: Entry) -> None:
        try:
            os.write(self._fd, _encode(entry) + b"\n")
        except OSError as error:
            raise RoundscopeError(f"cannot write the cursor of exports {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Let another export begin."""
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
