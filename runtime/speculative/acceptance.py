"""How far proposals get, estimated while they are judged: acceptance by position, and when it has changed.

The chance of position j is that of acceptance given that j - 1 were accepted: a round tells of the positions it reached
and of no others, so what was cut or never proposed biases nothing (the product-limit estimate of Kaplan and Meier,
1958). Positions beyond the first are taken to be alike as far as they did not show otherwise; as nobody knows how good
they are, one that was reached makes the next likelier (the urn of Eggenberger and Pólya, ZAMM 1923), so a drafter that
may be copying gets long proposals early.

Of the first position two things are held possible before anything was seen: that the drafter is of no use here, whose
share is the doubt, or that it is, with a chance of about the prior (a spike and a slab: Mitchell and Beauchamp,
"Bayesian variable selection in linear regression", JASA 1988). So a few failures in a row are soon the end of a drafter
that was never right, and one of another hardly changes anything.

What was learnt is given up slowly with every round, and at once where two-sided cumulative sums of log-likelihood
ratios (Page, "Continuous inspection schemes", Biometrika 1954) show that acceptance has fallen or risen: what is kept
then is what was seen since the change, which is since the sum last was zero, and less of positions not reached since.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, lgamma, log
from typing import NamedTuple

PRIOR, DOUBT = 0.8, 0.2
"""Chance of the first position before anything is known, if the drafter is of use, and the chance that it is not."""

LATER = 0.65
"""Chance taken for the second position if it is reached: half-way between this and the first one's."""

PRIOR_WEIGHT = 4.0
"""Judged positions that these count as for the first one, and for all later ones together."""

USELESS = 0.02
"""Chance of a drafter that is of no use."""

HANDED_ON, HANDED_DOUBT = 0.4, 0.7
"""How far chance and doubt move towards what a generation learnt, for the next one of the same drafter: prompts differ,
so it takes several that agree.
"""

FORGOTTEN = 0.1
"""How far they then move back to PRIOR and DOUBT, so that a drafter that was given up is tried again; and the part of
what is known of a class that a generation takes away in which nothing was judged.
"""

LEFT, MOST_LEFT = 0.5, 16.0
"""Part of its counts that a generation leaves the next one with a prompt of its class, and the most judged first
positions among them.
"""

LIKENESS = 4.0
"""Judged positions that all later ones together count as for each of them."""

KEPT = 0.98
"""Part of what was learnt that a further round leaves."""

ALARM = 6.0
"""Log-likelihood ratio (400 : 1) at which a change is taken for real."""

UNREACHED = 0.5
"""Part of what was learnt of a position that a change leaves if it was not reached since: where every second proposal
fails at once and the others are copied whole, failures in a row say nothing of how far the next one gets.
"""

_MOST = 500.0
"""Logarithm of odds beyond which they make no difference, and exp no number."""

_NEVER, _ALWAYS = 0.02, 0.98
"""Chances are kept from the ends in the sums, where a single outcome would prove anything."""


class Prior(NamedTuple):
    """What is taken for the first position before anything was judged: its chance, and how likely it has none."""

    chance: float = PRIOR
    doubt: float = DOUBT


class Counts(NamedTuple):
    """By position: how often it was judged, and how often it was accepted; both discounted."""

    reached: list[float]
    accepted: list[float]


class Acceptance:
    """Estimates for positions 1 to `longest` of a proposal. Counts are of judged positions, discounted.

    prior: what was taken for the first position before anything was judged. left: what a generation with a prompt of
    the same class left; it counts as if it had been judged here.
    """

    def __init__(
        self,
        longest: int,
        prior: Prior = Prior(),  # noqa: B008 - it cannot be changed
        left: Counts | None = None,
    ) -> None:
        self.prior = prior
        self._reached = [0.0] * longest if left is None else left.reached[:]
        self._accepted = [0.0] * longest if left is None else left.accepted[:]
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
            self._go_by(raised)
            self._watches = (_Watch(len(self._reached)), _Watch(len(self._reached)))

    def _go_by(self, watch: _Watch) -> None:
        """Of the positions that were reached since a change, what was seen of them since."""
        for j, reached in enumerate(watch.reached):
            if reached:
                self._reached[j], self._accepted[j] = reached, watch.accepted[j]
            else:
                self._reached[j] *= UNREACHED
                self._accepted[j] *= UNREACHED

    def survivals(self) -> Iterator[float]:
        """Pr(A >= j) for j = 1, 2, ... up to the longest proposal."""
        survival = 1.0
        for chance in self._chances():
            survival *= chance
            yield survival

    def hand_on(self) -> Prior:
        """The prior for the generation after this one."""
        chance, doubt = self.prior
        if self.n_rounds:
            chance += (self._guess_first() - chance) * HANDED_ON
            doubt += (self.find_doubt() - doubt) * HANDED_DOUBT
        return Prior(chance + (PRIOR - chance) * FORGOTTEN, doubt + (DOUBT - doubt) * FORGOTTEN)

    def leave(self) -> Counts:
        """What a later generation with a prompt of the same class begins with."""
        share = min(LEFT if self.n_rounds else 1 - FORGOTTEN, MOST_LEFT / max(self._reached[0], MOST_LEFT))
        return Counts([share * n for n in self._reached], [share * n for n in self._accepted])

    def _chances(self) -> Iterator[float]:
        doubt, first = self.find_doubt(), self._guess_first()
        yield doubt * USELESS + (1 - doubt) * first
        stood = sum(self._accepted[1:]) + PRIOR_WEIGHT * (first + LATER) / 2
        judged = sum(self._reached[1:]) + PRIOR_WEIGHT
        for i, (reached, accepted) in enumerate(zip(self._reached[1:], self._accepted[1:], strict=True)):
            later = (stood + i) / (judged + i)
            yield (accepted + LIKENESS * later) / (reached + LIKENESS)

    def _guess_first(self) -> float:
        """Chance of the first position if the drafter is of use: the mean of a beta distribution."""
        return (self._accepted[0] + PRIOR_WEIGHT * self.prior.chance) / (self._reached[0] + PRIOR_WEIGHT)

    def find_doubt(self) -> float:
        """How likely it is by now that the drafter is of no use, by Bayes' rule."""
        stood, doubt = self._accepted[0], self.prior.doubt
        fell = self._reached[0] - stood
        good = PRIOR_WEIGHT * self.prior.chance
        bad = PRIOR_WEIGHT - good
        useful = _log_beta(good + stood, bad + fell) - _log_beta(good, bad)
        useless = stood * log(USELESS) + fell * log(1 - USELESS)
        odds = log((1 - doubt) / doubt) + useful - useless
        return 1 / (1 + exp(min(odds, _MOST)))


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


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
