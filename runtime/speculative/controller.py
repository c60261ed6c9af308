"""What the next round gets: whose proposal, and of what length, so that a committed token is expected to cost least;
or none, an ordinary step.

For every proposer and every m the expected tokens of a round, 1 + Pr(A >= 1) + ... + Pr(A >= m), stand against what
such a round is expected to take; m = 0 is an ordinary step, in its pipelined form. While a proposer does not pay, its
acceptance is only learnt from probes. The first follow at once, as long as its rounds have lost less than a step or so;
later ones get rarer the more of them fail, and are left out while what speculation has lost is above a small share of
the time (as in conservative bandits: Wu, Shariff, Lattimore and Szepesvari, arXiv:1602.04282). Choosing draft lengths
by such estimates has been done with bandits and with learnt predictors (BanditSpec, arXiv:2505.15141; SpecDec++,
arXiv:2405.19715).

Everything it looks at is over: judged tokens, what was committed, times, and whether a drafter that only looks at what
was committed has anything to say. Nothing of what a round proposed and never judged is among it, so at a temperature
the choice leaves the distribution of the output as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from runtime.rounds import Decision
from runtime.speculative.costs import Curve, StepCosts
from runtime.speculative.standing import Outlook, Standing
from telemetry.fields import Reason

LONGEST = 16
"""Longest proposal that is considered unless the caller says otherwise."""

MARGIN = 0.005
"""Part of an ordinary step that a round must be expected to gain per token."""

LEAN = 1.05
"""How much more one that is free to ask may be expected to take per token, and be preferred to another that is better
on average: that it has something tells of this place, an average of all.
"""

SHARE = 0.01
"""Part of the time that speculation may have lost, against ordinary steps, for a probe to be made; and that probes may
have lost against whatever else paid.
"""

CHECK_EVERY = 128
"""Rounds after which a step is made, to see what it costs, if none was seen: those of earlier generations count."""


class Choice(NamedTuple):
    """For one round. part: of the proposers, whose proposal of m tokens it is; None: nobody's, m is 0.

    expected_ns, step_ns: as in Decision.
    """

    m: int
    reason: Reason
    expected_ns: int | None
    step_ns: int | None
    part: int | None = None

    @property
    def decision(self) -> Decision:
        """As rounds say it."""
        return Decision(self.m, self.reason, self.expected_ns, self.step_ns)


class Controller:
    """Chooses proposer and m for the rounds of one generation after the other.

    curve: what forwards cost, as measured; None: a cautious guess. longest: most tokens of a proposal. What it learns
    of costs it keeps; of a proposer's acceptance, each generation leaves the next a prior, and the next one with a
    prompt of its class more (`for_class`).
    """

    def __init__(self, curve: Curve | None = None, *, longest: int = LONGEST) -> None:
        if longest < 1:
            raise ValueError(f"longest is {longest}; it must be 1 or more")
        self.longest = longest
        self.costs = StepCosts(curve)
        self._known: dict[tuple[int, str], Standing] = {}
        self._class: str | None = None
        self.begin()

    def for_class(self, class_: str | None) -> Controller:
        """This controller, for a generation whose prompt is of that class: a task in which proposals get about as far.

        They learn together, so one generation at a time. None: of no class that is known.
        """
        other = copy.copy(self)
        other._class = class_
        return other

    def begin(self, names: Sequence[str] = ("",)) -> None:
        """A generation begins, with proposers of these names."""
        self.parts = [self._find_standing(*key) for key in enumerate(names)]
        self._elapsed = self._lost = self._probing = 0.0
        self._probed: float | None = None
        self._is_scheduled = False

    def _find_standing(self, place: int, name: str) -> Standing:
        found = self._known.get((place, name))
        if found is None:
            found = self._known[place, name] = Standing(self.costs, self.longest)
        found.begin(self._class)
        return found

    def decide(self, context: int, limit: int, *, free: Collection[int] = (), without: Collection[int] = ()) -> Choice:
        """Choose for a round after `context` positions that may ask for `limit` tokens.

        free: the proposers whose proposals cost next to nothing, and are watched while there are steps. without: those
        that are known to have nothing now.
        """
        self._probed, self._is_scheduled = None, False
        if not self.costs.is_known:
            return Choice(0, "prior", None, None)
        step = self.costs.step(context)
        limit = min(limit, self.longest)
        if limit < 1:
            return Choice(0, "last", round(step), round(step))
        best: Choice = Choice(0, "best", round(step), round(step))
        least = step
        for part, m, outlook in self._rank(context, limit, free, without):
            reason: Reason = "best" if self.parts[part].acceptance.n_rounds else "prior"
            least = outlook.per_token
            best = Choice(m, reason, round(least), round(step), part)
        if best.m and self.costs.rounds_since_step >= CHECK_EVERY:
            return Choice(0, "probe", round(step), round(step))
        for part, standing in enumerate(self.parts):
            may_be_early = best.m == 0 and part not in free
            is_due = standing.is_due(is_free=part in free)
            if part in without or part == best.part or not (may_be_early or is_due):
                continue
            probe = standing.expect(1, context)
            is_early = may_be_early and standing.may_lose(probe.ns - step, step)
            if not is_early and not is_due:
                continue
            lost, spent = self._lost + probe.ns - step, self._probing + probe.ns - least
            if not is_early and max(lost, spent) > SHARE * self._elapsed:
                best = best if best.m else best._replace(reason="budget")
                continue
            self._probed, self._is_scheduled = least, not is_early
            return Choice(1, "probe", round(probe.per_token), round(step), part)
        return best

    def step_ns(self, context: int) -> float | None:
        """What an ordinary step is expected to take; None: nothing is known."""
        return self.costs.step(context) if self.costs.is_known else None

    def _rank(
        self, context: int, limit: int, free: Collection[int], without: Collection[int]
    ) -> Iterator[tuple[int, int, Outlook]]:
        """Proposers that pay, each about as much as what would be done where it has nothing or more, with the best m
        and its round.

        Whoever seldom has nothing comes first: that is what is done where the others have nothing.
        """
        most = bound = self.costs.step(context) / (1 + MARGIN)
        otherwise = Outlook(self.costs.single(context), 1.0)
        for part in sorted(range(len(self.parts)), key=lambda part: (self.parts[part].empty, part not in free)):
            standing = self.parts[part]
            if part in without:
                continue
            is_unknown = part not in free and not standing.costs.is_known  # nor is what drafting costs
            m, outlook = standing.find_best(context, 1 if is_unknown else limit, otherwise)
            if outlook.per_token < (min(LEAN * bound, most) if part in free else bound):
                yield part, m, outlook
                otherwise = otherwise.mix(outlook, standing.empty)
                bound = min(bound, otherwise.per_token)

    def is_worth_pipelining(self, part: int, context: int) -> bool:
        """Whether steps should be pipelined where that proposer has nothing, though its proposals pay.

        A run of such steps saves what pipelining saves; its last one is in flight when there is something to propose
        again, and that proposal is lost.
        """
        step, single, standing = self.costs.step(context), self.costs.single(context), self.parts[part]
        _, outlook = standing.find_best(context, self.longest, Outlook(single, 1.0))
        share = standing.empty
        return (single - step) * share / (1 - share) > outlook.tokens * (step - outlook.per_token)

    def observe_step(self, ns: int, context: int, *, is_pipelined: bool | None) -> None:
        """A round without a proposal is over. is_pipelined: it was, wholly; None: partly, so its time tells nothing."""
        if is_pipelined is not None:
            self.costs.observe(ns, context, is_pipelined=is_pipelined)
        self._elapsed += ns
        for standing in self.parts:
            standing.observe_other()

    def observe_round(
        self, ns: int, context: int, proposed: int, judged: int, accepted: int, committed: int, *, part: int = 0
    ) -> None:
        """A round with that part's proposal is over, the last that was decided on."""
        self.parts[part].costs.observe(ns, proposed, context)
        self._elapsed += ns
        loss = ns - committed * self.costs.step(context) if self.costs.is_known else 0.0
        self._lost = max(0.0, self._lost + loss)
        if self._probed is not None:
            self._probing = max(0.0, self._probing + ns - committed * self._probed)
        for index, standing in enumerate(self.parts):
            if index == part:
                standing.observe_round(judged, accepted, loss, is_probe=self._is_scheduled)
            else:
                standing.observe_other()
