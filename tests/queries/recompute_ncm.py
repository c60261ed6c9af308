"""The figures of `ncm_cache` and `ncm_exit` computed again in plain Python from the same rows.

Every function gives a query's rows as dictionaries, less `run_id` and `note`, in the query's order. Work is compared
with the formulas in exact integers of `runtime.ncm.accounting`.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import duckdb

from tests.queries.intervals import t_975
from tests.queries.recompute import fetch_rows
from tests.queries.simulate import Row

Pair: TypeAlias = tuple[Row, Row]


@dataclass
class RecomputedNcm:
    """Both queries over the rows of one run of one configuration."""

    generations: list[Row]
    levels: list[Row]

    @classmethod
    def read(cls, con: duckdb.DuckDBPyConnection, run_id: str) -> RecomputedNcm:
        """The rows of a run as they are in a store."""
        own = "select generation_id from ncm_generations where run_id = ?"
        return cls(
            fetch_rows(con.execute("select * from ncm_generations where run_id = ?", [run_id])),
            fetch_rows(con.execute(f"select * from levels where generation_id in ({own})", [run_id])),
        )

    @cached_property
    def by_generation(self) -> dict[str, list[Row]]:
        """The levels of each generation."""
        grouped: dict[str, list[Row]] = defaultdict(list)
        for level in self.levels:
            grouped[level["generation_id"]].append(level)
        return grouped

    def whole(self, cache: bool, exit_: str, timing: str) -> list[Row]:
        """The generations that count, of an arm."""
        return [
            g
            for g in self.generations
            if (g["cache"], g["exit"], g["timing"], g["warm_up"]) == (cache, exit_, timing, False)
            and g["finish_reason"] in ("complete", "exited")
            and len(self.by_generation[g["generation_id"]]) == g["n_levels"]
        ]

    def pairs(self, arm: tuple[bool, str], against: tuple[bool, str], timing: str) -> list[list[Pair]]:
        """Generations of an arm with those they are compared with, a list a batch."""
        others = {(g["batch_id"], g["repeat"]): g for g in self.whole(*against, timing)}
        batches: dict[str, list[Pair]] = defaultdict(list)
        for g in self.whole(*arm, timing):
            if (other := others.get((g["batch_id"], g["repeat"]))) is not None:
                batches[g["batch_id"]].append((g, other))
        return list(batches.values())

    def sums(self, generations: list[Row], name: str) -> float:
        """The sum of a column over the levels of generations."""
        return sum(level[name] for g in generations for level in self.by_generation[g["generation_id"]])

    def ncm_cache(self) -> Iterator[Row]:
        """The rows of `ncm_cache`."""
        fused = self.pairs((True, "none"), (False, "none"), "fused")
        attributed = self.pairs((True, "none"), (False, "none"), "attributed")
        shape = self.generations[0]
        for level in range(len(shape["lengths"])) if attributed else ():
            batches = [[(self.level(a, level), self.level(b, level)) for a, b in batch] for batch in attributed]
            yield self._work(str(level), "attributed", batches, [level], lambda row: row["t_level_ns"])
        yield self._work("all", "fused", fused, range(len(shape["lengths"])), lambda row: row["total_ns"])

    def level(self, generation: Row, index: int) -> Row:
        """One level of a generation, with what its generation is."""
        (level,) = [one for one in self.by_generation[generation["generation_id"]] if one["level"] == index]
        return level | {"peak_memory_bytes": None}

    def _levels(self, row: Row) -> list[Row]:
        return [row] if "level" in row else self.by_generation[row["generation_id"]]

    def _work(
        self,
        level: str,
        timing: str,
        batches: list[list[Pair]],
        levels: list[int] | range,
        time: Callable[[Row], float],
    ) -> Row:
        shape = self.generations[0]
        whole = level == "all"
        t = [sum(time(a) for a, _ in batch) for batch in batches]
        u = [sum(time(b) for _, b in batch) for batch in batches]
        pairs = [pair for batch in batches for pair in batch]
        n_samples = sum(a["batch"] for a, _ in pairs)
        found = compare(t, [1.0] * len(t), u, [1.0] * len(u))

        def total(side: int, *names: str) -> float:
            return sum(one[name] for pair in pairs for one in self._levels(pair[side]) for name in names) / n_samples

        p, lengths, n_layers = shape["prefix_length"], shape["lengths"], shape["n_layers"]
        own = sum(lengths[k] for k in levels)
        pairs_own = sum(lengths[k] * p + lengths[k] ** 2 for k in levels)
        n_once, n_repeated = int(0 in levels), len(levels)
        compared = [(a["codes_digest"], b["codes_digest"]) for a, b in pairs if a["codes_digest"] and b["codes_digest"]]
        peaks = [[pair[side]["peak_memory_bytes"] for pair in pairs] for side in (0, 1)]
        return {
            "config": shape["config"],
            "level": level,
            "timing": timing,
            "basis": None if whole else "barrier",
            "n_pairs": len(pairs),
            "n_batches": len(batches),
            "verdict": found["verdict"] if whole else None,
            "speedup": found["speedup"],
            "speedup_low": found["low"],
            "speedup_high": found["high"],
            "cached_seconds": sum(t) / len(pairs) / 1e9,
            "uncached_seconds": sum(u) / len(pairs) / 1e9,
            "n_codes_compared": len(compared),
            "n_codes_equal": sum(a == b for a, b in compared),
            "cached_positions": total(0, "prefix_processed", "level_processed"),
            "cached_positions_formula": own + n_once * p,
            "uncached_positions": total(1, "prefix_processed", "level_processed"),
            "uncached_positions_formula": own + n_repeated * p,
            "cached_allowed": total(0, "pairs_allowed") / n_layers,
            "cached_allowed_formula": pairs_own + n_once * p * p,
            "uncached_allowed": total(1, "pairs_allowed") / n_layers,
            "uncached_allowed_formula": pairs_own + n_repeated * p * p,
            "cached_computed": total(0, "pairs_computed") / n_layers,
            "uncached_computed": total(1, "pairs_computed") / n_layers,
            "kv_bytes": max(a["kv_bytes"] for a, _ in pairs),
            "kv_bytes_formula": 2 * n_layers * shape["batch"] * p * shape["n_heads"] * shape["head_dim"] * 4,
            "cached_peak_bytes": max(peaks[0]) if whole else None,
            "uncached_peak_bytes": max(peaks[1]) if whole else None,
            "more_batches": found["more"] if whole else None,
            "would_settle": found["settles"] if whole else None,
        }

    def ncm_exit(self) -> Iterator[Row]:
        """The rows of `ncm_exit`: of every arm by itself, then of those with the exit against those without."""
        for cache, exit_ in ((True, "none"), (True, "verified"), (False, "none"), (False, "verified")):
            yield self._alone(cache, exit_)
        for cache, against in ((True, True), (True, False), (False, False)):
            batches = self.pairs((cache, "verified"), (against, "none"), "fused")
            pairs = [pair for batch in batches for pair in batch]
            sides = [[pair[side] for pair in pairs] for side in (0, 1)]
            totals = [
                [sum(pair[side][name] for pair in batch) for batch in batches]
                for side in (0, 1)
                for name in ("total_ns", "n_solved")
            ]
            found = compare(*totals)
            n_samples = sum(a["batch"] for a in sides[0])
            t, solved, other_t, other_solved = (sum(values) for values in totals)
            attributed = self.whole(cache, "verified", "attributed")
            checking = self.sums(attributed, "decode_ns") + self.sums(attributed, "check_ns")
            yield {
                "config": self.generations[0]["config"],
                "arm": "cache exit" if cache else "no-cache exit",
                "against": "cache" if against else "no-cache",
                "selection": "the exit changes which outputs are selected",
                "n_generations": len(pairs),
                "n_batches": len(batches),
                "n_samples": n_samples,
                "verdict": found["verdict"],
                "speedup": found["speedup"],
                "speedup_low": found["low"],
                "speedup_high": found["high"],
                "solved_seconds": t / solved / 1e9,
                "against_solved_seconds": other_t / other_solved / 1e9,
                "n_solved": solved,
                "against_n_solved": other_solved,
                "solved_share": solved / n_samples,
                "against_solved_share": other_solved / n_samples,
                "generation_seconds": t / len(pairs) / 1e9,
                "against_generation_seconds": other_t / len(pairs) / 1e9,
                "levels_used": self.sums(sides[0], "batch") / n_samples,
                "against_levels_used": self.sums(sides[1], "batch") / n_samples,
                "checking_share": checking / self.sums(attributed, "t_level_ns"),
                "more_batches": found["more"],
                "would_settle": found["settles"],
            }

    def _alone(self, cache: bool, exit_: str) -> Row:
        mine, attributed = self.whole(cache, exit_, "fused"), self.whole(cache, exit_, "attributed")
        t, solved, n_samples = (sum(g[name] for g in mine) for name in ("total_ns", "n_solved", "batch"))
        checking = self.sums(attributed, "decode_ns") + self.sums(attributed, "check_ns")
        return {
            "config": self.generations[0]["config"],
            "arm": ("cache" if cache else "no-cache") + (" exit" if exit_ == "verified" else ""),
            "against": None,
            "selection": "the exit changes which outputs are selected",
            "n_generations": len(mine),
            "n_batches": len({g["batch_id"] for g in mine}),
            "n_samples": n_samples,
            **dict.fromkeys(("verdict", "speedup", "speedup_low", "speedup_high")),
            "solved_seconds": t / solved / 1e9,
            "against_solved_seconds": None,
            "n_solved": solved,
            "against_n_solved": None,
            "solved_share": solved / n_samples,
            "against_solved_share": None,
            "generation_seconds": t / len(mine) / 1e9,
            "against_generation_seconds": None,
            "levels_used": self.sums(mine, "batch") / n_samples,
            "against_levels_used": None,
            "checking_share": checking / self.sums(attributed, "t_level_ns"),
            **dict.fromkeys(("more_batches", "would_settle")),
        }


def compare(t_a: list[float], c_a: list[float], t_b: list[float], c_b: list[float]) -> Row:
    """The speedup (sum t_b / sum c_b) / (sum t_a / sum c_a) over clusters, its interval and what it says."""
    n = len(t_a)
    speedup = (sum(t_b) / sum(c_b)) / (sum(t_a) / sum(c_a))
    means = [sum(values) / n for values in (t_b, c_b, t_a, c_a)]
    d = [
        a / means[0] - b / means[1] - c / means[2] + e / means[3] for a, b, c, e in zip(t_b, c_b, t_a, c_a, strict=True)
    ]
    sd = statistics.stdev(d) if n > 1 else math.nan
    half = t_975(n - 1) * sd / math.sqrt(n) if n > 1 else math.nan
    log = math.log(speedup)
    verdict = "pays" if log > half else "loses" if -log > half else "indistinguishable"
    more = None
    if n >= 5 and verdict == "indistinguishable" and log:
        more = bisect_left(range(n, n + 10_001), True, key=lambda k: t_975(k - 1) * sd / math.sqrt(k) < abs(log))
        more = more if more <= 10_000 else None
    return {
        "speedup": speedup,
        "low": math.exp(log - half) if n > 1 else None,
        "high": math.exp(log + half) if n > 1 else None,
        "verdict": verdict if n >= 5 else None,
        "more": more,
        "settles": None if more is None else "pays" if log > 0 else "loses",
    }
