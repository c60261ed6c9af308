"""Ctrl-C and SIGTERM during a run: the first ends it in good order, the second at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


class Interruptible(Protocol):
    """What can be told to end."""

    interrupted: bool

    def interrupt(self) -> None:
        """End after what is open, and set `interrupted`."""


@contextmanager
def catch_signals(execution: Interruptible) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `interrupt`, and a second one into KeyboardInterrupt, until the block ends."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if execution.interrupted:
            raise KeyboardInterrupt
        execution.interrupt()

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
