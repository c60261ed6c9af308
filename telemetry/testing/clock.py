"""A clock that a test owns."""

from __future__ import annotations


class FakeClock:
    """Time that passes only when told to: by `advance`, and by `tick_ns` at every look at the monotonic clock."""

    def __init__(self, *, tick_ns: int = 0, wall_ns: int = 1_700_000_000_000_000_000) -> None:
        self.tick_ns = tick_ns
        self._monotonic = 0
        self._wall = wall_ns

    def monotonic_ns(self) -> int:
        """Nanoseconds; goes on by one tick."""
        self.advance(self.tick_ns)
        return self._monotonic

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return self._wall

    def advance(self, ns: int) -> None:
        """Let `ns` pass on both clocks."""
        self._monotonic += ns
        self._wall += ns

    def set_wall(self, ns: int) -> None:
        """Set the wall clock, back too, as an operating system may."""
        self._wall = ns
