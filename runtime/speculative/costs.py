"""What a step and a round of every width cost, estimated while they run, in nanoseconds.

The shape, by width and context, is a curve: one that was measured (`runtime.experiment.calibration`) or a cautious
straight line. What was seen of steps and of rounds scales it, so that a context that grows is followed both by the
curve and by what it turns out to cost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from telemetry.records import VerifyCostRecord

CAUTIOUS = 0.1
"""What a further position is taken to cost, in steps, where nothing was measured."""

LEAST = 0.005
"""Least that a further position is taken to cost, in steps: a measured curve may dip."""

BUBBLE, MOST_BUBBLE = 1.02, 1.5
"""What a step that is not pipelined costs, in steps that are: until both were seen, and the most that is believed."""

NEW = 1 / 8
"""Weight of an observation among those before it, from the eighth on."""

OUTLIER = 3.0
"""An observation counts as no more than so many times what was believed, and as no less than that part of it."""

PRIOR_WEIGHT = 4.0
"""Rounds that the curve's shape counts as, against rounds of exactly that length."""


class Curve:
    """Nanoseconds of a forward by width and context, straight lines between what was measured and flat beyond it.

    points: (context, width) to nanoseconds.
    """

    def __init__(self, points: Mapping[tuple[int, int], float]) -> None:
        self._contexts = sorted({context for context, _ in points})
        self._rows = [
            sorted((w, float(ns)) for (c, w), ns in points.items() if c == context) for context in self._contexts
        ]
        if not points or any(width < 1 for _, width in points) or any(row[0][0] != 1 for row in self._rows):
            raise ValueError("a curve needs the cost of width 1 at every context")
        self._lines: dict[int, list[tuple[int, float]]] = {}

    @classmethod
    def of(cls, records: Iterable[VerifyCostRecord]) -> Curve:
        """The curve that was measured."""
        return cls({(each.context, each.width): each.verify_ns for each in records})

    def at(self, width: int, context: int) -> float:
        """Nanoseconds of a forward over `width` positions with `context` positions before it."""
        line = self._lines.get(width)
        if line is None:
            line = [(c, _interpolate(row, width)) for c, row in zip(self._contexts, self._rows, strict=True)]
            self._lines[width] = line
        return _interpolate(line, context)


def _interpolate(line: Sequence[tuple[int, float]], at: int) -> float:
    index = bisect_left([x for x, _ in line], at)
    if index == 0:
        return line[0][1]
    if index == len(line):
        return line[-1][1] if len(line) == 1 or line[-1][0] == 1 else _extend(line, at)
    (left, low), (right, high) = line[index - 1 : index + 1]
    return low + (high - low) * (at - left) / (right - left)


def _extend(line: Sequence[tuple[int, float]], at: int) -> float:
    (left, low), (right, high) = line[-2:]
    return high + max(high - low, 0.0) * (at - right) / (right - left)


class Level:
    """A running mean of a positive number: of all at first, then giving up the old; outliers count as less."""

    def __init__(self, value: float | None = None, *, n: int = 0) -> None:
        self.value = value
        self.n = n

    def observe(self, value: float) -> None:
        """Take one in."""
        self.n += 1
        if self.value is None:
            self.value = value
            return
        if self.n > 2:
            value = min(max(value, self.value / OUTLIER), self.value * OUTLIER)
        self.value += (value - self.value) * max(1 / self.n, NEW)


