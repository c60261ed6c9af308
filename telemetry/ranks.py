"""What has become of the other ranks of a distributed run, by their journals.

A rank leaves its record when the run begins and another when it ends, and holds its journal's lock while it lives. So
nobody has to ask it, and a rank that was killed is found as well as one that has ended.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from telemetry.fields import RankFinish
from telemetry.journal import FOLDER, SUFFIX
from telemetry.reading import UNREADABLE, decode_line, is_locked
from telemetry.records import RankEnd, RankRecord, Record

RankState: TypeAlias = RankFinish | Literal["aborted", "silent", "absent"]
"""How a rank ended. aborted: its process died. silent: it may live, but has recorded nothing for as long as one waits.
absent: it has no journal in this store."""

APPEAR_S = 60.0
SILENCE_S = 600.0
"""How long to wait for a rank's journal to appear, and for it to grow. No round takes so long, and loading hardly."""

POLL_S = 0.2
_HEAD_BYTES = _TAIL_BYTES = 1 << 16


@dataclass
class _Journal:
    path: Path
    host: str
    size: int = -1
    grown: float = 0.0


class Ranks:
    """Waits for ranks of the run `run_id`, whose journals are in `store`."""

    def __init__(self, store: Path, run_id: str, ranks: Collection[int]) -> None:
        self.states: dict[int, RankState] = {}
        self._folder = store / FOLDER
        self._run_id = run_id
        self._missing = set(ranks)
        self._found: dict[int, _Journal] = {}
        self._seen: set[str] = set()

    @property
    def unsettled(self) -> list[int]:
        """The ranks that have not ended as far as is known."""
        return sorted(self._missing | self._found.keys())

    def wait(
        self,
        *,
        appear_s: float = APPEAR_S,
        silence_s: float = SILENCE_S,
        is_over: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> dict[int, RankState]:
        """Every rank's state, as soon as all have ended, or there is none left that is worth waiting for.

        appear_s, silence_s: longest times in seconds for which a rank may have no journal, or one that does not grow.
        is_over: asked now and then; if it says so, what is open is taken as it stands.
        """
        began = now()
        while self.unsettled:
            self._look(now())
            if is_over():
                silence_s = appear_s = 0.0
            for rank, journal in list(self._found.items()):
                if now() - journal.grown >= silence_s:
                    self._settle(rank, "silent")
            if self._missing and now() - began >= appear_s:
                for rank in list(self._missing):
                    self._settle(rank, "absent")
            if self.unsettled:
                sleep(POLL_S)
        return dict(sorted(self.states.items()))

    def _look(self, moment: float) -> None:
        if self._missing:
            for path, record in self._find_new():
                if record.rank in self._missing:
                    self._missing.discard(record.rank)
                    self._found[record.rank] = _Journal(path, record.host, grown=moment)
        for rank, journal in list(self._found.items()):
            state = self._judge(rank, journal, moment)
            if state is not None:
                self._settle(rank, state)

    def _find_new(self) -> Iterator[tuple[Path, RankRecord]]:
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path.name in self._seen:
                continue
            try:
                with open(path, "rb", buffering=0) as file:
                    records = list(_decode(file.read(_HEAD_BYTES).split(b"\n")[:3]))
            except OSError:
                continue
            if len(records) > 1:
                self._seen.add(path.name)
            for record in records:
                if isinstance(record, RankRecord) and record.run_id == self._run_id:
                    yield path, record

    def _judge(self, rank: int, journal: _Journal, moment: float) -> RankState | None:
        """What is known of a rank by its journal; None: it goes on."""
        try:
            with open(journal.path, "rb", buffering=0) as file:
                # Before reading: a writer that has gone by now has left all its lines.
                held = is_locked(file.fileno())
                size = os.fstat(file.fileno()).st_size
                if size != journal.size or not held:
                    journal.grown = moment if size != journal.size else journal.grown
                    journal.size = size
                    tail = os.pread(file.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
                    for record in _decode(tail.split(b"\n")):
                        if isinstance(record, RankEnd) and (record.run_id, record.rank) == (self._run_id, rank):
                            return record.finish_reason
        except OSError:
            return None
        return "aborted" if held is False and journal.host == socket.gethostname() else None

    def _settle(self, rank: int, state: RankState) -> None:
        self.states[rank] = state
        self._missing.discard(rank)
        self._found.pop(rank, None)


def _decode(lines: list[bytes]) -> Iterator[Record]:
    for line in lines:
        try:
            yield decode_line(line)
        except UNREADABLE:
            continue
