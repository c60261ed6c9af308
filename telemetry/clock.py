"""The two clocks of a recording, exchangeable so that tests can own the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where durations and moments come from."""

    def monotonic_ns(self) -> int:
        """Nanoseconds that never go back; only differences mean something."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may be set back by the system."""


class SystemClock:
    """The machine's own clocks."""

    monotonic_ns = staticmethod(time.perf_counter_ns)
    wall_ns = staticmethod(time.time_ns)
