"""The speculative round: draft -> verify -> synchronize -> trim -> rewind.

In `fused` timing the device is waited for once a round, when the target's tokens are read; a drafter that
proposes a lazy array is verified before anybody knows what it proposed. In `attributed` timing an evaluation
barrier ends each stage that has device work, so that its duration is its own; such rounds cost more and never
enter seconds per token.

Between rounds the target's cache holds the history less its last token. That token and the proposal go
through one forward, whose row i predicts what follows the i-th of them (a convention that leaves no token out
and computes none twice).

Where only a snapshot leads back, the accepted positions of a round with a rejection have to be fed again. They go in
front of the next round's forward, which a few more positions hardly make dearer, instead of through one of their own;
until then the cache is behind by them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from runtime.device import barrier, drain, read
from runtime.processing import choose
from runtime.protocols import Drafter, Proposal
from runtime.rounds import OpenRound
from runtime.session import Session
from runtime.speculative.verification import count_accepted, name_outcome
from telemetry.errors import RoundscopeError
from telemetry.records import Basis, Timing

_in_use: WeakValueDictionary[int, Speculative] = WeakValueDictionary()
"""Who reset a drafter last, by the drafter's id: its state belongs to that one."""

MAX_BEHIND = 16
"""Positions that the target's cache may be behind by; more are fed at once, so that no forward grows without bound."""

_NOTHING = Proposal(())
"""Stands for every empty proposal: an empty array of mlx would be one of floats."""


class DrafterError(RoundscopeError):
    """A drafter broke its contract; the message names it."""


