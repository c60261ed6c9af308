"""Generations as a Chrome trace: a JSON file that Perfetto and speedscope open, offline.

A process is an arm of a run, and its events nest: generation; prefill, round or level; stage. Generations of one arm
that overlap (two threads, or a wall clock that was set back) are in processes of their own. Beside them:

- a flow arrow from the draft to what corrected it, in every round that rejected something;
- counters `accepted` and `cache length`, `draft length` where a controller chose it, and `1 - TV(p, q)` where it was
  measured, at the end of each round;
- an instant where a generation ended: EOS or another stop, the limit, a cancellation, an error, or its process's death.

Times are microseconds after the first generation's start, with three decimals. The format is described in "Trace Event
Format" (Chromium's tracing documentation).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from telemetry.errors import RoundscopeError
from telemetry.grouping import Recorded
from telemetry.records import RoundRecord
from telemetry.span_data import SpanData
from telemetry.span_names import ROUND_STAGES
from telemetry.spans import derive_span_id, spans_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Event: TypeAlias = dict[str, Any]
THREAD = 1
NO_RUN = "outside a run"
_START = """
select min(started_wall_ns)
from (
    select run_id, started_wall_ns from generations
    union all
    select run_id, started_wall_ns from ncm_generations
)
where $run_id::varchar is null or starts_with(run_id, $run_id)
"""
_ENDS = {"length": "limit", "exited": "all samples left", "complete": "last level"}


def find_start(con: DuckDBPyConnection, run_id: str | None) -> int:
    """When the first generation of a run (its id, or the beginning of it) or of all began [ns since epoch]; 0: none."""
    [(first,)] = con.execute(_START, {"run_id": run_id}).fetchall()
    return int(first or 0)


def write_timeline(path: Path, generations: Iterable[Recorded], first_ns: int) -> int:
    """Write the trace of `generations`, in the order of their start, whole or not at all; how many there were.

    first_ns: nanoseconds since the epoch at which the trace's time begins. RoundscopeError if it cannot be written.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    timeline = _Timeline(first_ns)
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","otherData":' + json.dumps({"started_wall_ns": first_ns}))
            separator = ',"traceEvents":[\n'
            for recorded in generations:
                for event in timeline.add(recorded):
                    file.write(separator + json.dumps(event, separators=(",", ":")))
                    separator = ",\n"
            file.write(("" if timeline.n_added else separator) + "\n]}\n")
        os.replace(unfinished, path)
    except OSError as error:
        raise RoundscopeError(f"cannot write {path}: {error.strerror}; name another file") from error
    return timeline.n_added


def build_events(generations: Iterable[Recorded], first_ns: int) -> Iterator[Event]:
    """The events of `generations`, in the order of their start."""
    timeline = _Timeline(first_ns)
    for recorded in generations:
        yield from timeline.add(recorded)


class _Timeline:
    """Gives every generation a process in which nothing else is going on, and makes its events."""

    def __init__(self, first_ns: int) -> None:
        self.n_added = 0
        self._first_ns = first_ns
        self._lanes: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self._n_lanes = 0

    def add(self, recorded: Recorded) -> Iterator[Event]:
        """The events of a generation that began no earlier than those before it."""
        self.n_added += 1
        spans = list(spans_of(recorded))
        end = max(span.end_unix_ns or 0 for span in spans)
        pid, is_new = self._find_lane(recorded, spans[0].start_unix_ns, end)
        if is_new:
            yield from self._name(pid, recorded)
        yield from (self._slice(pid, span) for span in spans)
        if recorded.rounds:
            yield from self._describe_rounds(pid, recorded, {span.span_id: span for span in spans})
        yield self._at(pid, end, name=_name_end(recorded), ph="i", s="t", cat="end")

    def _find_lane(self, recorded: Recorded, start: int, end: int) -> tuple[int, bool]:
        lanes = self._lanes.setdefault((recorded.start.run_id or NO_RUN, recorded.start.arm), [])
        for i, (pid, last) in enumerate(lanes):
            if last <= start:
                lanes[i] = (pid, end)
                return pid, False
        self._n_lanes += 1
        lanes.append((self._n_lanes, end))
        return self._n_lanes, True

    def _name(self, pid: int, recorded: Recorded) -> Iterator[Event]:
        run_id, arm = recorded.start.run_id or NO_RUN, recorded.start.arm
        n = len(self._lanes[run_id, arm])
        meta: Event = {"ph": "M", "pid": pid, "tid": THREAD}
        yield {**meta, "name": "process_name", "args": {"name": arm if n == 1 else f"{arm} ({n})"}}
        yield {**meta, "name": "process_labels", "args": {"labels": run_id}}
        yield {**meta, "name": "process_sort_index", "args": {"sort_index": pid}}
        yield {**meta, "name": "thread_name", "args": {"name": arm}}

    def _slice(self, pid: int, span: SpanData) -> Event:
        return self._at(
            pid,
            span.start_unix_ns,
            name=span.name,
            ph="X",
            dur=(span.duration_ns or 0) / 1000,
            cat=span.name.partition(" ")[0],
            args=dict(span.attributes),
        )

    def _describe_rounds(self, pid: int, recorded: Recorded, spans: dict[str, SpanData]) -> Iterator[Event]:
        anchor = recorded.start.started_wall_ns
        for each in recorded.rounds:
            end = anchor + each.start_ns + each.t_round_ns
            yield self._at(pid, end, name="accepted", ph="C", args={"tokens": each.accepted})
            yield self._at(pid, end, name="cache length", ph="C", args={"positions": each.cache_length})
            if each.reason is not None:
                yield self._at(pid, end, name="draft length", ph="C", args={"m": each.requested})
            if each.overlap is not None and each.overlap_positions:
                share = each.overlap / each.overlap_positions
                yield self._at(pid, end, name="1 - TV(p, q)", ph="C", args={"mean": share})
            if each.outcome == "correction":
                yield from self._point(pid, recorded.id, each, spans)

    def _point(self, pid: int, generation_id: str, each: RoundRecord, spans: dict[str, SpanData]) -> Iterator[Event]:
        """An arrow from the middle of the draft to the middle of the stage that read the correction."""
        places = {stage: spans.get(derive_span_id(generation_id, f"{each.index}/{stage}")) for stage in ROUND_STAGES}
        draft, correction = places["draft"], places["synchronize"] or places["verify"]
        if draft is None or correction is None:
            return
        flow = {"name": "corrected", "cat": "correction", "id": derive_span_id(generation_id, str(each.index))}
        yield self._at(pid, _middle(draft), ph="s", **flow)
        yield self._at(pid, _middle(correction), ph="f", bp="e", **flow)

    def _at(self, pid: int, moment_ns: int, **fields: Any) -> Event:
        return {**fields, "ts": (moment_ns - self._first_ns) / 1000, "pid": pid, "tid": THREAD}


def _middle(span: SpanData) -> int:
    return span.start_unix_ns + (span.duration_ns or 0) // 2


def _name_end(recorded: Recorded) -> str:
    end = recorded.end
    if end is None:
        return "aborted"
    kind = getattr(end, "stop_kind", None)
    return str(kind or _ENDS.get(end.finish_reason, end.finish_reason))
