"""What forecasts say, in plain Python: rounds replayed at every draft length, priced and compared."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.queries.intervals import find_error
from tests.queries.recompute import Recomputed
from tests.queries.simulate import Row

Price = Callable[[int], float]
Replay = list[tuple[int, int, int]]


@dataclass
class Work:
    """What was done, or would be, for one prompt: rounds, tokens proposed, accepted and committed, nanoseconds."""

    rounds: int
    proposed: int
    accepted: int
    committed: float
    t: float
    priced_on: str | None = None
    slope: float | None = None


def replay(offered: Sequence[int], right: Sequence[int], m: int, budget: int) -> Replay:
    """Proposed, accepted and committed tokens of each round at draft length `m`, from counts at every position."""
    rounds, position = [], 0
    while position < len(offered):
        left = len(offered) - position
        proposed = min(offered[position], m, budget - position - 1)
        accepted = min(right[position], proposed, left)
        rounds.append((proposed, accepted, min(accepted + 1, left)))
        position += rounds[-1][2]
    return rounds


def price_verification(costs: list[Row]) -> Price:
    """Nanoseconds of a forward by width, averaged over contexts, on straight lines between widths."""
    times = defaultdict(list)
    for row in costs:
        times[row["width"]].append(row["verify_ns"])
    curve = sorted((width, statistics.fmean(ns)) for width, ns in times.items())

    def price(width: int) -> float:
        for (low, at_low), (high, at_high) in pairwise(curve):
            if low <= width <= high:
                return at_low + (at_high - at_low) * (width - low) / (high - low)
        return curve[-1][1] if curve else width * 1e6

    return price


def price_drafting(rounds: list[Row]) -> Price:
    """Nanoseconds of drafting by tokens proposed: a least-squares line over rounds in which it was timed by itself."""
    timed = [one for one in rounds if one["draft_basis"] in ("host", "barrier")]
    if not timed:
        return lambda proposed: 0.0
    x, y = [one["proposed"] for one in timed], [one["draft_ns"] for one in timed]
    slope = statistics.linear_regression(x, y).slope if len(set(x)) > 1 else 0.0
    base = statistics.fmean(y) - slope * statistics.fmean(x)
    return lambda proposed: max(base + slope * proposed, 0.0)


@dataclass
class RoundPrice:
    """Nanoseconds of rounds of so many proposed tokens: drafting, `scale` forwards, `slope` a position, a constant."""

    verification: Price
    drafting: Price
    scale: float
    slope: float | None
    base: float

    def of(self, proposed: int, contexts: Sequence[int]) -> float:
        """All rounds that propose so many, at these contexts."""
        each = self.scale * self.verification(proposed + 1) + self.base + self.drafting(proposed)
        return max(len(contexts) * each + (self.slope or 0.0) * sum(contexts), 0.0)


def price_rounds(rounds: list[Row], steps: list[Row], verification: Price, drafting: Price) -> RoundPrice:
    """Least squares over the forward's price and the context, by elimination of the first; `steps` know the context."""
    x = _center([verification(one["proposed"] + 1) for one in rounds])
    y = _center([one["t_round_ns"] - drafting(one["proposed"]) for one in rounds])
    c = _center([one["cache_length"] - one["committed"] for one in rounds])
    step_c = _center([one["cache_length"] - one["committed"] for one in steps])
    step_y = _center([one["t_round_ns"] for one in steps])
    xx = _dot(x.values, x.values)
    # What of context and time is not explained by the forward.
    by_x, y_by_x = (_dot(x.values, of.values) / xx if xx else 0.0 for of in (c, y))
    rest = [*(a - by_x * b for a, b in zip(c.values, x.values, strict=True)), *step_c.values]
    rest_y = [*(a - y_by_x * b for a, b in zip(y.values, x.values, strict=True)), *step_y.values]
    spread = _dot(rest, rest)
    told = spread > 1e-6 * _dot([*c.values, *step_c.values], [*c.values, *step_c.values])
    slope = max(_dot(rest, rest_y) / spread, 0.0) if told else None
    scale = y_by_x - (slope or 0.0) * by_x
    scale = scale if scale > 0 else 1.0
    return RoundPrice(verification, drafting, scale, slope, y.mean - scale * x.mean - (slope or 0.0) * c.mean)


