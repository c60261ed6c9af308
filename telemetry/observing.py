"""Lets somebody see every record of this process's generations as it is written.

Trace exporters of an application and the fixtures of its tests want to see generations that they did not start. What
observes runs in the generating thread, so it had better only take note until a generation has ended. Who then does more
asks to be shown late: an end that comes with the last round is shown to it when that round has been handed out, so that
its caller does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from telemetry.records import Record

See: TypeAlias = Callable[[Record], None]

_observers: list[tuple[See, bool]] = []


def observe(see: See, *, late: bool = False) -> Callable[[], None]:
    """Show `see` every record of recorders that are made from now on, after it was written; the result ends that.

    late: a generation's end only after its last round was handed out.
    """
    observer = (see, late)
    _observers.append(observer)

    def end() -> None:
        if observer in _observers:
            _observers.remove(observer)

    return end


def find_observers() -> Callable[[Record, bool], None] | None:
    """What shows a record to whoever observes now and is still observing then: those who are shown late, or the others.

    None: nobody observes.
    """
    if not _observers:
        return None
    observers = tuple(_observers)

    def show(record: Record, late: bool) -> None:
        for observer in observers:
            see, is_late = observer
            if is_late == late and observer in _observers:
                see(record)

    return show
