"""Lets somebody see every record of this process's generations as it is written.

Trace exporters of an application and the fixtures of its tests want to see generations that they did not start. What
observes runs in the generating thread, so it had better only take note until a generation has ended; an end that comes
with the last round is shown when that round has been handed out, so that its caller does not wait for it.
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


def find_observers() -> See | None:
    """What shows a record to whoever observes now and is still observing then; None if nobody observes."""
    if not _observers:
        return None
    observers = tuple(_observers)

    def show(record: Record) -> None:
        for see in observers:
            if see in _observers:
                see(record)

    return show
