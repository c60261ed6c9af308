"""Takes down what a generation does: one plain record a round, handed to a sink.

This is the hot path. It holds no locks, makes no span objects, touches no arrays and never asks the device
for anything; spans, metrics and tables are made from the same records later, elsewhere.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from telemetry.clock import Clock, SystemClock
from telemetry.observing import find_observers
from telemetry.records import Record


class Sink(Protocol):
    """Where records go. `write` must not raise because of its medium: it counts what it loses instead."""

    def write(self, record: Record) -> None:
        """Take one record."""


class MemorySink:
    """Keeps records in a list: for tests, and for callers who asked for nothing on disk."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        """Append `record`."""
        self.records.append(record)


@dataclass(frozen=True, slots=True)
class Labels:
    """What a caller knows about a generation that the loop does not; the fields are GenerationRecord's."""

    arm: str | None = None
    prompt_id: str | None = None
    class_: str | None = None
    repeat: int = 0
    sequence: int = 0
    warm_up: bool = False


class Recorder:
    """Says where records go, by which clock, and what may be in them.

    sink: a `Journal`, a `MemorySink` or anything with `write`. Without one, records are kept in memory
    (`records`). run_id: the run that generations belong to, if any. record_text: keep token ids and text.
    They are a user's prompts and outputs: off unless asked for. rank: this process's rank in a distributed run.
    """

    def __init__(
        self,
        sink: Sink | None = None,
        *,
        run_id: str | None = None,
        clock: Clock | None = None,
        record_text: bool = False,
        rank: int | None = None,
    ) -> None:
        self.sink: Sink = MemorySink() if sink is None else sink
        self._show = find_observers()
        self.write = self.sink.write if self._show is None else self._write_and_show
        self.run_id = run_id
        self.rank = rank
        self.clock: Clock = SystemClock() if clock is None else clock
        self.record_text = record_text
        self.labels = Labels()

    def write_end(self, record: Record) -> Callable[[], None]:
        """Write `record`; the result shows it to those who observe and are shown late."""
        self.sink.write(record)
        show = self._show
        if show is None:
            return lambda: None
        show(record, False)
        return lambda: show(record, True)

    def _write_and_show(self, record: Record) -> None:
        self.write_end(record)()

    def label(self, **labels: Any) -> Recorder:
        """The same recorder for generations with these `Labels`."""
        labelled = copy.copy(self)
        labelled.labels = Labels(**labels)
        return labelled

    def new_id(self) -> str:
        """The id of a generation that begins."""
        return new_generation_id()

    @property
    def records(self) -> list[Record]:
        """What was recorded so far, if the sink keeps it in memory."""
        if not isinstance(self.sink, MemorySink):
            raise AttributeError(f"records went to {type(self.sink).__name__}, which does not keep them in memory")
        return self.sink.records


def new_generation_id() -> str:
    """32 hexadecimal digits from the operating system: `random.seed` cannot make two generations share one."""
    return os.urandom(16).hex()
