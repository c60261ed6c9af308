"""Which draft length the next round gets: the one that is expected to cost least per committed token, 0 among them.

For every m the expected tokens of a round, 1 + Pr(A >= 1) + ... + Pr(A >= m), stand against what such a round is
expected to take; m = 0 is an ordinary step, in its pipelined form. While nothing pays, acceptance is only learnt from
probes, which get rarer the more of them fail, and which are left out while what speculation has lost is above a
small share of the time (as in conservative bandits: Wu, Shariff, Lattimore and Szepesvari, arXiv:1602.04282). Choosing
draft lengths by such estimates has been done with bandits and with learnt predictors (BanditSpec, arXiv:2505.15141;
SpecDec++, arXiv:2405.19715).

Everything it looks at is over: judged tokens, what was committed, and times. Nothing of what a round proposed and
never judged is among it, so at a temperature the choice of m leaves the distribution of the output as it is.
"""

from __future__ import annotations

from runtime.rounds import Decision
from runtime.speculative.acceptance import Acceptance
from runtime.speculative.costs import NEW, Costs, Curve

LONGEST = 16
"""Longest proposal that is considered unless the caller says otherwise."""

MARGIN = 0.01
"""Part of an ordinary step that a round must be expected to gain per token."""

SHARE = 0.01
"""Part of the time that speculation may have lost, against ordinary steps, for a probe to be made."""

FIRST_PROBE, LAST_PROBE = 8, 128
"""Steps before the first probe, and most that there are between two; each that fails doubles them."""

MOST_EMPTY = 0.99
"""Most of the rounds that are taken to be without an offer."""

CHECK_EVERY = 128
"""Rounds after which a step is made, to see what it costs, if none was."""


class Controller:
    """Chooses m for the rounds of one generation after the other.

    curve: what forwards cost, as measured; None: a cautious guess. longest: most tokens of a proposal. What it learns
    of costs it keeps; what it learns of acceptance is forgotten with `begin`.
    """

    def __init__(self, curve: Curve | None = None, *, longest: int = LONGEST) -> None:
        if longest < 1:
            raise ValueError(f"longest is {longest}; it must be 1 or more")
        self.longest = longest
        self.costs = Costs(curve, longest=longest)
        self.begin()

    def begin(self) -> None:
        """A generation begins."""
        self.acceptance = Acceptance(self.longest)
        self._empty = 0.0
        self._elapsed = self._lost = 0.0
        self._interval = FIRST_PROBE
        self._since_round = self._since_step = 0
        self._is_probe = self._is_repeated = False

    def decide(self, context: int, limit: int, *, is_free: bool = False) -> Decision:
        """Choose for a round after `context` positions that may ask for `limit` tokens.

        is_free: proposing costs next to nothing, and is watched while there are steps.
        """
        self._is_probe = False
        if not self.costs.is_known:
            return Decision(0, "prior", None, None)
        step = self.costs.step(context)
        limit = min(limit, self.longest)
        if limit < 1:
            return Decision(0, "last", round(step), round(step))
        if not self.costs.knows_rounds and not is_free:
            limit = 1  # nothing is known yet of what drafting costs
        m, expected = self._find_best(context, limit)
        if expected * (1 + MARGIN) < step:
            if self._since_step >= CHECK_EVERY:
                return Decision(0, "probe", round(step), round(step))
            return Decision(m, "best" if self.acceptance.n_rounds else "prior", round(expected), round(step))
        if (not is_free and self._since_round >= self._interval) or self._is_repeated:
            probe = self.costs.round(1, context)
            if self._lost + probe - step > SHARE * self._elapsed:
                return Decision(0, "budget", round(step), round(step))
            self._is_probe = True
            return Decision(1, "probe", round(probe / (1 + next(self.acceptance.survivals()))), round(step))
        return Decision(0, "best", round(step), round(step))

    def step_ns(self, context: int) -> float | None:
        """What an ordinary step is expected to take; None: nothing is known."""
        return self.costs.step(context) if self.costs.is_known else None

    def _find_best(self, context: int, limit: int) -> tuple[int, float]:
        """The best m above 0, and what a round with that many proposed tokens is expected to take per token.

        Best over rounds with and without an offer: where most are steps, a token that is not proposed costs a step.
        """
        share = min(self._empty, MOST_EMPTY)
        steps = share * self.costs.single(context)
        best, least, expected, tokens = 0, float("inf"), 0.0, 1.0
        for m, survival in zip(range(1, limit + 1), self.acceptance.survivals(), strict=False):
            tokens += survival
            time = self.costs.round(m, context)
            per_token = (steps + (1 - share) * time) / (share + (1 - share) * tokens)
            if per_token < least:
                best, least, expected = m, per_token, time / tokens
        return best, expected

    def is_worth_pipelining(self, context: int) -> bool:
        """Whether steps should be pipelined where the drafter has nothing, though proposals pay.

        A run of such steps saves what pipelining saves; its last one is in flight when there is something to propose
        again, and that proposal is lost.
        """
        share = min(self._empty, MOST_EMPTY)
        saved = (self.costs.single(context) - self.costs.step(context)) * share / (1 - share)
        m, expected = self._find_best(context, self.longest)
        tokens = self.costs.round(m, context) / expected
        return saved > tokens * (self.costs.step(context) - expected)

    def observe_step(self, ns: int, context: int, *, is_pipelined: bool | None) -> None:
        """A round without a proposal is over. is_pipelined: it was, wholly; None: partly, so its time tells nothing."""
        if is_pipelined is not None:
            self.costs.observe_step(ns, context, is_pipelined=is_pipelined)
        self._elapsed += ns
        self._since_round += 1
        self._since_step = 0

    def observe_round(
        self, ns: int, context: int, proposed: int, judged: int, accepted: int, committed: int, *, is_late: bool = False
    ) -> None:
        """A round with a proposal is over. is_late: the drafter had more than a round to catch up with."""
        if not is_late or not self.costs.knows_rounds:
            self.costs.observe_round(ns, proposed, context)
        self._elapsed += ns
        if self.costs.is_known:
            self._lost = max(0.0, self._lost + ns - committed * self.costs.step(context))
        self._since_round = 0
        self._since_step += 1
        self.acceptance.observe(judged, accepted)
        self._is_repeated = self._is_probe and accepted > 0
        if self._is_probe:
            self._interval = FIRST_PROBE if accepted else min(2 * self._interval, LAST_PROBE)

    def observe_offer(self, offered: int) -> None:
        """The drafter was asked, and offered so many tokens."""
        self._empty += ((offered == 0) - self._empty) * NEW

    def observe_watched(self, offered: int, right: int) -> None:
        """Of tokens that were offered and not verified, so many leading ones turned out to be right."""
        self.acceptance.observe(offered, right)
