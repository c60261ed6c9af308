"""Spans of coarse-to-fine generations: `ncm.generate` > `ncm.level` > the stages of a level.

What is decoded and checked once, after the last level, is below `ncm.generate` itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from telemetry.grouping import Recorded
from telemetry.ncm_records import NcmComparison, NcmEnd, NcmRecord
from telemetry.span_data import SpanData, Tree, name_error
from telemetry.span_names import (
    FORWARD_FIELDS,
    NCM_ENDING,
    NCM_GENERATE,
    NCM_LEVEL,
    NCM_STAGES,
    STAGE_BASIS,
    attributes_of,
    read_attributes,
)


def spans_of_ncm(recorded: Recorded, start: NcmRecord) -> Iterator[SpanData]:
    """The spans of one generation, parents first."""
    end, comparison = recorded.end, recorded.comparison
    assert end is None or isinstance(end, NcmEnd)
    assert comparison is None or isinstance(comparison, NcmComparison)
    tree = Tree(start)
    last = max((each.start_ns + each.t_level_ns for each in recorded.levels), default=0)
    reason, error_type = (None, None) if end is None else (end.finish_reason, end.error_type)
    attributes = read_attributes(start)
    for record in (end, comparison):
        if record is not None:
            attributes |= read_attributes(record)
    yield tree.root(
        NCM_GENERATE,
        last if end is None else end.total_ns,
        attributes,
        name_error(reason, error_type),
        pair_id=None if comparison is None else comparison.pair_id,
    )
    for each in recorded.levels:
        place = str(each.level)
        attributes = read_attributes(each)
        forward = {
            attribute.name: attributes[attribute.name]
            for attribute in attributes_of(type(each))
            if attribute.field.name in FORWARD_FIELDS
        }
        yield tree.child(place, NCM_LEVEL, each.start_ns, each.t_level_ns, attributes)
        yield from tree.stages(place, NCM_STAGES, each, each.t_level_ns, extra={"forward": forward})
    if end is not None:
        yield from _ending(tree, end)


def _ending(tree: Tree, end: NcmEnd) -> Iterator[SpanData]:
    at = end.total_ns - end.finish_ns
    for stage in NCM_ENDING:
        duration, basis = getattr(end, f"{stage}_ns"), getattr(end, f"{stage}_basis")
        if basis is not None:
            yield tree.child(f"end/{stage}", NCM_STAGES[stage], at, duration, {STAGE_BASIS: basis})
            at += duration
