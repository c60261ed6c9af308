"""For test suites: assertions on traces, ours or anybody's, and a clock that a test owns.

`Spans` has the assertions on trees, counts and times; the functions hold our records to what they mean. A pytest plugin
(`telemetry.pytest_plugin`) gives `roundscope_trace`, what ran in a test. docs/trace-assertions.md shows it all at work.
"""

from __future__ import annotations

from telemetry.testing.clock import FakeClock
from telemetry.testing.devices import assert_no_extra_sync
from telemetry.testing.failure import TraceAssertionError
from telemetry.testing.outputs import assert_equal_to_ordinary
from telemetry.testing.recording import TraceRecording
from telemetry.testing.rounds import assert_rounds_consistent
from telemetry.testing.sinks import assert_sinks_agree
from telemetry.testing.spans import Spans
from telemetry.testing.tree import Span

__all__ = [
    "FakeClock",
    "Span",
    "Spans",
    "TraceAssertionError",
    "TraceRecording",
    "assert_equal_to_ordinary",
    "assert_no_extra_sync",
    "assert_rounds_consistent",
    "assert_sinks_agree",
]
