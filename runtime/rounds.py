"""One round: what the caller gets, what is recorded, and the stopwatch that measures it.

`OpenRound` is filled in while the round runs: each stage ends with `mark`, so stages follow one another
without gaps or overlaps, and T_round is the time from its making to the last mark.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from runtime.device import syncs
from runtime.stopping import Stop
from telemetry.records import Basis, Outcome, RoundRecord, Way


class Round(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one round did. Counts are tokens, durations nanoseconds; telemetry.records.RoundRecord has each
    meaning.

    `tokens` are the committed ids, `stop` is the id or string that ended the output in this round, `stages`
    maps a stage to its duration and to the basis it was timed on.
    """

    index: int
    requested: int
    proposed: int
    accepted: int
    committed: int
    cut: int
    outcome: Outcome
    tokens: tuple[int, ...]
    stop: int | str | None
    cache_length: int
    drafter_length: int | None
    width: int
    syncs: int
    t_round_ns: int
    stages: dict[str, tuple[int, Basis]]
    trim_way: Way
    rewind_way: Way


class OpenRound:
    """A round in progress. Steppers set what they learn; nothing here reads an array."""

    __slots__ = (
        "_first_sync",
        "_now",
        "_previous",
        "accepted",
        "cache_length",
        "cut",
        "drafter_length",
        "index",
        "outcome",
        "proposal",
        "proposed",
        "requested",
        "rewind_way",
        "stages",
        "start_ns",
        "stop",
        "tokens",
        "trim_way",
        "width",
    )

    def __init__(self, index: int, now: Callable[[], int]) -> None:
        self.index = index
        self.requested = self.proposed = self.accepted = self.cut = self.width = 0
        self.outcome: Outcome = "step"
        self.tokens: list[int] = []
        self.proposal: list[int] = []
        self.stop: Stop | None = None
        self.cache_length = 0
        self.drafter_length: int | None = None
        self.trim_way: Way = "none"
        self.rewind_way: Way = "none"
        self.stages: dict[str, tuple[int, Basis]] = {}
        self._first_sync = syncs()
        self._now = now
        self.start_ns = self._previous = now()

    def mark(self, stage: str, basis: Basis) -> None:
        """The time since the last mark was spent on `stage`."""
        now = self._now()
        self.stages[stage] = (now - self._previous, basis)
        self._previous = now

    def skip(self) -> None:
        """The time since the last mark belongs to no stage; it stays in T_round."""
        self._previous = self._now()

    def void(self, outcome: Outcome) -> None:
        """Nothing of this round is committed, for the reason `outcome`; what was proposed was not judged."""
        self.outcome = outcome
        self.tokens = []
        self.stop = None
        self.accepted = 0
        self.cut = self.proposed

    @property
    def end_ns(self) -> int:
        """The moment of the last mark."""
        return self._previous

    def close(self) -> Round:
        """The round as its caller gets it."""
        return Round(
            index=self.index,
            requested=self.requested,
            proposed=self.proposed,
            accepted=self.accepted,
            committed=len(self.tokens),
            cut=self.cut,
            outcome=self.outcome,
            tokens=tuple(self.tokens),
            stop=None if self.stop is None else self.stop.value,
            cache_length=self.cache_length,
            drafter_length=self.drafter_length,
            width=self.width,
            syncs=syncs() - self._first_sync,
            t_round_ns=self._previous - self.start_ns,
            stages=self.stages,
            trim_way=self.trim_way,
            rewind_way=self.rewind_way,
        )

    def record(self, closed: Round, generation_id: str, anchor_ns: int, *, with_text: bool) -> RoundRecord:
        """The same round as a record; `anchor_ns` is the generation's monotonic anchor."""
        stages = self.stages
        draft_ns, draft_basis = stages.get("draft", _NOT_ENTERED)
        verify_ns, verify_basis = stages.get("verify", _NOT_ENTERED)
        synchronize_ns, synchronize_basis = stages.get("synchronize", _NOT_ENTERED)
        trim_ns, trim_basis = stages.get("trim", _NOT_ENTERED)
        rewind_ns, rewind_basis = stages.get("rewind", _NOT_ENTERED)
        return RoundRecord(
            generation_id=generation_id,
            index=closed.index,
            start_ns=self.start_ns - anchor_ns,
            t_round_ns=closed.t_round_ns,
            requested=closed.requested,
            proposed=closed.proposed,
            accepted=closed.accepted,
            committed=closed.committed,
            cut=closed.cut,
            outcome=closed.outcome,
            stop_kind=None if self.stop is None else self.stop.kind,
            width=closed.width,
            syncs=closed.syncs,
            cache_length=closed.cache_length,
            drafter_length=closed.drafter_length,
            trim_way=closed.trim_way,
            rewind_way=closed.rewind_way,
            draft_ns=draft_ns,
            draft_basis=draft_basis,
            verify_ns=verify_ns,
            verify_basis=verify_basis,
            synchronize_ns=synchronize_ns,
            synchronize_basis=synchronize_basis,
            trim_ns=trim_ns,
            trim_basis=trim_basis,
            rewind_ns=rewind_ns,
            rewind_basis=rewind_basis,
            proposal=list(self.proposal) if with_text else None,
            tokens=list(self.tokens) if with_text else None,
        )


_NOT_ENTERED: tuple[int, None] = (0, None)
