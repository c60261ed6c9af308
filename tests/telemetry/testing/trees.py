"""Traces for tests: one that is nobody's in particular, and generations of a scripted target."""

from __future__ import annotations

from typing import Any

from runtime import decode, speculate
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.testing import FakeClock, Span, Spans, TraceRecording
from tests.runtime.scripted import counting, guessing

TRACE = "a" * 32


def span(span_id: str, start: int, end: int | None, parent: str | None = None, **changes: Any) -> Span:
    """A span that is named as its id unless told otherwise; its parent is known to be of this process."""
    fields = {"trace_id": TRACE, "span_id": span_id, "parent_id": parent, "name": span_id, "flags": 0x101, **changes}
    return Span(start_unix_ns=start, end_unix_ns=end, **fields)


def request() -> list[Span]:
    """A request of some application: it authorises, asks twice, and answers."""
    return [
        span("request", 0, 100, kind="server", attributes={"http.route": "/ask", "ok": True}),
        span("authorise", 0, 10, "request"),
        span("ask.1", 10, 40, "request", name="ask", attributes={"rows": 3, "tags": ("a", "b")}),
        span("ask.2", 40, 90, "request", name="ask", attributes={"rows": 0}),
        span("read", 45, 80, "ask.2"),
    ]


def spans(*changed: Span, without: str = "") -> Spans:
    """The request with these spans in the places of those with their ids, or added; less the one called `without`."""
    found = {each.span_id: each for each in request()} | {each.span_id: each for each in changed}
    found.pop(without, None)
    return Spans(found.values())


def record() -> TraceRecording:
    """A speculative generation, and an ordinary one of the same prompt, by a clock that ticks."""
    clock = FakeClock(tick_ns=1_000)
    with TraceRecording(clock) as recording:
        target = ScriptedTarget(counting(20), vocab_size=20, eos=[15], cost_ns=100, clock=clock)
        drafter = ScriptedDrafter(guessing(counting(20), 20, percent=60), cost_ns=7, clock=clock)
        speculate(target, drafter, [1, 2, 3], draft_length=3, max_tokens=20).drain()
        decode(target, [1, 2, 3], max_tokens=20).drain()
    return recording
