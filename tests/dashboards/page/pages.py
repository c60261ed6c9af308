"""A run with everything that a page shows, for its tests."""

from __future__ import annotations

import duckdb

from tests.queries.simulate import Arm, Simulation, insert

CLASSES = ("copy", "list", "write")
LOOKUP = Arm("prompt-lookup", 4, rate=0.5, rates={"copy": 0.9, "write": 0.05})
ASSISTANT = Arm("assistant", 4, rate=0.7, draft_ns=9_000_000)


def fill(con: duckdb.DuckDBPyConnection, **changes: object) -> None:
    """Three arms on three classes, a forecast of every ordinary output, and what verification costs."""
    simulation = Simulation(classes=CLASSES, arms=(Arm(), LOOKUP, ASSISTANT), **changes)  # type: ignore[arg-type]
    simulation.fill(con)
    ordinary = con.execute(
        "select generation_id, n_committed, prompt_tokens from generations where drafter is null and not warm_up"
    ).fetchall()
    insert(
        con,
        "forecasts",
        [
            {
                "generation_id": name,
                "journal": "a",
                "spec": LOOKUP.name,
                "longest": 8,
                "prompt_tokens": prompt,
                "offered": [min(8, n - i) for i in range(n)],
                "right": [min(i % 4, n - i) for i in range(n)],
            }
            for name, n, prompt in ordinary
        ],
    )
    insert(
        con,
        "verify_costs",
        [
            {
                "calibration_id": "c1",
                "run_id": simulation.run_id,
                "journal": "a",
                "model": "scripted",
                "dtype": "float32",
                "context": context,
                "width": width,
                "n": 5,
                "verify_ns": 1_000_000 * (9 + width) + context,
                "fastest_ns": 1_000_000 * (8 + width),
                "slowest_ns": 1_000_000 * (12 + width),
            }
            for context in (64, 1024)
            for width in (1, 2, 4, 8, 16)
        ],
    )
