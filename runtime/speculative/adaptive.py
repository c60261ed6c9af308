"""Rounds whose proposer and draft length a controller chooses; at m = 0 they are ordinary decoding's pipelined steps.

A step in flight is never thrown away: before a round with a proposal it lands, which is a round of its own that commits
its token and launches nothing. So the cache's contract is that of either way between any two rounds: it holds the
history less its last token, and one position more while a step is in flight.

A drafter on the host (`on_host`) is asked while steps are made, and its answer is held against what they commit: that
tells of acceptance what a probe would, at no cost. Any other is not asked at m = 0. Of a composition each part is
asked for itself, and all of them follow the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from runtime.ordinary import Ordinary
from runtime.protocols import CompositeDrafter, Drafter
from runtime.rounds import OpenRound
from runtime.session import Session
from runtime.speculative.controller import Choice, Controller
from runtime.speculative.relaxed import Relaxed
from runtime.speculative.stepper import NOTHING, Propose, Speculative
from runtime.speculative.verification import name_rule
from runtime.speculative.watching import Watch
from telemetry.fields import Coupling, Timing


class Adaptive:
    """Steps a session by speculative rounds or ordinary steps, as `controller` decides before each."""

    controlled = True

    def __init__(
        self,
        session: Session,
        drafter: Drafter,
        *,
        controller: Controller,
        timing: Timing,
        coupling: Coupling = "residual",
        relaxed: Relaxed | None = None,
    ) -> None:
        self._session = session
        self._controller = controller
        self._rounds = Speculative(
            session, drafter, draft_length=controller.longest, timing=timing, coupling=coupling, relaxed=relaxed
        )
        # Stages of their own, which attributed timing is about, are the speculative loop's.
        self.pipelined = timing == "fused"
        self._steps = Ordinary(session, pipelined=self.pipelined)
        self._proposers = _list_proposers(drafter)
        self._watches: list[Watch] = []
        self._closed: _Closed | None = None
        self.drafter = drafter
        self.draft_length = controller.longest
        self.coupling = self._rounds.coupling
        self.relaxation = self._rounds.relaxation
        self.arm = f"{drafter.name} m=auto{name_rule(self.coupling, self.relaxation)}"

    def prefill(self) -> None:
        """Fill the target's cache, and let the drafter take in the prompt."""
        self._controller.begin([part.name for part, _ in self._proposers])
        standings = self._controller.parts
        self._watches = [Watch(part, its) for (part, _), its in zip(self._proposers, standings, strict=True)]
        self._rounds.prefill()

    def step(self, open_round: OpenRound) -> None:
        """Do one round."""
        session, controller = self._session, self._controller
        if self._closed is not None:  # here, so that what it takes is in T_round
            self._learn(self._closed)
        context, limit = len(session.history) - 1, session.limit_proposal(self.draft_length)
        step_ns = controller.step_ns(context)
        free = [part for part, watch in enumerate(self._watches) if watch.is_free(step_ns)]
        choice = controller.decide(context, limit, free=free)
        was_in_flight = self._steps.is_in_flight
        if was_in_flight:
            choice = self._go_on(open_round, choice, context, limit, free)
        elif choice.m == 0 and self._can_pipeline():
            self._step(open_round, launches=True)
        else:
            choice = self._speculate(open_round, choice, context, limit, free)
        open_round.decision = choice.decision
        self._closed = _Closed(open_round, context, choice.part, was_in_flight, self._steps.is_in_flight)

    def _go_on(self, open_round: OpenRound, choice: Choice, context: int, limit: int, free: Sequence[int]) -> Choice:
        """Commit the step in flight, and let the next one follow unless a proposal pays more."""
        history = self._session.history
        nothing = [part for part in free if not self._watches[part].expects(history, limit)]
        choice = self._find_offer(choice, context, limit, free, lambda choice: choice.part not in nothing)
        lands = choice.m > 0 and choice.part not in nothing
        if lands:
            choice = choice._replace(m=0, reason="landing", expected_ns=choice.step_ns)
        elif choice.part is not None:
            open_round.proposer = self._name(choice.part)
        open_round.requested = choice.m
        self._step(open_round, launches=not lands)
        return choice

    def _speculate(
        self, open_round: OpenRound, choice: Choice, context: int, limit: int, free: Sequence[int]
    ) -> Choice:
        """A round of the speculative loop, or a step where nothing was proposed and steps are better pipelined."""
        rounds, proposal = self._rounds, NOTHING
        rounds.begin()

        def ask(choice: Choice) -> bool:
            nonlocal proposal
            assert choice.part is not None
            proposal = rounds.ask(open_round, choice.m, self._proposers[choice.part][1])
            self._watches[choice.part].note_offer(len(proposal))
            return len(proposal) > 0

        choice = self._find_offer(choice, context, limit, free, ask)
        for part in free:
            if part != choice.part:
                self._watches[part].expects(self._session.history, limit)
        if (
            choice.part is not None
            and not len(proposal)
            and self._can_pipeline()
            and self._controller.is_worth_pipelining(choice.part, context)
        ):
            self._step(open_round, launches=True)
        else:
            rounds.complete(open_round, proposal)
            self._note_draft(open_round, choice.part)
            self._see(open_round, choice.part)
        return choice

    def _find_offer(
        self, choice: Choice, context: int, limit: int, free: Sequence[int], has: Callable[[Choice], bool]
    ) -> Choice:
        """`choice`, or the next best where a proposer that is free to ask has nothing; the last one asked if none has.

        Any other is asked only if it is chosen, and then the round is a step if it has nothing.
        """
        without: list[int] = []
        while choice.part is not None and not has(choice) and choice.part in free:
            without.append(choice.part)
            other = self._controller.decide(context, limit, free=free, without=without)
            if other.part is None:
                break
            choice = other
        return choice

    def _see(self, open_round: OpenRound, own: int | None) -> None:
        for part, watch in enumerate(self._watches):
            if part == own:
                watch.stop()
            else:
                watch.see(open_round.tokens)

    def _name(self, part: int) -> str | None:
        return self._proposers[part][0].name if len(self._proposers) > 1 else None

    def _note_draft(self, open_round: OpenRound, last: int | None) -> None:
        is_on_host = last is None or self._watches[last].is_on_host
        for watch in self._watches:
            watch.note_draft(open_round.stages["draft"][0] if is_on_host else None)

    def _can_pipeline(self) -> bool:
        """Whether a pipelined step may be next: the cache is not behind, and rounds need no barriers."""
        session = self._session
        return self.pipelined and session.cache.length == len(session.history) - 1

    def _step(self, open_round: OpenRound, *, launches: bool) -> None:
        open_round.mark("draft", "host")
        self._note_draft(open_round, None)
        if not self._steps.is_in_flight:
            self._steps.resume()
        self._steps.step(open_round, launches=launches)
        self._rounds.follow(open_round)
        self._see(open_round, None)

    def _learn(self, closed: _Closed) -> None:
        done, self._closed = closed.round, None
        ns, committed = done.end_ns - done.start_ns, len(done.tokens)
        if done.proposed:
            judged = done.proposed - done.cut
            assert closed.part is not None
            self._controller.observe_round(
                ns, closed.context, done.proposed, judged, done.accepted, committed, part=closed.part
            )
        elif not done.replayed:
            whole = closed.was_in_flight and closed.is_in_flight
            alone = not closed.was_in_flight and not closed.is_in_flight
            self._controller.observe_step(ns, closed.context, is_pipelined=True if whole else False if alone else None)

    def abandon(self, open_round: OpenRound) -> None:
        """Bring target and drafter back to the committed history after a failure."""
        self._steps.drop()
        self._closed = None
        self._rounds.abandon(open_round)

    def finish(self) -> None:
        """Leave the target's cache at the committed history less its last token, with nothing in flight."""
        if self._steps.is_in_flight:
            self._steps.finish()
        else:
            self._rounds.finish()


class _Closed(NamedTuple):
    """A round that is over, for the controller to learn from: with its context, the part that was to propose, and
    whether a step was in flight.
    """

    round: OpenRound
    context: int
    part: int | None
    was_in_flight: bool
    is_in_flight: bool


def _list_proposers(drafter: Drafter) -> list[tuple[Drafter, Propose]]:
    """The parts of a composition, or `drafter` alone, each with the way to ask it."""
    if isinstance(drafter, CompositeDrafter):
        return [(part, partial(drafter.propose_by, index)) for index, part in enumerate(drafter.parts)]
    return [(drafter, drafter.propose)]
