"""Spans: the records of a generation as a trace, made afterwards with the times that were measured.

    text_completion MODEL          the generation: what was asked for, usage, how it ended
      prefill
      round                        what it committed, and how it ended
        draft  verify  synchronize  cache.trim  rewind

    ncm.generate                   `telemetry.spans_ncm`
      ncm.level
        ncm.forward  ncm.sample  ncm.reconstruct  ncm.decode  ncm.check
      ncm.decode  ncm.check        once, where the levels have none

Nothing here knows OpenTelemetry: a `SpanData` is plain data, which `telemetry.otlp` sends and `telemetry.replay` gives
to a tracer provider. Ids and moments are explained in `telemetry.span_data`, attributes in `telemetry.span_names`, and
all of it in docs/spans.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from telemetry.grouping import Recorded, group
from telemetry.ncm_records import NcmRecord
from telemetry.records import ComparisonRecord, GenerationEnd, GenerationRecord, Record
from telemetry.span_data import SpanData, SpanLink, Tree, derive_span_id, derive_trace_id, name_error
from telemetry.span_names import (
    OPERATION,
    OPERATION_NAME,
    PREFILL,
    PROVIDER,
    PROVIDER_NAME,
    RESPONSE_MODEL,
    ROUND,
    ROUND_STAGES,
    STAGE_BASIS,
    read_attributes,
)
from telemetry.spans_ncm import spans_of_ncm

__all__ = ["SpanData", "SpanLink", "build_spans", "derive_span_id", "derive_trace_id", "spans_of"]


def build_spans(records: Iterable[Record]) -> Iterator[SpanData]:
    """The spans of all generations in `records`, generation by generation, parents first.

    A generation whose end is not among them is shown as aborted, with the rounds that were closed.
    """
    for recorded in group(records):
        yield from spans_of(recorded)


def spans_of(recorded: Recorded) -> Iterator[SpanData]:
    """The spans of one generation, parents first."""
    start, end = recorded.start, recorded.end
    if isinstance(start, NcmRecord):
        yield from spans_of_ncm(recorded, start)
        return
    comparison = recorded.comparison
    assert end is None or isinstance(end, GenerationEnd)
    assert comparison is None or isinstance(comparison, ComparisonRecord)
    tree = Tree(start)
    last = max((each.start_ns + each.t_round_ns for each in recorded.rounds), default=0)
    reason, error_type = (None, None) if end is None else (end.finish_reason, end.error_type)
    yield tree.root(
        f"{OPERATION} {start.model}",
        last if end is None else end.total_ns,
        _describe(start, end, comparison),
        name_error(reason, error_type),
        pair_id=None if comparison is None else comparison.pair_id,
    )
    if end is not None:
        yield tree.child(PREFILL, PREFILL, 0, end.prefill_ns, {STAGE_BASIS: "barrier"})
    for each in recorded.rounds:
        place = str(each.index)
        error = name_error("error", error_type) if each.outcome == "error" else None
        yield tree.child(place, ROUND, each.start_ns, each.t_round_ns, read_attributes(each), error)
        yield from tree.stages(place, ROUND_STAGES, each, each.t_round_ns, from_end=("trim", "rewind"))


def _describe(
    start: GenerationRecord, end: GenerationEnd | None, comparison: ComparisonRecord | None
) -> dict[str, Any]:
    attributes = {OPERATION_NAME: OPERATION, PROVIDER_NAME: PROVIDER, RESPONSE_MODEL: start.model}
    for record in (start, end, comparison):
        if record is not None:
            attributes |= read_attributes(record)
    return attributes