@dataclass
class _Centered:
    mean: float
    values: list[float]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def _center(values: Sequence[float]) -> _Centered:
    mean = statistics.fmean(values)
    return _Centered(mean, [value - mean for value in values])


def draft_length(data: Recomputed) -> Iterator[Row]:
    """The rows of `draft_length`."""
    whole = [g for arm in {g["arm"] for g in data.generations} for g in data.whole(arm, "all", "fused")]
    specs = {g["arm"].rpartition(" m=")[0] for g in whole if g["draft_length"]}
    ordinary = _average_ordinary(data, [g for g in whole if g["drafter"] is None])
    for spec in sorted(specs):
        mine = [g for g in whole if g["drafter"] and g["arm"].rpartition(" m=")[0] == spec]
        measured = _sum_measured(data, mine)
        predicted = _predict(data, spec, mine, whole)
        lengths = predicted or dict.fromkeys(measured)
        for scope in [*sorted({g["class"] for g in mine} - {None, "all"}), "all"]:
            yield from _judge(spec, scope, lengths, measured, ordinary)


def _average_ordinary(data: Recomputed, generations: list[Row]) -> dict[str, tuple[float, float]]:
    by_prompt = defaultdict(list)
    for g in generations:
        by_prompt[g["prompt_id"]].append((data.total([g], "t_round_ns"), data.total([g], "committed")))
    return {
        prompt: (statistics.fmean(t for t, _ in works), statistics.fmean(c for _, c in works))
        for prompt, works in by_prompt.items()
    }


def _sum_measured(data: Recomputed, mine: list[Row]) -> dict[tuple[int, str, str], Work]:
    return {
        (g["draft_length"], g["prompt_id"], g["class"]): Work(
            g["n_rounds"],
            0,
            int(data.total([g], "accepted")),
            data.total([g], "committed"),
            data.total([g], "t_round_ns"),
        )
        for g in mine
        if g["repeat"] == 0 and not g["controlled"]
    }


def _predict(data: Recomputed, spec: str, mine: list[Row], whole: list[Row]) -> dict[tuple[int, str, str], Work | None]:
    generations = {g["generation_id"]: g for g in whole}
    verification, drafting = price_verification(data.verify_costs), price_drafting(_find_all(data, spec))
    steps = [one for g in whole if g["drafter"] is None for one in data.by_generation[g["generation_id"]]]
    found: dict[tuple[int, str, str], Work | None] = {}
    for forecast in data.forecasts:
        g = generations.get(forecast["generation_id"])
        if g is None or forecast["spec"] != spec:
            continue
        for m in range(1, forecast["longest"] + 1):
            others = [g for g in mine if g["draft_length"] != m or g["controlled"]]
            fitted = [one for g in others or mine for one in data.by_generation[g["generation_id"]]]
            price = price_rounds(fitted, steps, verification, drafting)
            rounds = replay(forecast["offered"], forecast["right"], m, g["max_tokens"])
            proposed, accepted, committed = map(sum, zip(*rounds, strict=True))
            contexts, held = defaultdict(list), forecast["prompt_tokens"] - 1
            for one in rounds:
                contexts[one[0]].append(held)
                held += one[2]
            t = math.fsum(price.of(n, at) for n, at in contexts.items())
            on = "other lengths" if others else "this length"
            found[m, g["prompt_id"], g["class"]] = Work(len(rounds), proposed, accepted, committed, t, on, price.slope)
    return found


def _find_all(data: Recomputed, spec: str) -> list[Row]:
    """All its rounds, those of attributed timing among them."""
    arms = {g["arm"] for g in data.generations if g["drafter"] and g["arm"].rpartition(" m=")[0] == spec}
    chosen = [g for arm in arms for timing in ("fused", "attributed") for g in data.whole(arm, "all", timing)]
    return [one for g in chosen for one in data.by_generation[g["generation_id"]]]


