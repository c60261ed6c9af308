"""Lets somebody see every record of this process's generations as it is written.

Trace exporters of an application and the fixtures of its tests want to see generations that they did not start. What
observes runs in the generating thread, so it had better only take note until a generation has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from telemetry.records import Record

See: TypeAlias = Callable[[Record], None]

_observers: list[See] = []


def observe(see: See) -> Callable[[], None]:
    """Show `see` every record of recorders that are made from now on, after it was written; the result ends that."""
    _observers.append(see)

    def end() -> None:
        if see in _observers:
            _observers.remove(see)

    return end


def show_also(write: See) -> See:
    """`write`, with whoever observes now and is still observing later; `write` itself if nobody does."""
    if not _observers:
        return write
    observers = tuple(_observers)

    def write_and_show(record: Record) -> None:
        write(record)
        for see in observers:
            if see in _observers:
                see(record)

    return write_and_show