class StepCosts:
    """Steps of one target on one machine. Lives as long as these do, over generations too.

    A machine's speed changes, and with it whatever it does: so there is one level for steps of either kind, and apart
    from it how much more one takes that is not pipelined. curve: as measured, or None. rounds_since_step: rounds
    with a proposal since a step was measured.
    """

    def __init__(self, curve: Curve | None = None) -> None:
        self._curve = curve
        self._level = Level(None if curve is None else 1.0)
        self._bubble = Level(BUBBLE, n=1)
        self._has_seen_pipelined = False
        self.rounds_since_step = 0
        self._context, self._unit_there = -1, 1.0  # a decision asks for that of one context many times

    @property
    def is_known(self) -> bool:
        """Whether anything is known of a step's cost."""
        return self._level.value is not None

    def step(self, context: int) -> float:
        """An ordinary, pipelined step."""
        assert self._level.value is not None
        return self._level.value * self._unit(context)

    def single(self, context: int) -> float:
        """A step that is not pipelined."""
        assert self._bubble.value is not None
        return self.step(context) * self._bubble.value

    def observe(self, ns: int, context: int, *, is_pipelined: bool) -> None:
        """A step took so long; is_pipelined: the next one was in flight, and it had been itself."""
        seen = ns / self._unit(context)
        self.rounds_since_step = 0
        if is_pipelined:
            if not self._has_seen_pipelined and self._level.n and self._level.value is not None:
                # Until now the level was a guess from steps that are not pipelined: they tell the bubble instead.
                self._bubble = Level(_limit_bubble(self._level.value * BUBBLE / seen), n=1)
                self._level = Level(n=self._level.n - 1)
            self._has_seen_pipelined = True
            self._level.observe(seen)
            return
        if self._has_seen_pipelined and self._level.value is not None:
            self._bubble.observe(_limit_bubble(seen / self._level.value))
        self._observe_single(seen)

    def observe_bound(self, ns: float, context: int) -> None:
        """A round less the least its proposal costs took so long: if a step takes more, steps take less by now."""
        if ns < self.single(context):
            self._observe_single(ns / self._unit(context))

    def _observe_single(self, seen: float) -> None:
        assert self._bubble.value is not None
        self._level.observe(seen / self._bubble.value)

    def guess_excess(self, proposed: int, context: int) -> float:
        """What a round with that many proposed tokens costs beyond a step before anything was seen of it."""
        slope = CAUTIOUS * proposed
        if self._curve is not None:
            slope = self._curve.at(proposed + 1, context) / self._unit(context) - 1
        return max(slope, LEAST * proposed) * self.step(context)

    def _unit(self, context: int) -> float:
        if self._curve is not None and context != self._context:
            self._context, self._unit_there = context, self._curve.at(1, context)
        return self._unit_there


def _limit_bubble(ratio: float) -> float:
    return min(max(ratio, 1.0), MOST_BUBBLE)


class RoundCosts:
    """Rounds with the proposals of one drafter, beside the steps of its target. longest: most tokens of a proposal."""

    def __init__(self, steps: StepCosts, *, longest: int) -> None:
        self._steps = steps
        self._excess = Level()
        self._by_length = [Level() for _ in range(longest + 1)]

    @property
    def is_known(self) -> bool:
        """Whether a round with a proposal was seen."""
        return self._excess.value is not None

    def round(self, proposed: int, context: int) -> float:
        """A round with that many proposed tokens, drafting included."""
        return self._steps.single(context) + self._find_excess(proposed, context)

    def observe(self, ns: int, proposed: int, context: int) -> None:
        """A round with a proposal took so long."""
        steps = self._steps
        steps.rounds_since_step += 1
        if not steps.is_known:
            return
        least = LEAST * steps.step(context) * proposed
        steps.observe_bound(ns - least, context)
        excess = max(ns - steps.single(context), least)
        ratio = excess / steps.guess_excess(proposed, context)
        self._excess.observe(ratio)
        self._by_length[proposed].observe(ratio)

    def _find_excess(self, proposed: int, context: int) -> float:
        if proposed == 0:
            return 0.0
        guess, overall = self._steps.guess_excess(proposed, context), self._excess.value or 1.0
        own = self._by_length[proposed]
        n = min(own.n, 1 / NEW)
        ratio = overall if own.value is None else (PRIOR_WEIGHT * overall + n * own.value) / (PRIOR_WEIGHT + n)
        return guess * ratio
