"""A run with everything that a page shows, for its tests."""

from __future__ import annotations

import duckdb

from tests.queries.simulate import Arm, Simulation

CLASSES = ("copy", "list", "write")
LOOKUP = Arm("prompt-lookup", 4, rate=0.5, rates={"copy": 0.9, "write": 0.05})
ASSISTANT = Arm("assistant", 4, rate=0.7, draft_ns=9_000_000)


def fill(con: duckdb.DuckDBPyConnection, **changes: object) -> None:
    """Three arms on three classes, a forecast of every ordinary output, and what verification costs."""
    Simulation(classes=CLASSES, arms=(Arm(), LOOKUP, ASSISTANT), **changes).fill(con)  # type: ignore[arg-type]
