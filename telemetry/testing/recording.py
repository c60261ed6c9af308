"""What runs in a test, taken down: records and spans of every generation, with ids that are the same each time.

`TraceRecording` is what the fixture `roundscope_trace` gives; as a context manager it serves any other test framework.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from telemetry import recorder as recorder_module
from telemetry.clock import Clock
from telemetry.ncm_records import NcmEnd, NcmRecord
from telemetry.observing import observe
from telemetry.records import GenerationEnd, GenerationRecord, Record
from telemetry.span_data import derive_span_id
from telemetry.testing.sources import convert_live, convert_records
from telemetry.testing.spans import Spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


class TraceRecording:
    """Sees every generation that is asked for while it is entered, with or without a recorder.

    A recorder that was made before is not seen. clock: what recorders made meanwhile take the time from, unless they
    are given another; None: the machine's. Generations' ids are 32 hexadecimal digits that count from 1. `records` has
    what was recorded, in the order in which it was.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.records: list[Record] = []
        self._clock = clock
        self._started: list[Any] = []
        self._exit = ExitStack()

    def __enter__(self) -> TraceRecording:
        ids = (f"{number:032x}" for number in count(1))
        self._exit.enter_context(patch.object(recorder_module, "new_generation_id", ids.__next__))
        if (clock := self._clock) is not None:
            self._exit.enter_context(patch.object(recorder_module, "SystemClock", lambda: clock))
        self._exit.callback(observe(self.records.append))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    @property
    def spans(self) -> Spans:
        """The spans so far: those of the records, and those of the providers that are watched.

        A generation that has no end yet is open, as its process is there: it goes on, or was left.
        """
        live = list(convert_live(self._started))
        known = {(span.trace_id, span.span_id) for span in live}
        ours = (span for span in convert_records(self.records) if (span.trace_id, span.span_id) not in known)
        ended = {record.generation_id for record in self.records if isinstance(record, (GenerationEnd, NcmEnd))}
        begun = (record for record in self.records if isinstance(record, (GenerationRecord, NcmRecord)))
        unended = {derive_span_id(record.generation_id) for record in begun if record.generation_id not in ended}
        return Spans([*(replace(each, end_unix_ns=None) if each.span_id in unended else each for each in ours), *live])

    def watch(self, provider: TracerProvider) -> None:
        """Take the spans of an OpenTelemetry provider of the SDK in as well, from their start on."""
        from opentelemetry.sdk.trace import Span, SpanProcessor

        started = self._started
        watching = [True]
        self._exit.callback(watching.clear)

        class Watch(SpanProcessor):
            def on_start(self, span: Span, parent_context: object = None) -> None:
                if watching and span.context is not None:
                    started.append(span)

        provider.add_span_processor(Watch())
