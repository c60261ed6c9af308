"""Runs beside each other, in plain Python: what each arm cost in each, and what changed."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tests.queries.intervals import find_error
from tests.queries.recompute import Recomputed
from tests.queries.simulate import Row

Key = tuple[str | None, str, int]


@dataclass
class Work:
    """An arm's work on a prompt, averaged over its repeats."""

    n_rounds: float
    accepted: float
    committed: float
    t: float
    peak: int


def average(data: Recomputed, arm: str) -> dict[Key, Work]:
    """By class, prompt and length of prompt."""
    grouped: dict[Key, list[Row]] = defaultdict(list)
    for g in data.whole(arm, "all", "fused"):
        grouped[g["class"], g["prompt_id"], g["prompt_tokens"]].append(g)
    return {
        key: Work(
            statistics.fmean(g["n_rounds"] for g in repeats),
            *(data.total(repeats, name) / len(repeats) for name in ("accepted", "committed", "t_round_ns")),
            max(g["peak_memory_bytes"] for g in repeats),
        )
        for key, repeats in grouped.items()
    }


def history(data: Recomputed) -> Iterator[Row]:
    """The rows of `history` for a store of one run."""
    run = data.runs[0] if data.runs else {}
    ordinary = average(data, "ordinary")
    for generation, scope in data.groups:
        works = average(data, generation["arm"])
        if scope != "all" or not works:
            continue
        both = [key for key in works if key in ordinary]
        base = sum(ordinary[key].t for key in both) / sum(ordinary[key].committed for key in both)
        mine = sum(works[key].t for key in both) / sum(works[key].committed for key in both)
        total = {name: sum(getattr(w, name) for w in works.values()) for name in ("n_rounds", "accepted", "committed")}
        yield {name: run.get(name) for name in ("outcome", "host", "cpu", "model", "dtype", "workload")} | {
            "started": "2023-11-14T22:13:20Z" if run else None,
            "arm": generation["arm"],
            "n_prompts": len(works),
            "seconds_per_token": sum(w.t for w in works.values()) / total["committed"] / 1e9,
            "speedup": base / mine if generation["drafter"] else None,
            "accepted_per_round": total["accepted"] / total["n_rounds"],
            "committed_per_round": total["committed"] / total["n_rounds"],
            "peak_bytes": max(w.peak for w in works.values()),
            "change": None,
        }


def compare(a: Recomputed, b: Recomputed) -> Iterator[Row]:
    """The rows of `compare` for two runs of the same environment, less what says which."""
    ordinary = [average(data, "ordinary") for data in (a, b)]
    for generation, scope in b.groups:
        works = [average(data, generation["arm"]) for data in (a, b)]
        common = works[0].keys() & works[1].keys() & ordinary[0].keys() & ordinary[1].keys()
        keys = [key for key in works[0] if key in common and scope in (key[0], "all")]
        if not keys:
            continue
        mine = [[of[key] for key in keys] for of in works]
        base = [[of[key] for key in keys] for of in ordinary]
        per_token = [_per_token(of) for of in mine]
        d, base_d = _influences(*mine), _influences(*base)
        classes = [class_ for class_, *_ in keys]
        ratio, half = per_token[1] / per_token[0], find_error(d, classes).half_width()
        change = "slower" if math.log(ratio) > half else "faster" if -math.log(ratio) > half else "indistinguishable"
        speedups = [_per_token(o) / _per_token(s) for o, s in zip(base, mine, strict=True)]
        gain = speedups[1] / speedups[0]
        gain_half = find_error([o - s for o, s in zip(base_d, d, strict=True)], classes).half_width()
        shown = (*speedups, gain, gain * math.exp(-gain_half), gain * math.exp(gain_half))
        names = ("speedup_a", "speedup_b", "speedup_ratio", "speedup_ratio_low", "speedup_ratio_high")
        yield {
            "arm": generation["arm"],
            "class": scope,
            "n_prompts": len(keys),
            "seconds_per_token_a": per_token[0] / 1e9,
            "seconds_per_token_b": per_token[1] / 1e9,
            "ratio": ratio,
            "ratio_low": ratio * math.exp(-half),
            "ratio_high": ratio * math.exp(half),
            "change": change if len(keys) >= 5 else None,
            **dict(zip(names, shown if generation["drafter"] else [None] * 5, strict=True)),
            **{
                f"accepted_per_round_{letter}": sum(w.accepted for w in of) / sum(w.n_rounds for w in of)
                for letter, of in zip("ab", mine, strict=True)
            },
            **{f"peak_bytes_{letter}": max(w.peak for w in of) for letter, of in zip("ab", mine, strict=True)},
            "differences": None,
            "same_machine": True,
        }


def _per_token(works: list[Work]) -> float:
    return sum(w.t for w in works) / sum(w.committed for w in works)


def _influences(a: list[Work], b: list[Work]) -> list[float]:
    means = [statistics.fmean(getattr(w, name) for w in of) for of in (a, b) for name in ("t", "committed")]
    return [
        y.t / means[2] - y.committed / means[3] - x.t / means[0] + x.committed / means[1]
        for x, y in zip(a, b, strict=True)
    ]
