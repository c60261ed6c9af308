"""The pytest plugin: `roundscope_trace`, what ran in a test, and `roundscope_clock`, time that the test owns.

pytest loads it by its entry point in every project where roundscope is installed, so it loads nothing itself before a
fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from telemetry.testing import FakeClock, TraceRecording

TICK_NS = 1_000
"""What the fake clock goes on by at every look at it, so that durations are positive and the same each time."""


@pytest.fixture
def roundscope_clock() -> FakeClock:
    """A clock that goes on by `TICK_NS` at every look; a test that asks for it owns all recorded time."""
    from telemetry.testing import FakeClock

    return FakeClock(tick_ns=TICK_NS)


@pytest.fixture
def roundscope_trace(request: pytest.FixtureRequest) -> Iterator[TraceRecording]:
    """Records and spans of every generation that this test asks for (`telemetry.testing.TraceRecording`)."""
    from telemetry.testing import TraceRecording

    clock = request.getfixturevalue("roundscope_clock") if "roundscope_clock" in request.fixturenames else None
    with TraceRecording(clock) as recording:
        yield recording
