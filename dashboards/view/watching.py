"""Whether anything is new in a store, without reading it: by the sizes and times of its journals, and their locks.

And of the cursors of exports, which say whose spans did not arrive.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from telemetry import ledger
from telemetry.journal import FOLDER, SUFFIX
from telemetry.reading import is_locked

Look: TypeAlias = tuple[int, int, int]
"""Of a file: inode, size in bytes, time of the last change [ns since epoch]."""


class Watch:
    """Looks at the journals and cursors of a store; one thread at a time."""

    def __init__(self, store: Path) -> None:
        self._folder = store / FOLDER
        self._exported = store / ledger.FOLDER
        self._cursors: dict[str, Look] = {}
        self._seen: dict[str, tuple[Look, bool | None]] = {}

    def look(self) -> None:
        """See how they are now. A store without any, or without a folder, has none."""
        self._seen = {name: (look, self._see_lock(name, look)) for name, look in _list(self._folder)}
        self._cursors = dict(_list(self._exported))

    def version(self, journals: Collection[str] | None = None) -> str:
        """A word that changes when one of these journals (None: any) or a cursor does, or when its writer ends."""
        names = sorted(self._seen if journals is None else journals)
        looks = [(name, self._seen.get(name)) for name in names], sorted(self._cursors.items())
        return sha256(repr(looks).encode()).hexdigest()[:16]

    def _see_lock(self, name: str, look: Look) -> bool | None:
        """Whether its writer lives; what was let go once is not taken again."""
        if self._seen.get(name) == (look, False):
            return False
        try:
            with open(self._folder / name, "rb", buffering=0) as file:
                return is_locked(file.fileno())
        except OSError:
            return None


def _list(folder: Path) -> Iterator[tuple[str, Look]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    stat = entry.stat()
                    yield entry.name, (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    except OSError:
        return
