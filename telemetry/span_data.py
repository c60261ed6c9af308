"""A span as plain data, its ids, and the tree of spans of one generation.

All moments are the generation's wall clock anchor plus a monotonic difference, so no duration is negative whatever the
wall clock does. Ids are derived from the records, so the same records give the same ids:

- trace: the caller's, if the generation is part of one; else the generation's id (where that is no 32 hexadecimal
  digits, the first 32 of its SHA-256).
- span: the first 16 hexadecimal digits of the SHA-256 of `GENERATION_ID/PLACE`. The place is empty for the root, else
  `prefill`, the INDEX of a round or level, or `INDEX/STAGE`.

A generation of a distributed run is a trace of its own that links to what it was started by; any other is its child.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

from telemetry.context import Caller
from telemetry.ncm_records import LevelRecord, NcmRecord
from telemetry.records import GenerationRecord, RoundRecord
from telemetry.span_names import ERROR_TYPE, STAGE_BASIS

SAMPLED = 1
"""The W3C flag of a trace that its caller wants to keep."""

HAS_IS_REMOTE, IS_REMOTE = 0x100, 0x200
"""OTLP's flags: whether it is known where the parent is, and that it is not one of the generation's own spans."""

ABORTED = "aborted"
"""`error.type` of a generation that has no end: its process died."""

OTHER_ERROR = "_OTHER"
"""`error.type` where no class of error was recorded; the conventions' own word."""

_HEX32 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class SpanLink:
    """Another span that a span refers to. Ids as in `SpanData`."""

    trace_id: str
    span_id: str


@dataclass(frozen=True)
class SpanData:
    """A span.

    trace_id: 32 hexadecimal digits. span_id, parent_id: 16; parent_id is None at the top of a trace. start_unix_ns,
    end_unix_ns: nanoseconds since the Unix epoch; ours always have an end. attributes: strings, ints, floats, booleans,
    and lists of one of them. error_type: what failed, if status is `error`. flags: OTLP's, whose lowest 8 bits are
    W3C's trace flags (1: sampled).
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    start_unix_ns: int
    end_unix_ns: int | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    links: tuple[SpanLink, ...] = ()
    kind: Literal["internal", "server", "client", "producer", "consumer"] = "internal"
    status: Literal["unset", "ok", "error"] = "unset"
    error_type: str | None = None
    flags: int = SAMPLED | HAS_IS_REMOTE

    @property
    def duration_ns(self) -> int | None:
        """End less start, in nanoseconds; None: it has no end."""
        return None if self.end_unix_ns is None else self.end_unix_ns - self.start_unix_ns

    @property
    def sampled(self) -> bool:
        """Whether the span is to be sent anywhere."""
        return bool(self.flags & SAMPLED)


def derive_trace_id(generation_id: str) -> str:
    """The trace of a generation that is not part of its caller's: 32 hexadecimal digits."""
    return generation_id if _HEX32.fullmatch(generation_id) else sha256(generation_id.encode()).hexdigest()[:32]


def derive_span_id(generation_id: str, place: str = "") -> str:
    """The id of the span at `place` of a generation: 16 hexadecimal digits."""
    return sha256(f"{generation_id}/{place}".encode()).hexdigest()[:16]


def derive_context(generation_id: str, caller: Caller | None) -> Caller:
    """The root span of a generation that is its caller's child, as the caller of whatever happens within it."""
    trace_id = derive_trace_id(generation_id) if caller is None else caller.trace_id
    return Caller(trace_id, derive_span_id(generation_id), caller is None or caller.sampled)


class Tree:
    """Makes the spans of one generation; moments are nanoseconds after its anchor."""

    def __init__(self, start: GenerationRecord | NcmRecord) -> None:
        self._id = start.generation_id
        self._anchor = start.started_wall_ns
        self._flags = HAS_IS_REMOTE | (0 if start.sampled is False else SAMPLED)
        caller = None if start.trace_id is None else SpanLink(start.trace_id, start.parent_span_id or "")
        links_only = isinstance(start, GenerationRecord) and start.rank is not None
        self._caller = None if links_only else caller
        self._links: tuple[SpanLink, ...] = (caller,) if links_only and caller is not None else ()
        self._root_id = derive_span_id(self._id)

    @property
    def trace_id(self) -> str:
        """The trace that the generation's spans are in."""
        return self._trace_of(self._id)

    def root(
        self, name: str, duration_ns: int, attributes: dict[str, Any], error: str | None, *, pair_id: str | None = None
    ) -> SpanData:
        """The generation's own span, with a link to the generation it was compared with."""
        links = self._links
        if pair_id is not None:
            links += (SpanLink(self._trace_of(pair_id), derive_span_id(pair_id)),)
        parent = None if self._caller is None else self._caller.span_id or None
        return self._make("", parent, name, 0, duration_ns, attributes, error, links)

    def child(
        self,
        place: str,
        name: str,
        start_ns: int,
        duration_ns: int,
        attributes: dict[str, Any],
        error: str | None = None,
    ) -> SpanData:
        """A child of the root."""
        return self._make(place, self._root_id, name, start_ns, duration_ns, attributes, error)

    def stages(
        self,
        place: str,
        names: Mapping[str, str],
        record: RoundRecord | LevelRecord,
        duration_ns: int,
        *,
        from_end: Collection[str] = (),
        extra: Mapping[str, dict[str, Any]] | None = None,
    ) -> Iterator[SpanData]:
        """The stages that a round or level entered, one after the other from its start.

        names: span of each stage. from_end: the last stages, which end with the round; what lies between them and the
        others belongs to no stage. extra: further attributes by stage.
        """
        parent = derive_span_id(self._id, place)
        durations = {stage: getattr(record, f"{stage}_ns") for stage in names}
        at = record.start_ns
        for stage, name in names.items():
            if stage in from_end:
                at = max(at, record.start_ns + duration_ns - sum(durations[each] for each in from_end))
                from_end = ()
            basis = getattr(record, f"{stage}_basis")
            if basis is not None:
                attributes = {STAGE_BASIS: basis, **(extra or {}).get(stage, {})}
                yield self._make(f"{place}/{stage}", parent, name, at, durations[stage], attributes, None)
            at += durations[stage]

    def _trace_of(self, generation_id: str) -> str:
        return derive_trace_id(generation_id) if self._caller is None else self._caller.trace_id

    def _make(
        self,
        place: str,
        parent: str | None,
        name: str,
        start_ns: int,
        duration_ns: int,
        attributes: dict[str, Any],
        error: str | None,
        links: tuple[SpanLink, ...] = (),
    ) -> SpanData:
        begin = self._anchor + start_ns
        return SpanData(
            trace_id=self._trace_of(self._id),
            span_id=derive_span_id(self._id, place),
            parent_id=parent,
            name=name,
            start_unix_ns=begin,
            end_unix_ns=begin + duration_ns,
            attributes=attributes if error is None else {**attributes, ERROR_TYPE: error},
            links=links,
            status="unset" if error is None else "error",
            error_type=error,
            flags=self._flags if parent is None or place else self._flags | IS_REMOTE,
        )


def name_error(finish_reason: str | None, error_type: str | None) -> str | None:
    """`error.type` of a generation that ended so (None: it has no end), or None if nothing failed."""
    if finish_reason is None:
        return ABORTED
    return (error_type or OTHER_ERROR) if finish_reason == "error" else None