class Speculative:
    """Steps a session by speculative rounds of at most `draft_length` proposed tokens."""

    pipelined = False

    def __init__(self, session: Session, drafter: Drafter, *, draft_length: int, timing: Timing) -> None:
        self._session = session
        self._attributed = timing == "attributed"
        self._logits: Any = None
        self._behind: list[int] = []
        self.drafter = drafter
        self.draft_length = draft_length
        self.arm = f"{drafter.name} m={draft_length}"

    def prefill(self) -> None:
        """Fill the target's cache, and let the drafter take in the prompt."""
        self._session.prefill()
        if self._session.cancelled:
            return
        self._session.cache.undo.begin()
        _in_use[id(self.drafter)] = self
        self.drafter.reset(self._session.history)
        drain()

    def step(self, open_round: OpenRound) -> None:
        """Do one round; it commits at least one token unless the generation was cancelled in the middle of it."""
        self._session.cache.undo.begin()
        if not self._owns_drafter():
            raise DrafterError(
                f"drafter {self.drafter.name!r} was reset by another generation; give each its own drafter"
            )
        proposal = self._draft(open_round)
        if self._session.cancelled or not self._verify_and_judge(open_round, proposal):
            open_round.void("cancelled")
        self._trim(open_round)
        self._rewind(open_round)

    def _verify_and_judge(self, open_round: OpenRound, proposal: Proposal) -> bool:
        """Whether the proposal was judged: not if the generation was cancelled while the device worked."""
        processed = bool(self._session.processors)
        verified = self._verify(open_round, proposal, choose_all=not processed)
        if processed:
            return self._process_rows(open_round, proposal, verified)
        drafted, predicted = self._synchronize(open_round, proposal, verified)
        if self._session.cancelled:
            return False
        tokens = list(predicted[: count_accepted(drafted, predicted) + 1])
        self._judge(open_round, drafted, tokens, self._session.end_at_stop(open_round, tokens))
        self._keep_rows(len(tokens))
        return True

    def _keep_rows(self, count: int) -> None:
        rows, logits, self._logits = self._session.rows, self._logits, None
        if rows is not None:
            rows.extend(logits[index : index + 1] for index in range(count))

    def _draft(self, open_round: OpenRound) -> Proposal:
        session = self._session
        open_round.requested = session.limit_proposal(self.draft_length)
        proposal = self.drafter.propose(session.history, open_round.requested)
        if len(proposal) > open_round.requested:
            raise DrafterError(
                f"drafter {self.drafter.name!r} proposed {len(proposal)} tokens where "
                f"{open_round.requested} were asked for"
            )
        open_round.proposed = len(proposal)
        if not open_round.proposed:
            proposal = _NOTHING
        if isinstance(proposal.tokens, (list, tuple)):
            self._check_ids(proposal.tokens)
            open_round.mark("draft", "host")
        elif self._attributed:
            barrier(proposal.tokens)
            open_round.mark("draft", "barrier")
        else:
            open_round.mark("draft", "host_launch")
        return proposal

    def _verify(self, open_round: OpenRound, proposal: Proposal, *, choose_all: bool) -> Any:
        """The target's tokens (proposed + 1,) after the last token and each proposed one, or the logits
        (proposed + 1, vocab) they are to be chosen from.
        """
        import mlx.core as mx

        known = [*self._behind, self._session.history[-1]]
        self._note_snapshots()
        if isinstance(proposal.tokens, (list, tuple)):
            ids = mx.array([*known, *proposal.tokens])
        else:
            ids = mx.concatenate([mx.array(known, dtype=proposal.tokens.dtype), proposal.tokens])
        open_round.replayed = len(self._behind)
        open_round.width = len(known) + open_round.proposed
        logits = self._session.forward(ids, tentative=True)[len(self._behind) :]
        verified = mx.argmax(logits, axis=-1) if choose_all else logits
        self._logits = logits if choose_all and self._session.rows is not None else None
        if self._attributed:
            barrier(verified)
            open_round.mark("verify", "barrier")
        else:
            open_round.mark("verify", "host_launch")
        return verified

    def _note_snapshots(self) -> None:
        held = self._session.cache.undo.snapshot_bytes + getattr(self.drafter, "snapshot_bytes", 0)
        self._session.snapshot_bytes = max(self._session.snapshot_bytes, held)

    def _synchronize(
        self, open_round: OpenRound, proposal: Proposal, predictions: Any
    ) -> tuple[Sequence[int], Sequence[int]]:
        if isinstance(proposal.tokens, (list, tuple)):
            drafted: Sequence[int] = proposal.tokens
            [predicted] = read(predictions)
        else:
            drafted, predicted = read(proposal.tokens, predictions)
            self._check_ids(drafted)
        open_round.mark("synchronize", "host_wait")
        open_round.proposal = list(drafted)
        return drafted, predicted

    def _process_rows(self, open_round: OpenRound, proposal: Proposal, logits: Any) -> bool:
        """Choose token by token through the processors, as far as ordinary decoding would come this way."""
        import mlx.core as mx

        session, tokens, stopped_at = self._session, [], None
        drafted = self._read_proposal(proposal)
        open_round.proposal = list(drafted)
        seen = mx.array(session.history)
        for index in range(len(drafted) + 1):
            history = mx.concatenate([seen, mx.array(drafted[:index])]) if index else seen
            [[token]] = read(choose(logits[index : index + 1], history, session.processors, session.rows))
            if session.cancelled:
                return False
            tokens.append(token)
            if session.end_at_stop(open_round, [token]) is not None:
                stopped_at = index
                break
            if token not in drafted[index : index + 1]:
                break
        open_round.processed = len(tokens)
        open_round.mark("synchronize", "host_wait")
        self._judge(open_round, drafted, tokens, stopped_at)
        return True

    def _judge(self, open_round: OpenRound, drafted: Sequence[int], tokens: list[int], stopped_at: int | None) -> None:
        """`tokens` are the target's, up to the first that the drafter had not or that a stop was found at."""
        accepted = count_accepted(drafted[: len(tokens)], tokens)
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

    def _trim(self, open_round: OpenRound) -> None:
        session, tokens = self._session, open_round.tokens
        open_round.skip()
        fed = [session.history[-1], *tokens][: len(tokens)]
        grown, undo = open_round.width, session.cache.undo
        excess = grown - len(self._behind) - len(fed) if grown else 0
        basis: Basis = "host"
        if excess and undo.way == "snapshot":
            open_round.trim_way = "snapshot"
            undo.back(grown)
            self._behind += fed
            basis = self._catch_up_if_needed(open_round)
        else:
            if excess and (fed or undo.can_trim(excess)):
                open_round.trim_way = "trim"
                undo.trim(excess)
            elif excess:  # a cancelled single step that a window cannot give back: it holds the last committed token
                fed = session.history[-1:]
            session.settle()
            if grown:
                session.cache.hold([*self._behind, *fed])
                self._behind = []
        session.history.extend(tokens)
        open_round.cache_length = session.cache.length
        open_round.mark("trim", basis)

    def _catch_up_if_needed(self, open_round: OpenRound) -> Basis:
        """Feed what the cache is behind by now where it cannot wait for the next round."""
        import mlx.core as mx

        session = self._session
        ends = session.stop is not None or len(open_round.tokens) >= session.remaining
        if not (ends or len(self._behind) > MAX_BEHIND or session.quantising is not None):
            return "host"
        open_round.replayed += len(self._behind)
        self._catch_up()
        states = [layer.state for layer in session.cache.layers]
        # The next round waits for it; after the last one nobody would, and T_round would leave it out.
        if self._attributed or ends:
            barrier(states)
            return "barrier"
        mx.async_eval(states)
        return "host_launch"

    def _catch_up(self) -> None:
        """Feed the accepted positions that a snapshot took back, in one forward of their own."""
        import mlx.core as mx

        if not self._behind:
            return
        session = self._session
        behind, self._behind = self._behind, []
        session.cache.undo.begin()
        try:
            session.forward(mx.array(behind))
        except BaseException:
            session.cache.restore(session.cache.length)
            raise
        session.cache.hold(behind)

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
        bad = [token for token in tokens if not 0 <= token < self._session.target.vocab_size]
        if bad:
            raise DrafterError(
                f"drafter {self.drafter.name!r} proposed token {bad[0]}, which is not in the target's vocabulary of "
                f"{self._session.target.vocab_size}"
            )

    def abandon(self, open_round: OpenRound) -> None:
        """Bring target and drafter back to the committed history after a failure."""
        self._session.roll_back()
        open_round.cache_length = self._session.cache.length
        if self._owns_drafter():
            # The drafter may be what failed: its state is then its own, and the failure already known is the
            # one to report.
            with contextlib.suppress(Exception):
                self.drafter.rewind(len(self._session.history) - 1)
            open_round.drafter_length = self.drafter.length
        open_round.skip()

    def _owns_drafter(self) -> bool:
        return _in_use.get(id(self.drafter)) is self

    def finish(self) -> None:
        """Bring the target's cache up to the committed history less its last token, and wait for the device."""
        self._catch_up()
        drain()
