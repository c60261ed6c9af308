"""The speculative round: draft -> verify -> synchronize -> trim -> rewind.

In `fused` timing the device is waited for once a round, when the target's tokens are read; a drafter that
proposes a lazy array is verified before anybody knows what it proposed. In `attributed` timing an evaluation
barrier ends each stage that has device work, so that its duration is its own; such rounds cost more and never
enter seconds per token.

Between rounds the target's cache holds the history less its last token. That token and the proposal go
through one forward, whose row i predicts what follows the i-th of them (a convention that leaves no token out
and computes none twice).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from runtime.device import barrier, drain, read
from runtime.processing import process
from runtime.protocols import Drafter, Proposal, SamplingDrafter
from runtime.rounds import OpenRound
from runtime.session import Session
from runtime.speculative.contract import DrafterError, check_ids, check_length
from runtime.speculative.overlap import OverlapMeter
from runtime.speculative.relaxed import Relaxed
from runtime.speculative.rules import Limits, OwnTokens, Residual, Rule
from runtime.speculative.trimming import trim
from runtime.speculative.verification import name_outcome, name_rule
from telemetry.fields import Coupling, Timing

Propose: TypeAlias = Callable[[Sequence[int], int], Proposal]
"""A drafter's `propose`, or a part's."""

_in_use: WeakValueDictionary[int, Speculative] = WeakValueDictionary()
"""Who reset a drafter last, by the drafter's id: its state belongs to that one."""

NOTHING = Proposal(())
"""Stands for every empty proposal: an empty array of mlx would be one of floats."""


