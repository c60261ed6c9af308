"""Rows written down by hand: rounds in milliseconds, everything else as plain as it can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from tests.queries.simulate import Row, Simulation, insert

MS = 1_000_000

ONLY_OF_SOME_RUNS = frozenset({"controller", "decisions", "overlap", "ranks"})
"""Queries without rows for a plain run: of controlled arms, of arms at a temperature, of distributed runs."""


def step(t: float) -> Row:
    """A round of ordinary decoding that takes `t` milliseconds."""
    return spec(t, 0, 0)


def spec(
    t: float, proposed: int, accepted: int, *, draft: float = 0, cut: int = 0, requested: int | None = None
) -> Row:
    """A round of `t` milliseconds, `draft` of them for drafting and the rest for verification; `cut` > 0: it stops."""
    outcome = "stop" if cut else "step" if not proposed else "correction" if accepted < proposed else "bonus"
    return {
        "t_round_ns": int(t * MS),
        "requested": proposed if requested is None else requested,
        "proposed": proposed,
        "accepted": accepted,
        "committed": accepted + (outcome != "stop"),
        "cut": cut,
        "outcome": outcome,
        "width": proposed + 1,
        "processed": 0,
        "syncs": 1,
        "cache_length": 1,
        "trim_way": "none",
        "replayed": 0,
        "rewind_way": "none",
        "draft_ns": int(draft * MS),
        "draft_basis": "host" if draft else None,
        "verify_ns": int((t - draft) * MS),
        "verify_basis": "barrier",
        "synchronize_ns": 0,
        "trim_ns": 0,
        "rewind_ns": 0,
    }


class Given:
    """A run, new or begun before, whose generations are given one by one; they are in the store after `with`.

    The journal's name is `a`.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, run_id: str = "run-1") -> None:
        self.con = con
        self.run_id = run_id
        (self.n,) = con.execute("select count(*) from generations").fetchone() or (0,)
        self.generations: list[Row] = []
        self.rounds: list[Row] = []
        if not con.execute("select 1 from runs where run_id = ?", [run_id]).fetchone():
            insert(con, "runs", [Simulation(run_id=run_id).run_row() | {"journal": "a"}])

    def add(self, arm: tuple[str, int] | None, prompt: str, rounds: Sequence[Row], **changes: Any) -> None:
        """One generation of an arm (drafter and draft length; None: ordinary decoding); `changes` go into its row."""
        drafter, length = arm or (None, 0)
        generation_id = f"{self.run_id}-{self.n}"
        row = {
            "generation_id": generation_id,
            "run_id": self.run_id,
            "journal": "a",
            "arm": f"{drafter} m={length}" if drafter else "ordinary",
            "drafter": drafter,
            "draft_length": length,
            "pipelined": drafter is None,
            "timing": "fused",
            "model": "scripted",
            "prompt_id": prompt,
            "class": "copy",
            "repeat": 0,
            "sequence": self.n,
            "warm_up": False,
            "prompt_tokens": 1,
            "cached_tokens": 0,
            "max_tokens": 1000,
            "n_processors": 0,
            "started_wall_ns": 0,
            "started_monotonic_ns": 0,
            "finish_reason": "length",
            "n_rounds": len(rounds),
            "n_committed": sum(one["committed"] for one in rounds),
            "prefill_ns": 30 * MS,
            "ttft_ns": 30 * MS + (rounds[0]["t_round_ns"] if rounds else 0),
            "total_ns": 31 * MS + sum(one["t_round_ns"] for one in rounds),
        }
        self.generations.append(row | changes)
        for index, one in enumerate(rounds):
            self.rounds.append(one | {"generation_id": generation_id, "index": index, "start_ns": 0})
        self.n += 1

    def __enter__(self) -> Given:
        return self

    def __exit__(self, *_: object) -> None:
        insert(self.con, "generations", self.generations)
        insert(self.con, "rounds", self.rounds)
