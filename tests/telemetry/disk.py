"""What the tests of the journal share: small records, readers of its file, and a disk that fails as told."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec

from telemetry.records import Record, RunEnd

really_write = os.write
decode_line = msgspec.json.Decoder(Record).decode


def note(index: int) -> RunEnd:
    """A small record that is told from others by `index`."""
    return RunEnd(run_id="r", outcome="complete", ended_wall_ns=index)


def read(path: Path) -> list[Any]:
    """The records of a journal without damage."""
    text = path.read_bytes()
    assert text.endswith(b"\n")
    return [decode_line(line) for line in text.splitlines()]


def salvage(path: Path) -> list[Any]:
    """The records of whatever lines can be read."""
    found = []
    for line in path.read_bytes().split(b"\n"):
        try:
            found.append(decode_line(line))
        except msgspec.DecodeError:
            continue
    return found


class Disk:
    """Stands for `os.write`: does what the next of `script` says, then works.

    None: write all; a number: write that share of the bytes in per cent; "end": all but the line's end; "full" or
    "gone": fail.
    """

    def __init__(self, script: list[Any]) -> None:
        self.script = list(script)

    def write(self, fd: int, data: bytes) -> int:
        """As os.write."""
        step = self.script.pop(0) if self.script else None
        if step == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if step == "gone":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if step is None:
            return really_write(fd, data)
        if step == "end":
            return really_write(fd, data[:-1])
        return really_write(fd, data[: max(len(data) - 2, 0) * step // 100])
