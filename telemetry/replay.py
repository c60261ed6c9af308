"""`telemetry.instrument`: generations as spans of the application's own tracer provider.

The spans of a generation are replayed in one go after it has ended, with the times that were measured, so nothing is
added to a round, nor to the last one, which its caller has by then; they pass through the provider's sampler,
processors and exporters as any others do. Limits:

- Replaying happens in the generating thread: when a generation that has ended is asked for more, or closed, or
  forgotten, and with a coarse-to-fine one before its output is returned. What comes next starts when it is done.
- Ids are the derived ones (`telemetry.span_data`) where the provider's tracers take an id generator, as the SDK's do;
  any other provider gives ids of its own, and then links to an ordinary pair lead nowhere.
- What was still open when the process died is not replayed; `roundscope export` has it.
- The provider's limit of attributes must hold a generation's (the SDK's default of 128 does).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from telemetry import roundscope_version
from telemetry.grouping import Grouping
from telemetry.logs import get_logger
from telemetry.records import Record
from telemetry.span_data import SpanData
from telemetry.span_names import SCHEMA_URL, SCOPE
from telemetry.spans import spans_of

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, TracerProvider


class Replay:
    """Takes records, and replays a generation's spans when its end is seen."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        from opentelemetry import trace

        provider = trace.get_tracer_provider() if tracer_provider is None else tracer_provider
        self._tracer = provider.get_tracer(SCOPE, roundscope_version(), schema_url=SCHEMA_URL)
        self._ids = _make_ids()
        if hasattr(self._tracer, "id_generator"):
            self._tracer.id_generator = self._ids
        self._grouping = Grouping(awaits_comparison=False)

    def see(self, record: Record) -> None:
        """Take one record; it never raises because of the provider."""
        try:
            for recorded in self._grouping.add(record):
                self.replay(spans_of(recorded))
        except Exception as error:
            get_logger().warning(
                "instrument.failed", error=repr(error), effect="the generation goes on without its spans"
            )

    def replay(self, spans: Iterable[SpanData]) -> None:
        """Start and end these spans of one generation, parents first, with their own times; the unsampled are left
        out."""
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, NonRecordingSpan, Status, StatusCode, set_span_in_context

        contexts: dict[str, SpanContext] = {}
        for data in spans:
            if not data.sampled:
                continue
            self._ids.trace_id, self._ids.span_id = int(data.trace_id, 16), int(data.span_id, 16)
            parent = Context()
            if data.parent_id is not None:
                above = contexts.get(data.parent_id) or _make_context(data.trace_id, data.parent_id, remote=True)
                parent = set_span_in_context(NonRecordingSpan(above), parent)
            span = self._tracer.start_span(
                data.name,
                context=parent,
                attributes=dict(data.attributes),
                links=[Link(_make_context(link.trace_id, link.span_id, remote=True)) for link in data.links],
                start_time=data.start_unix_ns,
            )
            contexts[data.span_id] = span.get_span_context()
            if data.status == "error":
                span.set_status(Status(StatusCode.ERROR))
            span.end(data.end_unix_ns)


def _make_context(trace_id: str, span_id: str, *, remote: bool) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=remote, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )


def _make_ids() -> Any:
    """An id generator of the SDK that gives the ids it was told, to each thread its own."""
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Told(threading.local, IdGenerator):
        trace_id = span_id = 0

        def generate_trace_id(self) -> int:
            return self.trace_id

        def generate_span_id(self) -> int:
            return self.span_id

    return Told()