def _judge(
    spec: str,
    scope: str,
    lengths: dict[tuple[int, str, str], Work | None],
    measured: dict[tuple[int, str, str], Work],
    ordinary: dict[str, tuple[float, float]],
) -> Iterator[Row]:
    rows = []
    for m in sorted({m for m, *_ in lengths}):
        keys = [key for key in lengths if key[0] == m and scope in (key[2], "all") and key[1] in ordinary]
        if keys:
            rows.append(
                _compare(m, [(lengths[k], measured.get(k), ordinary[k[1]]) for k in keys], [k[2] for k in keys])
            )
    n = rows[0]["n_prompts"] if rows else 0
    if n:
        first = rows[0]
        rows.insert(
            0,
            dict.fromkeys(first)
            | {name: first[name] for name in ("n_prompts", "predicted_committed", "ordinary_seconds_per_token")}
            | {"m": 0, "predicted_rounds": first["predicted_committed"], "predicted_speedup": 1.0}
            | {"predicted_proposed": 0, "predicted_accepted": 0}
            | {"predicted_seconds_per_token": first["ordinary_seconds_per_token"]},
        )
    paying = [row for row in rows if row["predicted_verdict"] == "pays" and row["m"] <= 16]
    best = (
        min(paying, key=lambda row: (round(1e9 * row["predicted_seconds_per_token"], 3), row["m"]))["m"]
        if paying
        else 0
    )
    for row in rows:
        row["is_best"] = None if n < 5 else row["m"] == best
        yield {"drafter": spec, "class": scope, **row}


def _compare(
    m: int, prompts: list[tuple[Work | None, Work | None, tuple[float, float]]], classes: list[str | None]
) -> Row:
    ran = [work for _, work, _ in prompts if work]
    ran = ran if len(ran) == len(prompts) else []
    ordinary = sum(t for *_, (t, _) in prompts) / sum(c for *_, (_, c) in prompts)
    row: Row = {
        "m": m,
        "n_prompts": 0,
        "predicted_rounds": None,
        "measured_rounds": sum(w.rounds for w in ran) if ran else None,
        "predicted_proposed": None,
        "predicted_accepted": None,
        "measured_accepted": sum(w.accepted for w in ran) if ran else None,
        "predicted_committed": None,
        "predicted_seconds_per_token": None,
        "priced_on": None,
        "position_seconds": None,
        "measured_seconds_per_token": sum(w.t for w in ran) / sum(w.committed for w in ran) / 1e9 if ran else None,
        "ordinary_seconds_per_token": ordinary / 1e9,
    }
    row |= dict.fromkeys(("predicted_speedup", "predicted_speedup_low", "predicted_speedup_high", "predicted_verdict"))
    works = [(work, base) for work, _, base in prompts if work]
    if not works:
        return row
    n = len(works)
    t, c = (math.fsum(values) for values in ((w.t for w, _ in works), (w.committed for w, _ in works)))
    t_o, c_o = (math.fsum(base[i] for _, base in works) for i in (0, 1))
    d = [n * (b[0] / t_o - b[1] / c_o - w.t / t + w.committed / c) for w, b in works]
    speedup = ordinary / (t / c)
    half = find_error(d, classes).half_width(16) if n > 1 else None
    verdict = None
    if n >= 5 and half is not None:
        effect = math.log(speedup)
        verdict = "pays" if effect > half else "loses" if -effect > half else "indistinguishable"
    return row | {
        "n_prompts": n,
        "predicted_rounds": sum(w.rounds for w, _ in works),
        "predicted_proposed": sum(w.proposed for w, _ in works),
        "predicted_accepted": sum(w.accepted for w, _ in works),
        "predicted_committed": int(c),
        "predicted_seconds_per_token": t / c / 1e9,
        "priced_on": works[0][0].priced_on,
        "position_seconds": None if works[0][0].slope is None else works[0][0].slope / 1e9,
        "predicted_speedup": speedup,
        "predicted_speedup_low": None if half is None else speedup * math.exp(-half),
        "predicted_speedup_high": None if half is None else speedup * math.exp(half),
        "predicted_verdict": verdict,
    }
