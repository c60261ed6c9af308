"""Counts records: the metrics of everything that was recorded, off the path that generates.

`Metrics.count` takes the records of a journal in their order, `registry` is what Prometheus reads. A record is counted
once, by whoever followed the journal that far; `state` is what a later process goes on from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, get_args

from msgspec import Struct

from telemetry import roundscope_version
from telemetry.fields import LEVEL_STAGES, STAGES, Reason
from telemetry.following import FaultKind, Line
from telemetry.logs import get_logger
from telemetry.metric_names import (
    DEVICE,
    LEVELS,
    MAX_DEVICES,
    MAX_GROUPS,
    MAX_POSITION,
    MAX_PROPOSERS,
    MILLIONTHS,
    OTHER,
    ROUNDS,
)
from telemetry.metric_values import LabelValues, Values, ValuesState
from telemetry.ncm_records import LevelRecord, NcmComparison, NcmEnd, NcmRecord
from telemetry.records import (
    SCHEMA_VERSION,
    ComparisonRecord,
    GenerationEnd,
    GenerationRecord,
    LossRecord,
    Record,
    RoundRecord,
    RunEnd,
    RunRecord,
)
from telemetry.schema import Writer
from telemetry.span_data import Tree

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

_FAULT_REASONS: dict[FaultKind, str] = {
    "torn": "torn",
    "invalid": "invalid",
    "too_new": "newer_version",
    "unreadable": "unreadable",
}
_READ_STAGES: dict[tuple[str, ...], attrgetter[tuple[Any, ...]]] = {
    stages: attrgetter(*(f"{stage}_basis" for stage in stages), *(f"{stage}_ns" for stage in stages))
    for stages in (STAGES, LEVEL_STAGES)
}
_STARTED = ("generations_started", "ncm_generations_started")
_ROUND_COUNTERS = ("proposals", "draft_tokens", "accepted_tokens", "committed_tokens", "cut_tokens")


class Open(Struct, array_like=True):
    """A generation that has begun: where it is recorded, what it is counted under, the trace to point to, if any."""

    journal: str
    is_ncm: bool
    labels: LabelValues
    trace_id: str | None
    started_wall_ns: int


class MetricsState(Struct):
    """What was counted, and which generations were open."""

    values: ValuesState
    open: dict[str, Open]


class Metrics:
    """All metrics, in a registry of their own (`registry`)."""

    def __init__(self) -> None:
        self._values = Values()
        self._open: dict[str, Open] = {}
        self._groups: set[LabelValues] = set()
        self._proposers: set[str] = set()
        self._overflown: set[str] = set()
        self._count: dict[type[Any], Callable[[Any, str], None]] = {
            RunRecord: self._begin_run,
            RunEnd: self._end_run,
            GenerationRecord: self._begin,
            RoundRecord: self._count_round,
            GenerationEnd: self._end,
            ComparisonRecord: self._compare,
            NcmRecord: self._begin_ncm,
            LevelRecord: self._count_level,
            NcmEnd: self._end_ncm,
            NcmComparison: self._compare_ncm,
            LossRecord: self._lose,
        }
        self._show_from_the_start()

    def _show_from_the_start(self) -> None:
        self._values.numbers["build"] = {(roundscope_version(), str(SCHEMA_VERSION)): 1}
        self._values.add("open_generations", (), 0)
        for reason in ("write_failed", *_FAULT_REASONS.values()):
            self._values.add("telemetry_dropped", ("journal", reason), 0)
        self._values.add("telemetry_dropped", ("metrics", "orphan"), 0)

    @property
    def registry(self) -> CollectorRegistry:
        """A new registry with these metrics and nothing else."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def collect(self) -> Iterator[Family]:
        """The families of prometheus-client, as a registry asks for them."""
        self._values.numbers["open_generations"][()] = len(self._open)
        return self._values.collect()

    def count(self, record: Record, journal: str = "") -> None:
        """Count one record of `journal`."""
        count = self._count.get(type(record))
        if count is not None:
            count(record, journal)

    def count_lines(self, lines: Iterable[Line]) -> None:
        """Count what a follower handed out, faults too."""
        for line in lines:
            if line.record is not None:
                self.count(line.record, line.journal)
            elif line.kind is not None:
                self.drop("journal", _FAULT_REASONS[line.kind])

    def drop(self, sink: str, reason: str, amount: int = 1) -> None:
        """Count telemetry that did not arrive."""
        self._values.add("telemetry_dropped", (sink, reason), amount)

    def end_journals(self, ended: Iterable[str]) -> None:
        """The writers of these journals have gone: generations that are open in them were aborted."""
        gone = set(ended)
        for generation_id in [key for key, opened in self._open.items() if opened.journal in gone]:
            opened = self._open.pop(generation_id)
            self._values.add("ncm_generations" if opened.is_ncm else "generations", (*opened.labels, "aborted"))

    def set_journals(self, writers: Iterable[str]) -> None:
        """How many journals are followed, given what is known of each one's writer."""
        counted = Counter(writers)
        self._values.numbers["journals"] = {(writer,): counted[writer] for writer in get_args(Writer)}

    def state(self) -> MetricsState:
        """What another process needs to go on counting."""
        return MetricsState(self._values.state(), dict(self._open))

    def restore(self, state: MetricsState) -> None:
        """Go on from `state`."""
        self._values.restore(state.values)
        self._open = {key: each for key, each in state.open.items() if len(each.labels) == _count_labels(each.is_ncm)}
        self._groups = {labels[:2] for name in _STARTED for labels in self._values.numbers[name]}
        self._proposers = {labels[-1] for labels in self._values.numbers["proposer_proposals"]}
        self._show_from_the_start()

    def _begin_run(self, record: RunRecord, _: str) -> None:
        self._values.add("runs_started", (record.kind,))
        devices = self._values.numbers["device"]
        device = tuple(str(getattr(record, name)) for name in DEVICE)
        devices.pop(device, None)
        devices[device] = 1
        while len(devices) > MAX_DEVICES:
            del devices[next(iter(devices))]

    def _end_run(self, record: RunEnd, _: str) -> None:
        self._values.add("runs", (record.outcome,))

    def _open_generation(self, record: GenerationRecord | NcmRecord, group: LabelValues, journal: str) -> LabelValues:
        if group not in self._groups and len(self._groups) >= MAX_GROUPS:
            self._say_overflown("arms", MAX_GROUPS)
            group = (OTHER, OTHER)
        self._groups.add(group)
        labels: LabelValues = (*group, record.timing, str(record.warm_up).lower())
        if isinstance(record, GenerationRecord):
            labels = (*labels, record.policy or "greedy")
        # A trace that its caller did not sample is nowhere to be looked at.
        trace_id = None if record.sampled is False else Tree(record).trace_id
        is_ncm = isinstance(record, NcmRecord)
        self._open[record.generation_id] = Open(journal, is_ncm, labels, trace_id, record.started_wall_ns)
        return labels

    def _find(self, generation_id: str) -> Open | None:
        opened = self._open.get(generation_id)
        if opened is None:
            self.drop("metrics", "orphan")
        return opened

    def _begin(self, record: GenerationRecord, journal: str) -> None:
        add = self._values.add
        labels = self._open_generation(record, (record.model, record.arm), journal)
        add("generations_started", labels)
        add("prompt_tokens", labels, record.prompt_tokens)
        add("cached_prompt_tokens", labels, record.cached_tokens)
        for name in _ROUND_COUNTERS:
            add(name, labels, 0)
        if record.controlled:
            for reason in get_args(Reason):
                add("controlled_seconds", (*labels, reason), 0)

    def _count_round(self, record: RoundRecord, _: str) -> None:
        opened = self._find(record.generation_id)
        if opened is None:
            return
        add, labels = self._values.add, opened.labels
        add("rounds", (*labels, record.outcome))
        add("draft_tokens", labels, record.proposed)
        add("accepted_tokens", labels, record.accepted)
        add("committed_tokens", labels, record.committed)
        add("device_syncs", labels, record.syncs)
        if record.proposed:
            add("proposals", labels)
            add("cut_tokens", labels, record.cut)
        for position in range(min(record.accepted, MAX_POSITION + 1)):
            add("accepted_tokens_per_position", (*labels, str(position)))
        if record.accepted > MAX_POSITION + 1:
            beyond = record.accepted - MAX_POSITION - 1
            add("accepted_tokens_per_position", (*labels, f"{MAX_POSITION + 1}+"), beyond)
        if record.overlap is not None and record.overlap_positions is not None:
            add("overlap_tokens", labels, round(record.overlap * MILLIONTHS))
            add("overlap_positions", labels, record.overlap_positions)
        if record.reason is not None:
            m = f"{MAX_POSITION + 1}+" if record.requested > MAX_POSITION else str(record.requested)
            add("controlled_rounds", (*labels, record.reason, m))
            add("controlled_seconds", (*labels, record.reason), record.t_round_ns)
        if record.proposer is not None and record.proposed:
            proposer = self._bound_proposer(record.proposer)
            add("proposer_proposals", (*labels, proposer))
            add("proposer_accepted_tokens", (*labels, proposer), record.accepted)
        if record.trim_way != "none":
            add("cache_trims", (*labels, record.trim_way))
            add("cache_trimmed_positions", labels, max(0, record.width - record.committed))
            add("cache_replayed_positions", labels, record.replayed)
        if record.rewind_way != "none":
            add("rewinds", (*labels, record.rewind_way))
        self._observe(opened, "round_seconds", labels, record.start_ns, record.t_round_ns)
        self._observe_stages(opened, "stage_seconds", record, STAGES)

    def _bound_proposer(self, proposer: str) -> str:
        if proposer not in self._proposers and len(self._proposers) >= MAX_PROPOSERS:
            self._say_overflown("proposers", MAX_PROPOSERS)
            return OTHER
        self._proposers.add(proposer)
        return proposer

    def _say_overflown(self, what: str, limit: int) -> None:
        if what not in self._overflown:
            get_logger().warning("metrics.label_overflow", limit=limit, effect=f"more {what} count as {OTHER!r}")
        self._overflown.add(what)

    def _observe(self, opened: Open, name: str, labels: LabelValues, start_ns: int, duration_ns: int) -> None:
        end_wall_ns = opened.started_wall_ns + start_ns + duration_ns
        self._values.histogram(name, labels).observe(duration_ns, opened.trace_id, end_wall_ns)

    def _observe_stages(
        self, opened: Open, name: str, record: RoundRecord | LevelRecord, stages: tuple[str, ...]
    ) -> None:
        start_ns = record.start_ns
        read = _READ_STAGES[stages](record)
        for stage, basis, duration_ns in zip(stages, read[: len(stages)], read[len(stages) :], strict=True):
            if basis is not None:
                self._observe(opened, name, (*opened.labels, stage, basis), start_ns, duration_ns)
            start_ns += duration_ns

    def _end(self, record: GenerationEnd, _: str) -> None:
        opened = self._find(record.generation_id)
        if opened is None:
            return
        del self._open[record.generation_id]
        add, labels = self._values.add, opened.labels
        add("generations", (*labels, record.finish_reason))
        add("prefill_seconds", labels, record.prefill_ns)
        add("decode_seconds", labels, record.decode_ns)
        add("unaccounted_seconds", labels, record.unaccounted_ns)
        self._values.numbers["kv_cache_bytes"][labels] = record.cache_bytes
        self._values.numbers["peak_memory_bytes"][labels] = record.peak_memory_bytes

    def _compare(self, record: ComparisonRecord, _: str) -> None:
        self._values.add("comparisons", (_judge(record),))

    def _begin_ncm(self, record: NcmRecord, journal: str) -> None:
        labels = self._open_generation(record, (record.config, record.arm), journal)
        self._values.add("ncm_generations_started", labels)

    def _count_level(self, record: LevelRecord, _: str) -> None:
        opened = self._find(record.generation_id)
        if opened is None:
            return
        add, labels = self._values.add, opened.labels
        add("ncm_forwards", labels, record.forwards)
        add("ncm_prefix_positions_computed", labels, record.prefix_processed)
        add("ncm_prefix_positions_reused", labels, record.prefix_reused)
        add("ncm_samples_exited", labels, record.n_exited)
        self._observe(opened, "ncm_level_seconds", labels, record.start_ns, record.t_level_ns)
        self._observe_stages(opened, "ncm_stage_seconds", record, LEVEL_STAGES)

    def _end_ncm(self, record: NcmEnd, _: str) -> None:
        opened = self._find(record.generation_id)
        if opened is None:
            return
        del self._open[record.generation_id]
        self._values.add("ncm_generations", (*opened.labels, record.finish_reason))
        self._values.add("ncm_seconds", opened.labels, record.total_ns)
        self._values.numbers["ncm_kv_cache_bytes"][opened.labels] = record.kv_bytes

    def _compare_ncm(self, record: NcmComparison, _: str) -> None:
        self._values.add("ncm_comparisons", (_judge(record),))

    def _lose(self, record: LossRecord, _: str) -> None:
        self.drop("journal", "write_failed", record.n_records)


def _count_labels(is_ncm: bool) -> int:
    return len(LEVELS if is_ncm else ROUNDS)


def _judge(record: ComparisonRecord | NcmComparison) -> str:
    return "equal" if record.equal else "near_tie" if record.near_tie else "divergent"
