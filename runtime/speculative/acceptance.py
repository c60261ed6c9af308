"""How far proposals get, estimated while they are judged: acceptance by position, and when it has changed.

The chance of position j is that of acceptance given that j - 1 were accepted: a round tells of the positions it reached
and of no others, so what was cut or never proposed biases nothing (the product-limit estimate of Kaplan and Meier,
1958). Positions beyond the first are taken to be alike as far as they did not show otherwise.

What was learnt is given up slowly with every round, and at once where two-sided cumulative sums of log-likelihood
ratios (Page, "Continuous inspection schemes", Biometrika 1954) show that acceptance has fallen or risen: what is kept
then is what was seen since the change, which is since the sum last was zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log

PRIOR = 0.7
"""Chance taken for a position of which nothing is known: high enough to try, and one failure halves it."""

PRIOR_WEIGHT = 1.0
"""Judged positions that the prior counts as for the first one, and the first one for all later ones together."""

HANDED_ON = 0.4
"""How far the prior moves towards what a generation learnt, for the next one of the same drafter: prompts differ, so it
takes several that agree.
"""

FORGOTTEN = 0.1
"""How far it then moves back to PRIOR, so that a drafter that was given up is tried again."""

LIKENESS = 6.0
"""Judged positions that all later ones together count as for each of them."""

KEPT = 0.98
"""Part of what was learnt that a further round leaves."""

ALARM = 6.9
"""Log-likelihood ratio (1000 : 1) at which a change is taken for real."""

_NEVER, _ALWAYS = 0.02, 0.98
"""Chances are kept from the ends in the sums, where a single outcome would prove anything."""


class Acceptance:
    """Estimates for positions 1 to `longest` of a proposal. Counts are of judged positions, discounted.

    prior: chance taken for a position of which nothing is known.
    """

    def __init__(self, longest: int, prior: float = PRIOR) -> None:
        self._prior = prior
        self._reached = [0.0] * longest
        self._accepted = [0.0] * longest
        self.n_rounds = 0
        self._watches = (_Watch(longest), _Watch(longest))

    def observe(self, judged: int, accepted: int) -> None:
        """A round judged `judged` proposed tokens (those that were cut are not among them) and accepted `accepted`."""
        if judged <= 0:
            return
        self.n_rounds += 1
        believed = list(self._chances())
        reached = min(judged, accepted + 1, len(self._reached))
        for watch, is_rise in zip(self._watches, (False, True), strict=True):
            for j in range(reached):
                watch.see(j, j < accepted, believed[j], is_rise)
        for counts in (self._reached, self._accepted):
            for j in range(len(counts)):
                counts[j] *= KEPT
        for j in range(reached):
            self._reached[j] += 1
            self._accepted[j] += j < accepted
        if raised := next((watch for watch in self._watches if watch.total > ALARM), None):
            self._reached, self._accepted = raised.reached[:], raised.accepted[:]
            self._watches = (_Watch(len(self._reached)), _Watch(len(self._reached)))

    def survivals(self) -> Iterator[float]:
        """Pr(A >= j) for j = 1, 2, ... up to the longest proposal."""
        survival = 1.0
        for chance in self._chances():
            survival *= chance
            yield survival

    def hand_on(self) -> float:
        """The prior for the generation after this one."""
        prior = self._prior + (next(self._chances()) - self._prior) * HANDED_ON
        return prior + (PRIOR - prior) * FORGOTTEN

    def _chances(self) -> Iterator[float]:
        first = (self._accepted[0] + PRIOR_WEIGHT * self._prior) / (self._reached[0] + PRIOR_WEIGHT)
        later = (sum(self._accepted[1:]) + PRIOR_WEIGHT * first) / (sum(self._reached[1:]) + PRIOR_WEIGHT)
        yield first
        for reached, accepted in zip(self._reached[1:], self._accepted[1:], strict=True):
            yield (accepted + LIKENESS * later) / (reached + LIKENESS)


class _Watch:
    """One side of the test: the sum, and what was seen since it last was zero."""

    def __init__(self, longest: int) -> None:
        self.total = 0.0
        self.reached = [0.0] * longest
        self.accepted = [0.0] * longest

    def see(self, position: int, stands: bool, believed: float, is_rise: bool) -> None:
        """Hold an outcome, believed to be a success with that chance, against one half-way to never or always."""
        believed = min(max(believed, _NEVER), _ALWAYS)
        other = (1 + believed) / 2 if is_rise else believed / 2
        self.total += log(other / believed) if stands else log((1 - other) / (1 - believed))
        self.reached[position] += 1
        self.accepted[position] += stands
        if self.total <= 0:
            self.total = 0.0
            self.reached = [0.0] * len(self.reached)
            self.accepted = [0.0] * len(self.accepted)
