"""`assert_no_extra_sync`: recording asks nothing of the device."""

from __future__ import annotations

from collections.abc import Callable

from telemetry.testing.failure import TraceAssertionError

__tracebackhide__ = True


def assert_no_extra_sync(off: Callable[[], object], on: Callable[[], object], *, count: Callable[[], int]) -> None:
    """`on`, some work with telemetry, reads the device exactly as often as `off`, the same work without.

    count: device reads of this thread so far (`runtime.device.syncs`). The work is done three times, `off` before and
    after `on`: where these two differ, the work is not the same each time, and that is what the error says.
    """
    before, during, after = (_measure(work, count) for work in (off, on, off))
    if before != after:
        raise TraceAssertionError(
            f"expected work that reads the device equally often each time\n"
            f"found {before} reads and then {after}, both without telemetry: compare a workload that repeats itself"
        )
    if not before:
        raise TraceAssertionError("expected work that reads the device\nfound 0 reads: count() does not see this work")
    if during != before:
        raise TraceAssertionError(
            f"expected {before} device reads with telemetry, as many as without\n"
            f"found {during}: {abs(during - before)} {'more' if during > before else 'fewer'}"
        )


def _measure(work: Callable[[], object], count: Callable[[], int]) -> int:
    start = count()
    work()
    return count() - start
