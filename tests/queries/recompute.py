"""The queries' figures computed again in plain Python from the same rows: what the tests hold the SQL to.

Every function gives the rows of one query as dictionaries, less `run_id` and `note`, in the query's order.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left as bisect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import duckdb

from tests.queries.intervals import bootstrap, find_error, t_975
from tests.queries.simulate import Row

STAGES = ("draft", "verify", "synchronize", "trim", "rewind")


def fetch_rows(cursor: duckdb.DuckDBPyConnection) -> list[Row]:
    """What a statement gave, by column name."""
    names = [name for name, *_ in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@dataclass
class Pair:
    """An arm's work on one prompt, and ordinary decoding's."""

    mine: list[Row] = field(default_factory=list)
    ordinary: list[Row] = field(default_factory=list)


@dataclass
class Recomputed:
    """All queries over the rows of one run."""

    generations: list[Row]
    rounds: list[Row]
    forecasts: list[Row] = field(default_factory=list)
    verify_costs: list[Row] = field(default_factory=list)
    runs: list[Row] = field(default_factory=list)

    @classmethod
    def read(cls, con: duckdb.DuckDBPyConnection, run_id: str) -> Recomputed:
        """The rows of a run as they are in a store."""
        generations = fetch_rows(con.execute("select * from generations where run_id = ?", [run_id]))
        own = "select generation_id from generations where run_id = ?"
        rounds, forecasts = (
            fetch_rows(con.execute(f"select * from {table} where generation_id in ({own})", [run_id]))
            for table in ("rounds", "forecasts")
        )
        costs = fetch_rows(con.execute("select * from verify_costs where run_id = ?", [run_id]))
        runs = fetch_rows(con.execute("select * from runs where run_id = ?", [run_id]))
        return cls(generations, rounds, forecasts, costs, runs)

    @cached_property
    def by_generation(self) -> dict[str, list[Row]]:
        """The rounds of each generation."""
        grouped: dict[str, list[Row]] = defaultdict(list)
        for one in self.rounds:
            grouped[one["generation_id"]].append(one)
        return grouped

    @cached_property
    def groups(self) -> list[tuple[Row, str]]:
        """Every arm, by a generation of it, and class, in the order of the queries."""
        found = {}
        for generation in self.generations:
            if not generation["warm_up"]:
                for scope in {generation["class"], "all"} - {None}:
                    found[generation["arm"], scope] = generation

        def order(item: tuple[tuple[str, str], Row]) -> tuple[str, int, str, bool, str]:
            (arm, scope), generation = item
            return (generation["drafter"] or "", generation["draft_length"], arm, scope == "all", scope)

        return [(generation, scope) for (_, scope), generation in sorted(found.items(), key=order)]

    def whole(self, arm: str, scope: str, timing: str) -> list[Row]:
        """The generations that count, of an arm and class."""
        return [
            g
            for g in self.generations
            if g["arm"] == arm
            and scope in (g["class"], "all")
            and g["timing"] == timing
            and not g["warm_up"]
            and g["finish_reason"] in ("stop", "length")
            and len(self.by_generation[g["generation_id"]]) == g["n_rounds"]
            and self.total([g], "committed") == g["n_committed"]
        ]

    def total(self, generations: list[Row], name: str) -> float:
        """The sum of a column over the rounds of these generations."""
        return float(sum(one[name] for g in generations for one in self.by_generation[g["generation_id"]]))

    def pairs(self, arm: str, scope: str) -> list[Pair]:
        """An arm's prompts that ordinary decoding completed too, by their repeats, in order."""
        ordinary = {
            (g["class"], g["prompt_id"], g["repeat"]): g
            for name in {g["arm"] for g in self.generations if g["drafter"] is None}
            for g in self.whole(name, scope, "fused")
        }
        found: dict[tuple[str, str], Pair] = defaultdict(Pair)
        for g in self.whole(arm, scope, "fused"):
            if (key := (g["class"], g["prompt_id"], g["repeat"])) in ordinary:
                found[key[:2]].mine.append(g)
                found[key[:2]].ordinary.append(ordinary[key])
        return [found[key] for key in sorted(found, key=lambda key: (key[0] is None, key[0] or "", key[1]))]

    def compare(self, arm: str, scope: str) -> Row:
        """Everything about an arm and class that verdict, break_even and seconds_per_token show."""
        pairs = self.pairs(arm, scope)
        t_s = [self.total(pair.mine, "t_round_ns") for pair in pairs]
        c_s = [self.total(pair.mine, "committed") for pair in pairs]
        t_o = [self.total(pair.ordinary, "t_round_ns") for pair in pairs]
        c_o = [self.total(pair.ordinary, "committed") for pair in pairs]
        mine = [g for pair in pairs for g in pair.mine]
        n, n_rounds = len(pairs), len([r for g in mine for r in self.by_generation[g["generation_id"]]])
        mean = [sum(values) / n for values in (t_o, c_o, t_s, c_s)]
        prompts = zip(t_o, c_o, t_s, c_s, strict=True)
        d = [o / mean[0] - p / mean[1] - s / mean[2] + q / mean[3] for o, p, s, q in prompts]
        per_token, ordinary = sum(t_s) / sum(c_s), sum(t_o) / sum(c_o)
        classes = [pair.mine[0]["class"] for pair in pairs]
        log_speedup, error = math.log(ordinary / per_token), find_error(d, classes)
        half, sd, lost = error.half_width(), error.value * math.sqrt(n), n - error.df
        verdict = "pays" if log_speedup > half else "loses" if log_speedup < -half else "indistinguishable"
        more = None
        drafted = self.total(mine, "proposed") > 0 or mine[0]["draft_length"] == 0
        if verdict == "indistinguishable" and log_speedup and drafted:
            more = bisect(
                range(n, n + 10_001), True, key=lambda k: t_975(k - lost) * sd / math.sqrt(k) < abs(log_speedup)
            )
            more = more if more <= 10_000 else None
        return {
            "n_prompts": n,
            "n_rounds": n_rounds,
            "mine": mine,
            "ordinary": [g for pair in pairs for g in pair.ordinary],
            "df": error.df,
            "samples": (t_s, c_s, t_o, c_o),
            "classes": classes,
            "committed": sum(c_s),
            "accepted": self.total(mine, "accepted"),
            "t": sum(t_s),
            "per_token": per_token,
            "ordinary_per_token": ordinary,
            "low": math.exp(log_speedup - half),
            "high": math.exp(log_speedup + half),
            "verdict": verdict if n >= 5 else None,
            "more": more if n >= 5 else None,
            "settles": None if more is None or n < 5 else "pays" if log_speedup > 0 else "loses",
        } | self.limit(arm, scope, mine, [g for pair in pairs for g in pair.ordinary])

    def limit(self, arm: str, scope: str, mine: list[Row], ordinary: list[Row]) -> Row:
        """What limits an arm, and the share of drafting in its rounds."""
        attributed = self.whole(arm, scope, "attributed")
        whole = self.total(attributed, "t_round_ns")
        t, c = self.total(mine, "t_round_ns"), self.total(mine, "committed")
        n_rounds = sum(g["n_rounds"] for g in mine)
        proposed = self.total(mine, "proposed")
        if not attributed:
            return {"share": None, "limited_by": None if proposed else "nothing proposed"}
        drafting = (self.total(attributed, "draft_ns") + self.total(attributed, "rewind_ns")) / whole
        verifying = (self.total(attributed, "verify_ns") + self.total(attributed, "synchronize_ns")) / whole
        step = self.total(ordinary, "t_round_ns") / sum(g["n_rounds"] for g in ordinary)
        saved = {
            "drafting": t * drafting / c,
            "verification": max(0.0, t * verifying - n_rounds * step) / c,
            "acceptance": t / c - t / (proposed + n_rounds),
        }
        best: str | None = max(saved, key=lambda name: saved[name])
        if saved[str(best)] < 0.01 * t / c:
            best = None
        if not proposed:
            best = "nothing proposed"
        return {"share": drafting, "limited_by": best if mine[0]["draft_length"] else None}

    def verdict(self, seed: int = 0, resamples: int = 2000) -> Iterator[Row]:
        """The rows of `verdict`."""
        for generation, scope in self.groups:
            if generation["drafter"] is None:
                continue
            found = self.compare(generation["arm"], scope)
            boot_low, boot_high = bootstrap(found["samples"], found["classes"], seed, resamples)
            outputs = [
                (g["equal"], bool(g.get("near_tie")))
                for g in self.generations
                if g["arm"] == generation["arm"] and scope in (g["class"], "all") and not g["warm_up"]
            ]
            equal = [one for one, _ in outputs]
            yield self.label(generation, scope) | {
                "is_exact": all(g["policy"] != "relaxed" for g in self.generations if g["arm"] == generation["arm"]),
                "n_prompts": found["n_prompts"],
                "verdict": found["verdict"],
                "speedup": found["ordinary_per_token"] / found["per_token"],
                "speedup_low": found["low"],
                "speedup_high": found["high"],
                "df": found["df"],
                "boot_low": boot_low,
                "boot_high": boot_high,
                "seconds_per_token": found["per_token"] / 1e9,
                "ordinary_seconds_per_token": found["ordinary_per_token"] / 1e9,
                "accepted_per_round": found["accepted"] / found["n_rounds"],
                "limited_by": found["limited_by"],
                "more_prompts": found["more"],
                "would_settle": found["settles"],
                "n_equal": equal.count(True),
                "n_compared": len(equal) - equal.count(None),
                "n_divergent": outputs.count((False, False)),
            }

    def seconds_per_token(self) -> Iterator[Row]:
        """The rows of `seconds_per_token`."""
        for generation, scope in self.groups:
            found = self.compare(generation["arm"], scope)
            mine, ordinary = found["mine"], found["ordinary"]
            speeds = (found["ordinary_per_token"] / found["per_token"], found["low"], found["high"])
            shown = speeds if generation["drafter"] else (None, None, None)
            yield self.label(generation, scope) | {
                "n_prompts": found["n_prompts"],
                "n_generations": len(mine),
                "n_rounds": found["n_rounds"],
                "n_tokens": found["committed"],
                "seconds_per_token": found["per_token"] / 1e9,
                "ordinary_seconds_per_token": found["ordinary_per_token"] / 1e9,
                **dict(zip(("speedup", "speedup_low", "speedup_high"), shown, strict=True)),
                "prefill_seconds": statistics.mean(g["prefill_ns"] for g in mine) / 1e9,
                "ttft_seconds": statistics.mean(g["ttft_ns"] for g in mine) / 1e9,
                "end_to_end_seconds": statistics.mean(g["total_ns"] for g in mine) / 1e9,
                "ordinary_end_to_end_seconds": statistics.mean(g["total_ns"] for g in ordinary) / 1e9,
            }

    def break_even(self) -> Iterator[Row]:
        """The rows of `break_even`."""
        for generation, scope in self.groups:
            if generation["drafter"] is None:
                continue
            found = self.compare(generation["arm"], scope)
            t, c = found["t"] / found["n_rounds"] / 1e9, found["committed"] / found["n_rounds"]
            ordinary = found["ordinary_per_token"] / 1e9
            draft = None if found["share"] is None else t * found["share"]
            yield self.label(generation, scope) | {
                "n_prompts": found["n_prompts"],
                "committed_per_round": c,
                "committed_per_round_needed": t / ordinary,
                "round_seconds": t,
                "round_seconds_dearest": c * ordinary,
                "draft_seconds": draft,
                "draft_seconds_dearest": None if draft is None else c * ordinary - (t - draft),
                "verdict": found["verdict"],
                "limited_by": found["limited_by"],
                "more_prompts": found["more"],
            }

    def survival(self) -> Iterator[Row]:
        """The rows of `survival`."""
        for generation, scope in self.groups:
            whole = self.whole(generation["arm"], scope, "fused")
            rounds = [r for g in whole for r in self.by_generation[g["generation_id"]]]
            for j in range(1, generation["draft_length"] + 1):
                judged = [r["accepted"] for r in rounds if r["proposed"] - r["cut"] >= j]
                accepted, reached = (len([a for a in judged if a >= k]) for k in (j, j - 1))
                yield self.label(generation, scope) | {
                    "position": j,
                    "n_judged": len(judged),
                    "n_accepted": accepted,
                    "survival": accepted / len(judged) if judged else None,
                    "n_reached": reached,
                    "conditional_survival": accepted / reached if reached else None,
                    "n_cut": len([r for r in rounds if r["proposed"] - r["cut"] < j <= r["proposed"]]),
                }

    def stages(self) -> Iterator[Row]:
        """The rows of `stages`."""
        for generation, scope in self.groups:
            arm = generation["arm"]
            attributed = self.whole(arm, scope, "attributed")
            rounds = [r for g in attributed for r in self.by_generation[g["generation_id"]]]
            if not rounds:
                continue
            prompts, per_token = [], []
            for timing in ("attributed", "fused"):
                prompts.append({(g["class"], g["prompt_id"]) for g in self.whole(arm, scope, timing)})
            both = prompts[0] & prompts[1]
            for timing in ("attributed", "fused"):
                on_both = [g for g in self.whole(arm, scope, timing) if (g["class"], g["prompt_id"]) in both]
                per_token.append(self.total(on_both, "t_round_ns") / self.total(on_both, "committed") / 1e9)
            whole = sum(r["t_round_ns"] for r in rounds)
            staged = {stage: sum(r[f"{stage}_ns"] for r in rounds) for stage in STAGES}
            for stage, ns in (staged | {"other": whole - sum(staged.values())}).items():
                bases = [r[f"{stage}_basis"] for r in rounds if r.get(f"{stage}_basis")]
                yield self.label(generation, scope) | {
                    "stage": stage,
                    "basis": ", ".join(sorted(set(bases))) or None,
                    "n_rounds": len(rounds),
                    "n_entered": None if stage == "other" else len(bases),
                    "seconds_per_round": ns / len(rounds) / 1e9,
                    "share": ns / whole,
                    "n_prompts": len(both),
                    "attributed_seconds_per_token": per_token[0],
                    "fused_seconds_per_token": per_token[1],
                    "observer_effect": per_token[0] / per_token[1],
                }

    def overlap(self) -> Iterator[Row]:
        """The rows of `overlap`."""
        found = []
        for generation, scope in self.groups:
            for coupling, source in (("residual", "drafter"), ("residual", "point"), ("equality", None)):
                of = [(timing, self.whole(generation["arm"], scope, timing)) for timing in ("attributed", "fused")]
                rounds = [
                    (timing, one)
                    for timing, whole in of
                    for g in whole
                    for one in self.by_generation[g["generation_id"]]
                    if one["proposed"] and (g["coupling"], one.get("q_source") or g["q_source"]) == (coupling, source)
                ]
                measured = [one for _, one in rounds if one.get("overlap") is not None]
                fused = [one for timing, one in rounds if timing == "fused"]
                judged = sum(min(one["accepted"] + 1, one["proposed"] - one["cut"]) for one in fused)
                n = sum(one["overlap_positions"] for one in measured)
                if n or judged:
                    row = self.label(generation, scope) | {
                        "coupling": coupling,
                        "q_source": source,
                        "n_judged": n,
                        "overlap": sum(one["overlap"] for one in measured) / n if n else None,
                        "accepted_share": sum(one["accepted"] for one in measured) / n if n else None,
                        "n_judged_fused": judged,
                        "accepted_share_fused": sum(one["accepted"] for one in fused) / judged if judged else None,
                    }
                    found.append(row)
        first = {"residual": 0, "equality": 1}

        def order(row: Row) -> tuple[str, int, bool, str, int, str, str]:
            place = (row["drafter"], row["draft_length"], row["class"] == "all", row["class"])
            return (*place, first[row["coupling"]], row["q_source"] or "", row["arm"])

        yield from sorted(found, key=order)

    def completeness(self) -> Iterator[Row]:
        """The rows of `completeness`, less what is about journals."""
        groups = [(generation["arm"], scope) for generation, scope in self.groups]
        for arm, scope in [*groups, ("all", "all")]:
            mine = [g for g in self.generations if arm in (g["arm"], "all") and scope in (g["class"], "all")]
            rounds = [self.by_generation[g["generation_id"]] for g in mine]
            whole = [
                g["finish_reason"] in ("stop", "length")
                and len(own) == g["n_rounds"]
                and sum(one["committed"] for one in own) == g["n_committed"]
                for g, own in zip(mine, rounds, strict=True)
            ]
            ends = [g["finish_reason"] for g in mine]
            compared = [g for g in mine if g["equal"] is not None]
            yield {
                "arm": arm,
                "class": scope,
                "n_generations": len(mine),
                "n_whole": sum(whole),
                **{f"n_{end}": ends.count(end) for end in ("cancelled", "error", "aborted", "running", "unknown")},
                "n_incomplete": ends.count("stop") + ends.count("length") - sum(whole),
                "n_warm_up": sum(g["warm_up"] for g in mine),
                "n_rounds": sum(len(own) for own in rounds),
                "n_rounds_missing": sum(g["n_rounds"] - len(own) for g, own in zip(mine, rounds, strict=True)),
                "n_levels": 0,
                "n_levels_missing": 0,
                "n_nothing_proposed": sum(
                    bool(g["draft_length"] and own and not any(one["proposed"] for one in own))
                    for g, own in zip(mine, rounds, strict=True)
                ),
                "n_compared": len(compared),
                "n_attributed": sum(g["timing"] == "attributed" for g in compared),
                "n_equal": sum(g["equal"] for g in compared),
                "n_near_ties": sum(not g["equal"] and bool(g["near_tie"]) for g in compared),
                "n_divergent": sum(not g["equal"] and not g["near_tie"] for g in compared),
                "n_sampled": sum(g["policy"] == "stochastic" for g in mine),
                "n_relaxed": sum(g["policy"] == "relaxed" for g in mine),
            }

    def label(self, generation: Row, scope: str) -> Row:
        """The columns that say which arm and class a row is about."""
        return {name: generation[name] for name in ("arm", "drafter", "draft_length")} | {"class": scope}
