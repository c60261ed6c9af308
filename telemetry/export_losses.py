"""Counts what receivers refused and what was given up, from the cursors of exports (`telemetry.ledger`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from telemetry.ledger import FOLDER, Destination, Entry, Exported, Failed

if TYPE_CHECKING:
    from telemetry.metrics import Metrics

_decode = msgspec.json.Decoder(Entry).decode


class ExportLosses:
    """Counts each loss of the exports from `store` once.

    state: how far each cursor was read, in bytes, by an earlier one (its `state`). from_now: what is there already is
    left out.
    """

    def __init__(self, store: Path, state: dict[str, int] | None = None, *, from_now: bool = False) -> None:
        self._folder = store / FOLDER
        self.state = dict(state or {})
        if from_now:
            self.state = {path.name: path.stat().st_size for path in self._list()}

    def count(self, metrics: Metrics) -> None:
        """Add what is new to `metrics`, as dropped spans by sink and reason."""
        for path in self._list():
            for entry, sink in self._read_new(path):
                if isinstance(entry, Exported) and entry.refused:
                    metrics.drop(sink, "refused", entry.refused)
                elif isinstance(entry, Failed):
                    metrics.drop(sink, "failed", entry.spans)

    def _list(self) -> list[Path]:
        return sorted(self._folder.glob("*.ndjson"))

    def _read_new(self, path: Path) -> Iterator[tuple[Entry, str]]:
        with path.open("rb") as file:
            sink = _name_sink(file.readline())
            start = self.state.get(path.name, 0)
            if start > path.stat().st_size:
                start = 0  # it was begun afresh
            file.seek(start)
            *lines, _ = file.read().split(b"\n")  # the last one is not whole yet, or empty
        self.state[path.name] = start + sum(len(line) + 1 for line in lines)
        for line in lines:
            try:
                yield _decode(line), sink
            except msgspec.DecodeError:
                continue  # its writer was killed in the middle of it


def _name_sink(first_line: bytes) -> str:
    try:
        first = _decode(first_line)
    except msgspec.DecodeError:
        return "file"
    return "otlp" if isinstance(first, Destination) and "://" in first.destination else "file"
