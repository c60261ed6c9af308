"""One round: what the caller gets, what is recorded, and the stopwatch that measures it.

`OpenRound` is filled in while the round runs: each stage ends with `mark`, so stages follow one another
without gaps or overlaps, and T_round is the time from its making to the last mark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from runtime.device import syncs
from runtime.stopping import Stop
from telemetry.fields import Basis, Outcome, ProposalSource, Reason, Way
from telemetry.records import RoundRecord


class Decision(NamedTuple):
    """The m that a controller chose for a round, with what spoke for it.

    expected_ns, step_ns: nanoseconds per committed token that it expected of m, and of an ordinary step; None: it knew
    nothing of them.
    """

    m: int
    reason: Reason
    expected_ns: int | None
    step_ns: int | None


class Round(msgspec.Struct, frozen=True, gc=False):
    """What one round did. Counts are tokens, durations nanoseconds; telemetry.records.RoundRecord has each
    meaning.

    `tokens` are the committed ids, `stop` is the id or string that ended the output in this round, `stages`
    maps a stage to its duration and to the basis it was timed on. `proposer` is the part of a composed drafter that
    proposed. `decision` is the controller's, if there was one.
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
    replayed: int
    processed: int
    proposer: str | None = None
    decision: Decision | None = None


class OpenRound:
    """A round in progress. Steppers set what they learn; nothing here reads an array."""

    __slots__ = (
        "_first_sync",
        "_now",
        "_previous",
        "accepted",
        "cache_length",
        "cut",
        "decision",
        "drafter_length",
        "index",
        "outcome",
        "overlap",
        "overlap_positions",
        "processed",
        "proposal",
        "proposed",
        "proposer",
        "q_source",
        "replayed",
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
        self.requested = self.proposed = self.accepted = self.cut = self.width = self.replayed = self.processed = 0
        self.outcome: Outcome = "step"
        self.tokens: list[int] = []
        self.proposal: list[int] = []
        self.stop: Stop | None = None
        self.decision: Decision | None = None
        self.cache_length = 0
        self.overlap: float | None = None
        self.overlap_positions: int | None = None
        self.drafter_length: int | None = None
        self.proposer: str | None = None
        self.q_source: ProposalSource | None = None
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
            self.index,
            self.requested,
            self.proposed,
            self.accepted,
            len(self.tokens),
            self.cut,
            self.outcome,
            tuple(self.tokens),
            None if self.stop is None else self.stop.value,
            self.cache_length,
            self.drafter_length,
            self.width,
            syncs() - self._first_sync,
            self._previous - self.start_ns,
            self.stages,
            self.trim_way,
            self.rewind_way,
            self.replayed,
            self.processed,
            self.proposer,
            self.decision,
        )

    def record(self, closed: Round, generation_id: str, anchor_ns: int, *, with_text: bool) -> RoundRecord:
        """The same round as a record; `anchor_ns` is the generation's monotonic anchor."""
        _, reason, expected_ns, step_ns = self.decision or _NO_DECISION
        find = self.stages.get
        draft_ns, draft_basis = find("draft", _NOT_ENTERED)
        verify_ns, verify_basis = find("verify", _NOT_ENTERED)
        synchronize_ns, synchronize_basis = find("synchronize", _NOT_ENTERED)
        trim_ns, trim_basis = find("trim", _NOT_ENTERED)
        rewind_ns, rewind_basis = find("rewind", _NOT_ENTERED)
        return RoundRecord(
            generation_id,
            self.index,
            self.start_ns - anchor_ns,
            closed.t_round_ns,
            self.requested,
            self.proposed,
            self.accepted,
            closed.committed,
            self.cut,
            self.outcome,
            self.width,
            self.processed,
            closed.syncs,
            self.cache_length,
            self.trim_way,
            self.replayed,
            self.rewind_way,
            draft_ns,
            verify_ns,
            synchronize_ns,
            trim_ns,
            rewind_ns,
            draft_basis,
            verify_basis,
            synchronize_basis,
            trim_basis,
            rewind_basis,
            self.drafter_length,
            self.proposer,
            None if self.stop is None else self.stop.kind,
            list(self.proposal) if with_text else None,
            list(self.tokens) if with_text else None,
            self.overlap,
            self.overlap_positions,
            reason,
            expected_ns,
            step_ns,
            self.q_source,
        )


_NO_DECISION = (0, None, None, None)
_NOT_ENTERED: tuple[int, None] = (0, None)
