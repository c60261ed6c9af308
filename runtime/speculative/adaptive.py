"""Rounds whose draft length a controller chooses; at m = 0 they are the pipelined steps of ordinary decoding.

A step in flight is never thrown away: before a round with a proposal it lands, which is a round of its own that commits
its token and launches nothing. So the cache's contract is that of either way between any two rounds: it holds the
history less its last token, and one position more while a step is in flight.

A drafter on the host (`on_host`) is asked while steps are made, and its answer is held against what they commit: that
tells of acceptance what a probe would, at no cost. Any other is not asked at m = 0.
"""

from __future__ import annotations

from runtime.ordinary import Ordinary
from runtime.protocols import Drafter
from runtime.rounds import OpenRound
from runtime.session import Session
from runtime.speculative.controller import Controller
from runtime.speculative.relaxed import Relaxed
from runtime.speculative.stepper import Speculative
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
        self._watch = Watch(drafter, controller)
        self._closed: _Closed | None = None
        self.drafter = drafter
        self.draft_length = controller.longest
        self.coupling = self._rounds.coupling
        self.relaxation = self._rounds.relaxation
        self.arm = f"{drafter.name} m=auto{name_rule(self.coupling, self.relaxation)}"

    def prefill(self) -> None:
        """Fill the target's cache, and let the drafter take in the prompt."""
        self._controller.begin()
        self._rounds.prefill()

    def step(self, open_round: OpenRound) -> None:
        """Do one round."""
        session, controller = self._session, self._controller
        if self._closed is not None:  # here, so that what it takes is in T_round
            self._learn(self._closed)
        context, limit = len(session.history) - 1, session.limit_proposal(self.draft_length)
        is_free = self._watch.is_free(controller.step_ns(context))
        decision = controller.decide(context, limit, is_free=is_free)
        was_in_flight = self._steps.is_in_flight
        if was_in_flight or (decision.m == 0 and self._can_pipeline()):
            has_offer = is_free and was_in_flight and self._watch.expects(session.history, limit)
            lands = decision.m > 0 and (has_offer or not is_free)
            if lands:
                decision = decision._replace(m=0, reason="landing", expected_ns=decision.step_ns)
            open_round.requested = decision.m
            self._step(open_round, launches=not lands)
        else:
            rounds, m = self._rounds, decision.m
            proposal = rounds.ask(open_round, m) if m else rounds.ask_nothing(open_round)
            if decision.m and self._watch.is_on_host:
                self._watch.note(open_round.stages["draft"][0], open_round.proposed)
            pipes = not open_round.proposed and self._can_pipeline() and controller.is_worth_pipelining(context)
            if decision.m and pipes:
                self._step(open_round, launches=True)
            else:
                self._rounds.complete(open_round, proposal)
                self._watch.stop()
        open_round.decision = decision
        self._closed = _Closed(open_round, context, was_in_flight, self._steps.is_in_flight)

    def _can_pipeline(self) -> bool:
        """Whether a pipelined step may be next: the cache is not behind, and rounds need no barriers."""
        session = self._session
        return self.pipelined and session.cache.length == len(session.history) - 1

    def _step(self, open_round: OpenRound, *, launches: bool) -> None:
        if "draft" not in open_round.stages:
            open_round.mark("draft", "host")
            self._watch.note(open_round.stages["draft"][0])
        if not self._steps.is_in_flight:
            self._steps.resume()
        self._steps.step(open_round, launches=launches)
        self._rounds.follow(open_round)
        self._watch.see(open_round.tokens)

    def _learn(self, closed: _Closed) -> None:
        done, self._closed = closed.round, None
        ns, committed = done.end_ns - done.start_ns, len(done.tokens)
        if done.proposed:
            judged = done.proposed - done.cut
            self._controller.observe_round(ns, closed.context, done.proposed, judged, done.accepted, committed)
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


class _Closed:
    """A round that is over, for the controller to learn from: with its context and whether a step was in flight."""

    __slots__ = ("context", "is_in_flight", "round", "was_in_flight")

    def __init__(self, done: OpenRound, context: int, was_in_flight: bool, is_in_flight: bool) -> None:
        self.round = done
        self.context = context
        self.was_in_flight = was_in_flight
        self.is_in_flight = is_in_flight
