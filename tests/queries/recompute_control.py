"""What controllers chose and what it cost, in plain Python."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from tests.queries.recompute import Recomputed
from tests.queries.recompute_times import rounds_of
from tests.queries.simulate import Row


def controller(data: Recomputed) -> Iterator[Row]:
    """The rows of `controller`."""
    for generation, scope in data.groups:
        if not generation["controlled"]:
            continue
        found = data.compare(generation["arm"], scope)
        rounds = rounds_of(data, data.whole(generation["arm"], scope, "fused"))
        by_reason = defaultdict(list)
        for one in rounds:
            by_reason[one["reason"]].append(one)
        proposing = [one["proposed"] for one in rounds if one["proposed"]]
        total, probes = sum(one["t_round_ns"] for one in rounds), sum(one["t_round_ns"] for one in by_reason["probe"])
        lost = sum(one["t_round_ns"] - one["committed"] * found["ordinary_per_token"] for one in by_reason["probe"])
        told = [one for one in rounds if one["expected_ns"] is not None and (one["proposed"] or not one["requested"])]
        yield (
            data.label(generation, scope)
            | {
                "n_prompts": found["n_prompts"],
                "n_rounds": len(rounds),
                "share_of_steps": (len(rounds) - len(proposing)) / len(rounds),
                "mean_proposed": sum(proposing) / len(proposing),
                "n_prior": sum(one["proposed"] > 0 for one in by_reason["prior"]),
                "n_probes": len(by_reason["probe"]),
                "n_budget": len(by_reason["budget"]),
                "n_landings": len(by_reason["landing"]),
                "probe_seconds": probes / 1e9,
                "probing_share": probes / total,
                "probing_lost_share": lost / total,
                "expected_over_measured": sum(one["expected_ns"] * one["committed"] for one in told)
                / sum(one["t_round_ns"] for one in told),
                "seconds_per_token": found["per_token"] / 1e9,
                "ordinary_seconds_per_token": found["ordinary_per_token"] / 1e9,
            }
            | _find_best_fixed(data, generation, scope, found["per_token"])
        )


def _find_best_fixed(data: Recomputed, generation: Row, scope: str, per_token: float) -> Row:
    rivals = {
        g["arm"]: data.compare(g["arm"], scope)["per_token"]
        for g, its_scope in data.groups
        if its_scope == scope and not g["controlled"] and _name(g) in ("ordinary", _name(generation))
    }
    if set(rivals) == {"ordinary"}:
        return dict.fromkeys(("best_fixed", "best_fixed_seconds_per_token", "regret"))
    best = min(rivals, key=lambda arm: rivals[arm])
    return {
        "best_fixed": best,
        "best_fixed_seconds_per_token": rivals[best] / 1e9,
        "regret": per_token / rivals[best] - 1,
    }


def _name(generation: Row) -> str:
    return re.sub(r" m=(auto|\d+)", "", generation["arm"])


def decisions(data: Recomputed) -> Iterator[Row]:
    """The rows of `decisions`."""
    for generation, scope in data.groups:
        if not generation["controlled"]:
            continue
        found: dict[tuple[int, int, str], list[Row]] = defaultdict(list)
        for whole in data.whole(generation["arm"], scope, "fused"):
            before = 0
            for one in sorted(data.by_generation[whole["generation_id"]], key=lambda row: row["index"]):
                key = 1 + 4 * before // whole["n_committed"], one["requested"], one.get("proposer") or ""
                found[key].append(one)
                before += one["committed"]
        for (quarter, m, proposer), rounds in sorted(found.items()):
            label = data.label(generation, scope)
            del label["draft_length"]
            yield label | {
                "quarter": quarter,
                "m": m,
                "proposer": proposer or None,
                "n_rounds": len(rounds),
                "share": len(rounds) / sum(len(them) for (its, *_), them in found.items() if its == quarter),
                "n_empty": sum(one["proposed"] == 0 for one in rounds) if m else 0,
                "accepted_per_round": sum(one["accepted"] for one in rounds) / len(rounds),
            }
