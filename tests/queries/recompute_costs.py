"""What verification costs and what that asks of a drafter, in plain Python."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator

from tests.queries.recompute import Recomputed
from tests.queries.recompute_forecast import Price, price_verification
from tests.queries.simulate import Row


def verify_cost(data: Recomputed) -> Iterator[Row]:
    """The rows of `verify_cost`."""
    for cost in sorted(data.verify_costs, key=lambda row: (row["calibration_id"], row["context"], row["width"])):
        [step] = [
            one["verify_ns"]
            for one in data.verify_costs
            if (one["calibration_id"], one["context"], one["width"]) == (cost["calibration_id"], cost["context"], 1)
        ]
        steps = cost["verify_ns"] / step
        yield {name: cost[name] for name in ("calibration_id", "model", "dtype", "context", "width", "n")} | {
            "verify_seconds": cost["verify_ns"] / 1e9,
            "fastest_seconds": cost["fastest_ns"] / 1e9,
            "slowest_seconds": cost["slowest_ns"] / 1e9,
            "relative_to_step": steps,
            "accepted_share_needed": (steps - 1) / (cost["width"] - 1) if cost["width"] > 1 else None,
        }


def break_even_surface(data: Recomputed) -> Iterator[Row]:
    """The rows of `break_even_surface`."""
    price = price_verification(data.verify_costs)
    longest = max(row["width"] for row in data.verify_costs) - 1
    ordinary = data.compare("ordinary", "all")["per_token"]
    drafters = [(g, scope) for g, scope in data.groups if g["draft_length"] and not g["controlled"]]
    for generation, scope in sorted(drafters, key=lambda of: (of[0]["drafter"], of[0]["draft_length"])):
        yield _place(data, generation, scope, price, longest)
    for m in range(1, longest + 1):
        for cost in (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
            needed = price(m + 1) / ordinary + m * cost
            yield {
                "kind": "surface",
                "class": "all",
                "m": m,
                "draft_cost": float(cost),
                "verify_cost": price(m + 1) / ordinary,
                "committed_needed": needed,
                "iid_acceptance_needed": _find_chance(m, needed),
            } | dict.fromkeys(
                ("arm", "committed_per_round", "side", "verdict", "iid_acceptance_seen", "iid_committed", "iid_error")
            )


def _place(data: Recomputed, generation: Row, scope: str, price: Price, longest: int) -> Row:
    arm, m = generation["arm"], generation["draft_length"]
    found = data.compare(arm, scope)
    base, n_rounds = found["ordinary_per_token"], found["n_rounds"]
    rounds = [r for g in data.whole(arm, scope, "fused") for r in data.by_generation[g["generation_id"]]]
    accepted = sum(r["accepted"] for r in rounds)
    judged = accepted + sum(r["outcome"] == "correction" for r in rounds)
    seen = accepted / judged if judged else None
    proposed = data.total(found["mine"], "proposed")
    needed, committed = found["t"] / n_rounds / base, found["committed"] / n_rounds
    iid = None if seen is None else math.fsum(seen**i for i in range(m + 1))
    return {
        "kind": "drafter",
        "arm": arm,
        "class": scope,
        "m": m,
        "draft_cost": found["share"] * found["t"] / proposed / base
        if proposed and found["share"] is not None
        else None,
        "verify_cost": price(m + 1) / base if m <= longest else None,
        "committed_needed": needed,
        "committed_per_round": committed,
        "side": "pays" if committed > needed else "loses",
        "verdict": found["verdict"],
        "iid_acceptance_needed": _find_chance(m, needed),
        "iid_acceptance_seen": seen,
        "iid_committed": iid,
        "iid_error": None if iid is None else iid / committed - 1,
    }


def _find_chance(m: int, committed: float) -> float | None:
    """The chance at which 1 + a + ... + a^m is `committed`, to the 40th binary digit; 0 where less is needed than 1."""
    if committed > m + 1:
        return None
    places = range(2**40 + 1)
    place = bisect_left(places, True, key=lambda i: math.fsum((i / 2**40) ** k for k in range(m + 1)) >= committed)
    return max(place - 1, 0) / 2**40
