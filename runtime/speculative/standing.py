"""How a proposer stands: how far its proposals get, how often it has one, what rounds with them take, and when it is
due for a look.

A controller keeps one for every part of a composition, so that a part that pays is asked and one that loses is not.
"""

from __future__ import annotations

from typing import NamedTuple

from runtime.speculative.acceptance import Acceptance, Counts
from runtime.speculative.costs import NEW, RoundCosts, StepCosts

FIRST_PROBE, LAST_PROBE = 8, 128
"""Rounds without its proposal before the first probe, and most that there are between two; each that fails doubles
them.
"""

EARLY_LOSS = 1.0
"""Steps that rounds of its own may have lost for it to be tried again at once though it does not seem to pay; less for
one that earlier generations speak against. Two failures in a row are no proof, and outputs are short.
"""

MOST_EMPTY = 0.99
"""Most of the times it is asked in which it is taken to have nothing."""


class Outlook(NamedTuple):
    """What is expected of a round, or on average of several kinds of them: nanoseconds, and tokens committed."""

    ns: float
    tokens: float

    @property
    def per_token(self) -> float:
        """Nanoseconds for a committed token."""
        return self.ns / self.tokens

    def mix(self, other: Outlook, share: float) -> Outlook:
        """With this one in that share of the rounds, and the other in the rest."""
        rest = 1 - share
        return Outlook(share * self.ns + rest * other.ns, share * self.tokens + rest * other.tokens)


class Standing:
    """Of one proposer. longest: most tokens of a proposal.

    Costs are kept from one generation to the next; of acceptance, a prior is handed on, and more to generations with
    prompts of the same class.
    """

    def __init__(self, steps: StepCosts, longest: int) -> None:
        self.costs = RoundCosts(steps, longest=longest)
        self._longest = longest
        self.acceptance = Acceptance(longest)
        self._class: str | None = None
        self._left: dict[str, Counts] = {}
        self._start()

    def begin(self, class_: str | None = None) -> None:
        """A generation begins, with a prompt of that class, if it has one."""
        if self._class is not None:
            self._left[self._class] = self.acceptance.leave()
        left = None if class_ is None else self._left.get(class_)
        self.acceptance = Acceptance(self._longest, self.acceptance.hand_on(), left)
        self._class = class_
        self._start()

    def _start(self) -> None:
        self._empty = self._lost = 0.0
        self._doubt = self.acceptance.find_doubt()
        self._interval, self._idle = FIRST_PROBE, 0
        self._is_repeated = False

    @property
    def empty(self) -> float:
        """Part of the times it was asked in which it had nothing."""
        return min(self._empty, MOST_EMPTY)

    def may_lose(self, ns: float, step: float) -> bool:
        """Whether its rounds have lost so little yet that one more may take `ns` longer than a step, of `step` ns."""
        return self._lost + ns <= EARLY_LOSS * (1 - self._doubt) * step

    def is_due(self, *, is_free: bool) -> bool:
        """Whether it should be probed, if it does not pay. is_free: it is watched, which tells as much."""
        return self._is_repeated or (not is_free and self._idle >= self._interval)

    def expect(self, m: int, context: int) -> Outlook:
        """A round with `m` proposed tokens of its own."""
        survivals = self.acceptance.survivals()
        return Outlook(self.costs.round(m, context), 1 + sum(next(survivals) for _ in range(m)))

    def find_best(self, context: int, limit: int, otherwise: Outlook) -> tuple[int, Outlook]:
        """The best m from 1 to `limit`, and a round with so many proposed tokens.

        Best over rounds with and without an offer: where most are `otherwise`, a token that is not proposed costs as
        much as one of these.
        """
        share = self.empty
        ns, n = share * otherwise.ns, share * otherwise.tokens
        best, least, found, tokens = 0, float("inf"), otherwise, 1.0
        for m, survival in zip(range(1, limit + 1), self.acceptance.survivals(), strict=False):
            tokens += survival
            time = self.costs.round(m, context)
            per_token = (ns + (1 - share) * time) / (n + (1 - share) * tokens)
            if per_token < least:
                best, least, found = m, per_token, Outlook(time, tokens)
        return best, found

    def observe_offer(self, offered: int) -> None:
        """It was asked, and offered so many tokens."""
        self._empty += ((offered == 0) - self._empty) * NEW

    def observe_round(self, judged: int, accepted: int, loss: float, *, is_probe: bool) -> None:
        """A round with a proposal of its own is over. loss: nanoseconds more than steps for as many tokens.

        is_probe: it was one that was due.
        """
        self._lost = max(0.0, self._lost + loss)
        self._idle = 0
        self.acceptance.observe(judged, accepted)
        self._is_repeated = is_probe and accepted > 0
        if is_probe:
            self._interval = FIRST_PROBE if accepted else min(2 * self._interval, LAST_PROBE)

    def observe_other(self) -> None:
        """A round without a proposal of its own is over."""
        self._idle += 1
