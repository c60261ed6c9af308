"""Drafters side by side, in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.queries.recompute import Recomputed
from tests.queries.recompute_times import rounds_of
from tests.queries.simulate import Row


def drafters(data: Recomputed) -> Iterator[Row]:
    """The rows of `drafters`."""
    arms = [(generation, scope) for generation, scope in data.groups if generation["drafter"] is not None]
    for generation, scope in sorted(
        arms, key=lambda one: (one[1] == "all", one[1], one[0]["drafter"], one[0]["draft_length"], one[0]["arm"])
    ):
        arm = generation["arm"]
        rounds = rounds_of(data, data.whole(arm, scope, "fused"))
        attributed = rounds_of(data, data.whole(arm, scope, "attributed"))
        found = data.compare(arm, scope)
        who = Counter(one["proposer"] for one in rounds if one.get("proposer") and one["proposed"])
        yield data.label(generation, scope) | {
            "n_prompts": found["n_prompts"],
            "verdict": found["verdict"],
            "speedup": found["ordinary_per_token"] / found["per_token"],
            "speedup_low": found["low"],
            "speedup_high": found["high"],
            "seconds_per_token": found["per_token"] / 1e9,
            "ordinary_seconds_per_token": found["ordinary_per_token"] / 1e9,
            "proposed_per_round": sum(one["proposed"] for one in rounds) / len(rounds),
            "accepted_per_round": sum(one["accepted"] for one in rounds) / len(rounds),
            **{f"survival_{j}": _survive(rounds, j) for j in (1, 2, 3, 4, 8)},
            "draft_seconds_per_round": sum(one["draft_ns"] + one["rewind_ns"] for one in attributed)
            / len(attributed)
            / 1e9,
            "proposers": ", ".join(f"{name} {who[name]}" for name in sorted(who)) or None,
            "limited_by": found["limited_by"],
        }


def _survive(rounds: list[Row], j: int) -> float | None:
    judged = [one["accepted"] for one in rounds if one["proposed"] - one["cut"] >= j]
    return sum(accepted >= j for accepted in judged) / len(judged) if judged else None
