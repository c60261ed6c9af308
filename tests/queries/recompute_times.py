"""Where time and memory go, in plain Python: by stage, context, part of the run, way back, and round."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tests.queries.intervals import t_975
from tests.queries.recompute import STAGES, Recomputed
from tests.queries.simulate import Row


def quantile(values: Sequence[float], q: float) -> float:
    """On the straight line between the two values on either side of the place (n - 1) q."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * q
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def rounds_of(data: Recomputed, generations: Iterable[Row]) -> list[Row]:
    """The rounds of these generations."""
    return [one for g in generations for one in data.by_generation[g["generation_id"]]]


def where_time_goes(data: Recomputed) -> Iterator[Row]:
    """The rows of `where_time_goes`."""
    for generation, scope in data.groups:
        for timing in ("attributed", "fused"):
            whole = data.whole(generation["arm"], scope, timing)
            if rounds := rounds_of(data, whole):
                label = data.label(generation, scope) | {"timing": timing}
                yield from ({**label, **row} for row in _divide(rounds, whole))


def _divide(rounds: list[Row], generations: list[Row]) -> Iterator[Row]:
    stages = {stage: [one[f"{stage}_ns"] for one in rounds] for stage in STAGES}
    spent = [one["t_round_ns"] for one in rounds]
    stages["other"] = [t - sum(parts) for t, *parts in zip(spent, *stages.values(), strict=True)]
    stages |= {"round": spent, "unaccounted": [g["unaccounted_ns"] for g in generations]}
    wall = sum(stages["round"]) + sum(stages["unaccounted"])
    for stage, values in stages.items():
        bases = {one[f"{stage}_basis"] for one in rounds if one.get(f"{stage}_basis")}
        yield {
            "stage": stage,
            "basis": ", ".join(sorted(bases)) or None,
            "n": len(values),
            "total_seconds": sum(values) / 1e9,
            "share": sum(values) / wall,
            **{f"p{p}_seconds": quantile(values, p / 100) / 1e9 for p in (50, 95, 99)},
            "longest_seconds": max(values) / 1e9,
        }


def context_growth(data: Recomputed) -> Iterator[Row]:
    """The rows of `context_growth`."""
    steps: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for generation, scope in data.groups:
        if scope == "all":
            for one in rounds_of(data, data.whole(generation["arm"], "all", "fused")):
                steps[generation["arm"], max(one["cache_length"], 1).bit_length() - 1].append(one)
    for generation, scope in data.groups:
        for arm, step in sorted(steps):
            if scope != "all" or arm != generation["arm"]:
                continue
            mine, ordinary = _sum_up(steps[arm, step]), _sum_up(steps.get(("ordinary", step), []))
            per_token = mine["t"] / mine["committed"]
            base = ordinary["t"] / ordinary["committed"] if ordinary["n"] else None
            row = data.label(generation, scope)
            del row["class"]
            yield row | {
                "context_from": 2**step,
                "context_to": 2 ** (step + 1) - 1,
                "n_rounds": mine["n"],
                "n_tokens": mine["committed"],
                "round_seconds": mine["t"] / mine["n"] / 1e9,
                "seconds_per_token": per_token / 1e9,
                "ordinary_seconds_per_token": None if base is None else base / 1e9,
                "speedup": base / per_token if base and generation["drafter"] else None,
                "committed_per_round": mine["committed"] / mine["n"],
            }


def _sum_up(rounds: list[Row]) -> dict[str, int]:
    totals = {"t": sum(r["t_round_ns"] for r in rounds), "committed": sum(r["committed"] for r in rounds)}
    return totals | {"n": len(rounds)}


def trim_and_rewind(data: Recomputed) -> Iterator[Row]:
    """The rows of `trim_and_rewind`."""
    for generation, scope in data.groups:
        if generation["drafter"] is None:
            continue
        fused, attributed = (
            rounds_of(data, data.whole(generation["arm"], scope, timing)) for timing in ("fused", "attributed")
        )
        for ways in sorted({(r["trim_way"], r["rewind_way"]) for r in (*fused, *attributed)}):
            mine, timed = (
                [r for r in rounds if (r["trim_way"], r["rewind_way"]) == ways] for rounds in (fused, attributed)
            )
            back = [sum(r[f"{stage}_ns"] for r in timed) for stage in ("trim", "rewind")]
            yield data.label(generation, scope) | {
                "trim_way": ways[0],
                "rewind_way": ways[1],
                "n_rounds": len(mine),
                "share_of_rounds": len(mine) / len(fused) if fused else None,
                "n_rejected": sum(r["proposed"] - r["accepted"] - r["cut"] for r in mine),
                "n_replayed": sum(r["replayed"] for r in mine),
                "n_attributed": len(timed),
                "trim_seconds": back[0] / len(timed) / 1e9 if timed else None,
                "rewind_seconds": back[1] / len(timed) / 1e9 if timed else None,
                "share_of_time": sum(back) / sum(r["t_round_ns"] for r in timed) if timed else None,
            }


