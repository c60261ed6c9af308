"""What every query takes on a run of a million rounds, in a database on disk as a store has it.

Half of the rounds are fused and half attributed, 48 prompts in each of eight classes by ordinary decoding and three
arms; a smaller run of the same prompts stands before it, so that there is something to compare with.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import duckdb

import queries
from telemetry.schema import create_schema
from tests.queries.simulate import Arm, Simulation

THREADS = 2
REPEATS = 3
GOAL_S = 1.0
CLASSES = ("answer", "copy", "edit", "extract", "list", "rewrite", "translate", "write")
ARMS = (
    Arm(),
    Arm("assistant", 4, rate=0.7, draft_ns=5_000_000),
    Arm("prompt-lookup", 4, rate=0.4, rates={"copy": 0.9, "write": 0.05}, offers=0.6),
    Arm("prompt-lookup", 8, rate=0.4, rates={"copy": 0.9, "write": 0.05}, offers=0.6),
)


def run() -> bool:
    """Print seconds a query, the best of some runs; True if every one keeps to the goal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "roundscope.duckdb"
        with duckdb.connect(path) as con:
            create_schema(con)
            queries.install_views(con)
            Simulation(run_id="run-1", classes=CLASSES, n_prompts=48, arms=ARMS, tokens=50, seed=1).fill(con)
            Simulation(run_id="run-2", classes=CLASSES, n_prompts=48, arms=ARMS, tokens=660, seed=2, longest=16).fill(
                con
            )
            (n,) = con.execute("select count(*) from rounds").fetchone() or (0,)
        print(f"  {n:,} rounds, {THREADS} threads; goal {GOAL_S:.1f} s a query", flush=True)
        with duckdb.connect(path, read_only=True, config={"threads": THREADS}) as con:
            times = [_time(con, name) for name in queries.names()]
    return max(times) <= GOAL_S


def _time(con: duckdb.DuckDBPyConnection, name: str) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        rows = queries.run(con, name).rows
        best = min(best, time.perf_counter() - start)
    print(f"  {name:<20} {best:6.2f} s  {len(rows):,} rows", flush=True)
    return best