class Speculative:
    """Steps a session by speculative rounds of at most `draft_length` proposed tokens."""

    pipelined = False
    controlled = False

    def __init__(
        self,
        session: Session,
        drafter: Drafter,
        *,
        draft_length: int,
        timing: Timing,
        coupling: Coupling = "residual",
        relaxed: Relaxed | None = None,
    ) -> None:
        self._session = session
        self._attributed = timing == "attributed"
        self._logits: Any = None
        self.drafter = drafter
        self.draft_length = draft_length
        self.coupling: Coupling | None = None if session.sampling is None or relaxed else coupling
        self.relaxation = None if relaxed is None else relaxed.rule
        measured = session.sampling if self._attributed and relaxed is None else None
        self._overlap = None if measured is None else OverlapMeter(measured)
        self._rule = self._find_rule(relaxed)
        self.arm = f"{drafter.name} m={draft_length}{name_rule(self.coupling, self.relaxation)}"

    def _find_rule(self, relaxed: Relaxed | None) -> Rule:
        session = self._session
        if relaxed is not None:
            return Limits(session, self.drafter, relaxed)
        if session.sampling is None or self.coupling == "equality":
            return OwnTokens(session, self._overlap)
        return Residual(session, self.drafter, session.sampling, self._overlap)

    def prefill(self) -> None:
        """Fill the target's cache, and let the drafter take in the prompt."""
        self._session.prefill()
        if self._session.cancelled:
            return
        self._session.begin_round()
        _in_use[id(self.drafter)] = self
        if isinstance(self.drafter, SamplingDrafter):
            self.drafter.sample_with(self._session.sampling)
        self.drafter.reset(self._session.history)
        drain()

    def step(self, open_round: OpenRound) -> None:
        """Do one round; it commits at least one token unless the generation was cancelled in the middle of it."""
        self.begin()
        self.complete(open_round, self.ask(open_round, self.draft_length, self.drafter.propose))

    def begin(self) -> None:
        """Begin a round."""
        self._session.begin_round()
        self._require_drafter()

    def ask(self, open_round: OpenRound, m: int, propose: Propose) -> Proposal:
        """What the drafter proposes that way, at most `m` tokens."""
        open_round.requested = self._session.limit_proposal(m)
        proposal = propose(self._session.history, open_round.requested)
        check_length(self.drafter, proposal, open_round.requested)
        open_round.proposed = len(proposal)
        open_round.proposer = getattr(self.drafter, "proposer", None)
        if not open_round.proposed:
            return NOTHING
        if open_round.proposer is not None and self.coupling == "residual":
            open_round.q_source = "point" if proposal.q is None else "drafter"
        return proposal

    def complete(self, open_round: OpenRound, proposal: Proposal) -> None:
        """The round from there on."""
        self._mark_draft(open_round, proposal)
        if self._session.cancelled or not self._verify_and_judge(open_round, proposal):
            open_round.void("cancelled")
        trim(self._session, open_round, longest=self.draft_length, attributed=self._attributed)
        self._rewind(open_round)
        if self._overlap is not None:
            self._overlap.measure(open_round, proposal)

    def _mark_draft(self, open_round: OpenRound, proposal: Proposal) -> None:
        if isinstance(proposal.tokens, (list, tuple)):
            self._check_ids(proposal.tokens)
            open_round.mark("draft", "host")
        elif self._attributed:
            barrier(proposal.tokens)
            open_round.mark("draft", "barrier")
        else:
            open_round.mark("draft", "host_launch")

    def _verify_and_judge(self, open_round: OpenRound, proposal: Proposal) -> bool:
        """Whether the proposal was judged: not if the generation was cancelled while the device worked."""
        if self._session.processors:
            return self._process_rows(open_round, proposal, self._verify(open_round, proposal, None))
        judge = partial(self._rule.judge, proposal, slice(None))
        drafted, *found = self._synchronize(open_round, proposal, *self._verify(open_round, proposal, judge))
        if self._session.cancelled:
            return False
        accepted, tokens = self._rule.settle(drafted, found)
        self._judge(open_round, drafted, tokens, accepted, self._session.end_at_stop(open_round, tokens))
        self._keep_rows(len(tokens))
        return True

    def _keep_rows(self, count: int) -> None:
        rows, logits, self._logits = self._session.rows, self._logits, None
        if rows is not None:
            rows.extend(logits[index : index + 1] for index in range(count))

    def _verify(self, open_round: OpenRound, proposal: Proposal, verify: Callable[[Any], Any] | None) -> Any:
        """What `verify` makes of the logits (proposed + 1, vocab) after the last token and each proposed one, or they
        themselves.
        """
        import mlx.core as mx

        known = self._session.history[self._session.cache.length :]
        self._note_snapshots()
        if isinstance(proposal.tokens, (list, tuple)):
            ids = mx.array([*known, *proposal.tokens])
        else:
            ids = mx.concatenate([mx.array(known, dtype=proposal.tokens.dtype), proposal.tokens])
        open_round.replayed = len(known) - 1
        open_round.width = len(known) + open_round.proposed
        logits = self._session.forward(ids, tentative=True)[len(known) - 1 :]
        verified = logits if verify is None else verify(logits)
        self._logits = logits if verify is not None and self._session.rows is not None else None
        if self._attributed:
            barrier(verified)
            open_round.mark("verify", "barrier")
        else:
            open_round.mark("verify", "host_launch")
        return verified

    def _note_snapshots(self) -> None:
        held = self._session.cache.undo.snapshot_bytes + getattr(self.drafter, "snapshot_bytes", 0)
        self._session.snapshot_bytes = max(self._session.snapshot_bytes, held)

    def _synchronize(self, open_round: OpenRound, proposal: Proposal, *verified: Any) -> list[Sequence[int]]:
        """The proposal, and what verification gave."""
        if isinstance(proposal.tokens, (list, tuple)):
            found: list[Sequence[int]] = [proposal.tokens, *read(*verified)]
        else:
            found = [*read(proposal.tokens, *verified)]
            self._check_ids(found[0])
        open_round.mark("synchronize", "host_wait")
        open_round.proposal = list(found[0])
        return found

    def _process_rows(self, open_round: OpenRound, proposal: Proposal, logits: Any) -> bool:
        """Choose token by token through the processors, as far as ordinary decoding would come this way."""
        import mlx.core as mx

        session, accepted, stopped_at = self._session, 0, None
        tokens: list[int] = []
        drafted = self._read_proposal(proposal)
        open_round.proposal = list(drafted)
        seen = mx.array(session.history)
        for index in range(len(drafted) + 1):
            history = mx.concatenate([seen, mx.array(drafted[:index])]) if index else seen
            token, stands = self._choose_row(logits[index : index + 1], history, proposal, drafted, index)
            if session.cancelled:
                return False
            tokens.append(token)
            accepted += stands
            if session.end_at_stop(open_round, [token]) is not None:
                stopped_at = index
                break
            if not stands:
                break
        open_round.processed = len(tokens)
        open_round.mark("synchronize", "host_wait")
        self._judge(open_round, drafted, tokens, accepted, stopped_at)
        return True

    def _choose_row(
        self, logits: Any, history: Any, proposal: Proposal, drafted: Sequence[int], index: int
    ) -> tuple[int, bool]:
        """The token after `history`, and whether it is the proposal's at `index`, which now stands."""
        session, part = self._session, slice(index, index + 1)
        logits = process(logits, history, session.processors, session.rows)
        accepted, tokens = self._rule.settle(drafted[part], read(*self._rule.judge(proposal, part, logits)))
        return tokens[0], accepted == 1

    def _judge(
        self, open_round: OpenRound, drafted: Sequence[int], tokens: list[int], accepted: int, stopped_at: int | None
    ) -> None:
        """`tokens` become output up to where a stop was found, the first `accepted` of them being the proposal's."""
        open_round.outcome = name_outcome(len(drafted), accepted)
        if stopped_at is not None and stopped_at < accepted:
            accepted = stopped_at + 1
            del tokens[accepted:]
            open_round.outcome = "stop"
            open_round.cut = len(drafted) - accepted
        open_round.accepted = accepted
        open_round.tokens = tokens

    def _read_proposal(self, proposal: Proposal) -> list[int]:
        if isinstance(proposal.tokens, (list, tuple)):
            return list(proposal.tokens)
        [drafted] = read(proposal.tokens)
        self._check_ids(drafted)
        return drafted

    def follow(self, open_round: OpenRound) -> None:
        """Let the drafter follow a step that was made without it."""
        self._require_drafter()
        self._rewind(open_round)

    def _rewind(self, open_round: OpenRound) -> None:
        drafter, length = self.drafter, len(self._session.history) - 1
        if open_round.tokens:
            drafter.commit(open_round.tokens)
        if drafter.length > length:
            drafter.rewind(length)
            open_round.rewind_way = getattr(drafter, "way", "trim")
        open_round.drafter_length = drafter.length
        open_round.mark("rewind", "host")

    def _check_ids(self, tokens: Sequence[int]) -> None:
        check_ids(self.drafter, tokens, self._session.target.vocab_size)

    def abandon(self, open_round: OpenRound) -> None:
        """Bring target and drafter back to the committed history after a failure."""
        self._session.roll_back()
        with contextlib.suppress(Exception):  # the target may be what failed: its cache then stays behind
            self._session.catch_up()
        open_round.cache_length = self._session.cache.length
        if self._owns_drafter():
            # The drafter may be what failed: its state is then its own, and the failure already known is the
            # one to report.
            with contextlib.suppress(Exception):
                self.drafter.rewind(len(self._session.history) - 1)
            open_round.drafter_length = self.drafter.length
        open_round.skip()

    def _require_drafter(self) -> None:
        if not self._owns_drafter():
            raise DrafterError(self.drafter, "was reset by another generation; give each its own drafter")

    def _owns_drafter(self) -> bool:
        return _in_use.get(id(self.drafter)) is self

    def finish(self) -> None:
        """Bring the target's cache up to the committed history less its last token, and wait for the device."""
        self._session.catch_up()
        self._session.settle_device()
