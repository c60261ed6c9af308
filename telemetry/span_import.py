"""Brings spans of our shape back as records: what `telemetry.spans` does, the other way round.

A generation is taken only if the spans that its records would make are exactly those that were read, so nothing is lost
or made up on the way; what does not fit is refused, with the reason. Text, ids of tokens, and the environment of the
run are in no span and do not come back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from telemetry.grouping import Recorded
from telemetry.ncm_records import LevelRecord, NcmComparison, NcmEnd, NcmRecord
from telemetry.records import ComparisonRecord, GenerationEnd, GenerationRecord, Record, RoundRecord
from telemetry.span_data import SpanData, derive_trace_id
from telemetry.span_names import (
    NCM_GENERATE,
    NCM_LEVEL,
    NCM_STAGES,
    OPERATION,
    PREFILL,
    ROUND,
    ROUND_STAGES,
    STAGE_BASIS,
    attributes_of,
)
from telemetry.spans import spans_of

_KNOWN = {PREFILL, ROUND, NCM_GENERATE, NCM_LEVEL, *ROUND_STAGES.values(), *NCM_STAGES.values()}
_PAIR = next(each.name for each in attributes_of(ComparisonRecord) if each.field.name == "pair_id")
R = TypeVar("R", bound=Struct)


@dataclass
class Imported:
    """Generations that were read, and how many spans were refused, by reason."""

    generations: list[Recorded] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def rebuild(spans: Iterable[SpanData]) -> Imported:
    """The generations that these spans are of; spans may come in any order, and twice."""
    imported = Imported()
    known: dict[tuple[str, str], SpanData] = {}
    for span in spans:
        if not _is_ours(span):
            imported.refused["not a span of roundscope"] += 1
        elif known.setdefault((span.trace_id, span.span_id), span) != span:
            imported.refused["another span has the same id"] += 1
    children: dict[tuple[str, str], list[SpanData]] = defaultdict(list)
    for span in known.values():
        if span.parent_id is not None:
            children[span.trace_id, span.parent_id].append(span)
    taken: set[tuple[str, str]] = set()
    for root in known.values():
        if _is_root(root):
            tree = list(_walk(root, children))
            taken.update((span.trace_id, span.span_id) for span in tree)
            _take(tree, children, imported)
    if left := len(known) - len(taken):
        imported.refused["the generation that it belongs to is missing"] += left
    return imported


def records_of(recorded: Recorded) -> Iterator[Record]:
    """The records of a generation in the order of a journal."""
    yield recorded.start
    yield from recorded.rounds
    yield from recorded.levels
    if recorded.end is not None:
        yield recorded.end
    if recorded.comparison is not None:
        yield recorded.comparison


def _is_root(span: SpanData) -> bool:
    return span.name == NCM_GENERATE or span.name.startswith(f"{OPERATION} ")


def _is_ours(span: SpanData) -> bool:
    named = any(key.startswith("roundscope.") for key in span.attributes)
    return named and (_is_root(span) or span.name in _KNOWN)


def _walk(span: SpanData, children: Mapping[tuple[str, str], list[SpanData]]) -> Iterator[SpanData]:
    yield span
    for child in children.get((span.trace_id, span.span_id), ()):
        if not _is_root(child):
            yield from _walk(child, children)


def _take(tree: list[SpanData], children: Mapping[tuple[str, str], list[SpanData]], imported: Imported) -> None:
    try:
        recorded = _rebuild(tree[0], children)
        spans = _as_set(spans_of(recorded))
    except (msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        imported.refused[f"malformed: {reason}"] += len(tree)
        return
    if spans == _as_set(tree):
        imported.generations.append(recorded)
    else:
        imported.refused["its ids, times and attributes contradict each other"] += len(tree)


def _as_set(spans: Iterable[SpanData]) -> dict[str, SpanData]:
    # The receiver's side may have left out flags; the ids and links say the same.
    return {span.span_id: replace(span, flags=0, attributes=dict(span.attributes)) for span in spans}


def _rebuild(root: SpanData, children: Mapping[tuple[str, str], list[SpanData]]) -> Recorded:
    below = children.get((root.trace_id, root.span_id), [])
    if root.name == NCM_GENERATE:
        recorded = Recorded(_make(NcmRecord, root, **_find_origin(root, "roundscope.ncm.generation_id")))
        found = [each for each in below if each.name == NCM_LEVEL]
        levels = [_rebuild_part(LevelRecord, "t_level_ns", NCM_STAGES, each, root, children) for each in found]
        recorded.levels.extend(sorted(levels, key=lambda each: each.level))
        if "roundscope.ncm.finish_reason" in root.attributes:
            recorded.end = _make(NcmEnd, root, generation_id=recorded.id, total_ns=_last(root))
        if _PAIR in root.attributes:
            recorded.comparison = _make(NcmComparison, root, generation_id=recorded.id)
        return recorded
    recorded = Recorded(_make(GenerationRecord, root, **_find_origin(root, "gen_ai.response.id")))
    prefills = [each for each in below if each.name == PREFILL]
    rounds = [each for each in below if each.name == ROUND]
    parts = [_rebuild_part(RoundRecord, "t_round_ns", ROUND_STAGES, each, root, children) for each in rounds]
    recorded.rounds.extend(sorted(parts, key=lambda each: each.index))
    if prefills:
        own = {"generation_id": recorded.id, "total_ns": _last(root), "prefill_ns": _last(prefills[0])}
        recorded.end = _make(GenerationEnd, root, **own)
    if _PAIR in root.attributes:
        recorded.comparison = _make(ComparisonRecord, root, generation_id=recorded.id)
    return recorded


def _find_origin(root: SpanData, id_attribute: str) -> dict[str, Any]:
    """What a generation's record has from its root's ids and times."""
    generation_id = root.attributes[id_attribute]
    origin: dict[str, Any] = {"started_wall_ns": root.start_unix_ns}
    # The first link is to the caller where the generation is a trace of its own.
    if root.attributes.get("roundscope.generation.rank") is not None:
        if len(root.links) > (_PAIR in root.attributes):
            origin |= {"trace_id": root.links[0].trace_id, "parent_span_id": root.links[0].span_id or None}
    elif root.parent_id is not None or root.trace_id != derive_trace_id(generation_id):
        origin |= {"trace_id": root.trace_id, "parent_span_id": root.parent_id}
    if "trace_id" in origin:
        origin["sampled"] = True
    return origin


def _rebuild_part(
    kind: type[R],
    duration: str,
    names: Mapping[str, str],
    span: SpanData,
    root: SpanData,
    children: Mapping[tuple[str, str], list[SpanData]],
) -> R:
    """A round or level from its span and those of its stages."""
    own: dict[str, Any] = {
        "generation_id": root.attributes.get("gen_ai.response.id", root.attributes.get("roundscope.ncm.generation_id")),
        "start_ns": span.start_unix_ns - root.start_unix_ns,
        duration: _last(span),
        **{f"{stage}_ns": 0 for stage in names},
    }
    stages = {name: stage for stage, name in names.items()}
    for each in children.get((span.trace_id, span.span_id), ()):
        stage = stages[each.name]
        own[f"{stage}_ns"] = _last(each)
        own[f"{stage}_basis"] = each.attributes[STAGE_BASIS]
    return _make(kind, span, **own)


def _make(kind: type[R], span: SpanData, **own: Any) -> R:
    values = {key: value for key, value in own.items() if value is not None}
    for attribute in attributes_of(kind):
        if attribute.name in span.attributes:
            values[attribute.field.name] = _read(attribute.form, span.attributes[attribute.name])
    return msgspec.convert(values, kind)


def _read(form: str, value: Any) -> Any:
    if form == "seconds":
        return round(value * 1e9)
    if form == "list":
        [value] = value
    return value


def _last(span: SpanData) -> int:
    if span.duration_ns is None:
        raise ValueError(f"{span.name} has no end")
    return span.duration_ns
