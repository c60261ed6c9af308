"""Counts what receivers refused and what was given up, from the cursors of exports (`telemetry.ledger`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from telemetry.ledger import FOLDER, Destination, Entry, Exported, Failed, decode_entries
from telemetry.logs import get_logger

if TYPE_CHECKING:
    from telemetry.metrics import Metrics


class Position(Struct, array_like=True):
    """How far a cursor was read, in bytes, and when its file was begun: another file of that name is another."""

    begun_wall_ns: int
    read: int


class ExportLosses:
    """Counts each loss of the exports from `store` once. A cursor that cannot be read is left for the next time.

    state: how far each cursor was read by an earlier one (its `state`). from_now: what is there already is left out.
    """

    def __init__(self, store: Path, state: dict[str, Position] | None = None, *, from_now: bool = False) -> None:
        self._folder = store / FOLDER
        self._unreadable: set[str] = set()
        self.state = dict(state or {})
        if from_now:
            for _ in self._read_all():
                pass

    def count(self, metrics: Metrics) -> None:
        """Add what is new to `metrics`, as dropped spans by sink and reason."""
        for entry, sink in self._read_all():
            if isinstance(entry, Exported) and entry.refused:
                metrics.drop(sink, "refused", entry.refused)
            elif isinstance(entry, Failed):
                metrics.drop(sink, entry.reason, entry.spans)

    def _read_all(self) -> Iterator[tuple[Entry, str]]:
        for path in sorted(self._folder.glob("*.ndjson")):
            try:
                yield from self._read_new(path)
                self._unreadable.discard(path.name)
            except OSError as error:
                if path.name not in self._unreadable:
                    get_logger().warning(
                        "metrics.cursor_unreadable",
                        file=str(path),
                        reason=error.strerror or str(error),
                        effect="spans that this export lost are not counted until it can be read",
                    )
                self._unreadable.add(path.name)

    def _read_new(self, path: Path) -> list[tuple[Entry, str]]:
        with path.open("rb") as file:
            first = next(decode_entries(file.readline()), None)
            begun = first.begun_wall_ns if isinstance(first, Destination) else 0
            known = self.state.get(path.name)
            start = known.read if known is not None and known.begun_wall_ns == begun else 0
            file.seek(start)
            lines, end, _ = file.read().rpartition(b"\n")  # the last line is not whole yet, or empty
        self.state[path.name] = Position(begun, start + len(lines) + len(end))
        sink = "otlp" if isinstance(first, Destination) and "://" in first.destination else "file"
        return [(entry, sink) for entry in decode_entries(lines)]
