"""Whether anything is new in a store, without reading it: by the sizes and times of its journals, and their locks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from telemetry.journal import FOLDER, SUFFIX
from telemetry.reading import is_locked

Look: TypeAlias = tuple[int, int, int]
"""Of a file: inode, size in bytes, time of the last change [ns since epoch]."""


class Watch:
    """Looks at the journals of a store; one thread at a time."""

    def __init__(self, store: Path) -> None:
        self._folder = store / FOLDER
        self._seen: dict[str, tuple[Look, bool | None]] = {}

    def look(self) -> None:
        """See how the journals are now. A store without journals, or without a folder, has none."""
        self._seen = {name: (look, self._see_lock(name, look)) for name, look in self._list()}

    def version(self, journals: Collection[str] | None = None) -> str:
        """A word that changes when one of these journals (None: any) does, or when its writer ends."""
        names = sorted(self._seen if journals is None else journals)
        return sha256(repr([(name, self._seen.get(name)) for name in names]).encode()).hexdigest()[:16]

    def _list(self) -> Iterator[tuple[str, Look]]:
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.endswith(SUFFIX):
                        stat = entry.stat()
                        yield entry.name, (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        except OSError:
            return

    def _see_lock(self, name: str, look: Look) -> bool | None:
        """Whether its writer lives; what was let go once is not taken again."""
        if self._seen.get(name) == (look, False):
            return False
        try:
            with open(self._folder / name, "rb", buffering=0) as file:
                return is_locked(file.fileno())
        except OSError:
            return None