def slowest_rounds(data: Recomputed, n: int = 20) -> Iterator[Row]:
    """The rows of `slowest_rounds`."""
    found, medians = [], {}
    for generation, scope in data.groups:
        if scope == "all":
            whole = data.whole(generation["arm"], "all", "fused")
            found += [(g, one) for g in whole for one in data.by_generation[g["generation_id"]]]
            spent = [one["t_round_ns"] for one in rounds_of(data, whole)]
            medians[generation["arm"]] = statistics.median(spent) if spent else 0
    found.sort(key=lambda pair: (-pair[1]["t_round_ns"], pair[0]["sequence"], pair[1]["index"]))
    for g, one in found[:n]:
        yield {name: g[name] for name in ("arm", "class", "prompt_id", "generation_id", "sequence")} | {
            "round": one["index"],
            "round_seconds": one["t_round_ns"] / 1e9,
            "relative_to_arm": one["t_round_ns"] / medians[g["arm"]],
            **{f"{stage}_seconds": one[f"{stage}_ns"] / 1e9 for stage in STAGES},
            **{n: one[n] for n in ("width", "cache_length", "proposed", "accepted", "committed", "outcome")},
        }


def memory(data: Recomputed) -> Iterator[Row]:
    """The rows of `memory`."""
    for generation, scope in data.groups:
        whole = data.whole(generation["arm"], scope, "fused")
        if not whole:
            continue
        peaks = [g["peak_memory_bytes"] for g in whole]
        ordinary = max(g["peak_memory_bytes"] for g in data.whole("ordinary", scope, "fused"))
        yield data.label(generation, scope) | {
            "n_generations": len(whole),
            "peak_bytes": max(peaks),
            "mean_peak_bytes": statistics.fmean(peaks),
            "ordinary_peak_bytes": ordinary,
            "relative_to_ordinary": max(peaks) / ordinary if ordinary else None,
            "cache_bytes": max(g["cache_bytes"] for g in whole),
            "snapshot_bytes": max(g["snapshot_bytes"] for g in whole),
        }


def baseline_drift(data: Recomputed) -> Iterator[Row]:
    """The rows of `baseline_drift`."""
    ordinary = sorted(data.whole("ordinary", "all", "fused"), key=lambda g: g["sequence"])
    x = [float(g["sequence"]) for g in ordinary]
    steps = [data.total([g], "t_round_ns") / g["n_rounds"] for g in ordinary]
    y, n, reach = [math.log(step) for step in steps], len(steps), x[-1] - x[0]
    slope, base = statistics.linear_regression(x, y)
    residual = math.fsum((b - base - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    middle = statistics.fmean(x)
    half = t_975(n - 2) * math.sqrt(residual / (n - 2) / math.fsum((a - middle) ** 2 for a in x))
    short, longer = divmod(n, 5)
    run = data.runs[0] if data.runs else {}
    for part in range(5):
        start = part * short + min(part, longer)
        chosen = slice(start, start + short + (part < longer))
        step = statistics.median(steps[chosen])
        yield {
            "part": part + 1,
            "n_generations": len(steps[chosen]),
            "first_sequence": ordinary[chosen][0]["sequence"],
            "last_sequence": ordinary[chosen][-1]["sequence"],
            "step_seconds": step / 1e9,
            "relative_to_run": step / statistics.median(steps),
            "change": math.expm1(slope * reach),
            "change_low": math.expm1((slope - half) * reach),
            "change_high": math.expm1((slope + half) * reach),
            "drifted": abs(slope) > half and abs(slope * reach) > math.log(1.05),
            **{name: run.get(name) for name in ("load1", "load1_end", "cores", "power", "power_end")},
            "speed_limit": run.get("speed_limit"),
            "n_throttled": None,
        }
