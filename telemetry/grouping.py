"""Puts records together that belong to one generation, and says when nothing more of it is to come.

A generation of a run is compared after it has ended, a speculative one with ordinary decoding's, a cached one with the
uncached one's, and links to that pair; so a span tree is whole only when the comparison is there, or cannot come any
more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from telemetry.ncm_records import LevelRecord, NcmComparison, NcmEnd, NcmRecord
from telemetry.records import (
    ComparisonRecord,
    GenerationEnd,
    GenerationRecord,
    RankEnd,
    Record,
    RoundRecord,
    RunEnd,
    RunRecord,
)

UNCACHED = "no-"
"""What the arm without prefix cache has before the name of the cached one."""


@dataclass
class Recorded:
    """What was recorded of a generation. end: None if it never ended by itself."""

    start: GenerationRecord | NcmRecord
    rounds: list[RoundRecord] = field(default_factory=list)
    levels: list[LevelRecord] = field(default_factory=list)
    end: GenerationEnd | NcmEnd | None = None
    comparison: ComparisonRecord | NcmComparison | None = None

    @property
    def id(self) -> str:
        """The generation's id."""
        return self.start.generation_id

    def will_be_compared(self, arms: Collection[str] | None = None) -> bool:
        """Whether it is of those whose output is held against another one's. arms: its run's; None: not known."""
        start = self.start
        if start.run_id is None or start.warm_up or self.end is None:
            return False
        if isinstance(start, NcmRecord):
            has_pair = start.cache and (arms is None or UNCACHED + start.arm in arms)
            return has_pair and self.end.finish_reason in ("complete", "exited")
        return start.drafter is not None and self.end.finish_reason in ("stop", "length")


class Grouping:
    """Takes records in the order of a journal and gives generations back as they become whole.

    awaits_comparison: whether a generation that will be compared is whole only then. Records of a generation whose
    start was not seen are passed over.
    """

    def __init__(self, *, awaits_comparison: bool = True) -> None:
        self._awaits_comparison = awaits_comparison
        self._open: dict[str, Recorded] = {}
        self._arms: dict[str, list[str]] = {}

    def add(self, record: Record) -> list[Recorded]:
        """Take one record; the generations of which it was the last."""
        if isinstance(record, (GenerationRecord, NcmRecord)):
            self._open[record.generation_id] = Recorded(record)
        elif isinstance(record, RunRecord):
            self._arms[record.run_id] = record.arms
        elif isinstance(record, (RunEnd, RankEnd)):
            return self._close(record.run_id)
        elif isinstance(record, (RoundRecord, LevelRecord, GenerationEnd, NcmEnd, ComparisonRecord, NcmComparison)):
            return self._add_part(record)
        return []

    def _add_part(
        self, record: RoundRecord | LevelRecord | GenerationEnd | NcmEnd | ComparisonRecord | NcmComparison
    ) -> list[Recorded]:
        recorded = self._open.get(record.generation_id)
        if recorded is None:
            return []
        if isinstance(record, RoundRecord):
            recorded.rounds.append(record)
        elif isinstance(record, LevelRecord):
            recorded.levels.append(record)
        elif isinstance(record, (ComparisonRecord, NcmComparison)):
            recorded.comparison = record
        else:
            recorded.end = record
        return [self._open.pop(recorded.id)] if self._is_whole(recorded) else []

    def _is_whole(self, recorded: Recorded) -> bool:
        if recorded.end is None:
            return False
        if recorded.comparison is not None or not self._awaits_comparison:
            return True
        run_id = recorded.start.run_id
        return not recorded.will_be_compared(None if run_id is None else self._arms.get(run_id))

    def _close(self, run_id: str) -> list[Recorded]:
        """The run, or this rank of it, is over: what has ended is whole as it stands."""
        self._arms.pop(run_id, None)
        # A copy, because another thread's generation may begin meanwhile.
        ended = [each for each in list(self._open.values()) if each.start.run_id == run_id and each.end is not None]
        return [self._open.pop(each.id) for each in ended]

    def flush(self) -> list[Recorded]:
        """Nothing more will come: what is left, as it stands."""
        left = list(self._open.values())
        self._open.clear()
        return left


def group(records: Iterable[Record]) -> Iterator[Recorded]:
    """Every generation of `records`, as it becomes whole; those that never do come last."""
    grouping = Grouping()
    for record in records:
        yield from grouping.add(record)
    yield from grouping.flush()
