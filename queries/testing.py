"""`assert_pays`: a recorded run is as fast as a test asks, by an interval at any confidence.

The interval is the verdict's (query `verdict`), whose standard error on ln S it takes over: at 95 % the two are the
same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from queries.running import install_views, run
from queries.student import t_quantile
from telemetry.errors import UsageError
from telemetry.testing import TraceAssertionError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__tracebackhide__ = True

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """How fast an arm was beside ordinary decoding (1: as fast), and the ends of the interval that was asked for."""

    run_id: str
    arm: str
    n_prompts: int
    speedup: float
    low: float
    high: float


def assert_pays(
    store: Path | str | DuckDBPyConnection,
    min_speedup: float = 1.0,
    confidence: float = 0.95,
    *,
    arm: str | None = None,
    class_: str = "all",
    run_id: str | None = None,
) -> Measured:
    """The arm is more than `min_speedup` times as fast as ordinary decoding: its whole interval lies above. Returns it.

    store: a store, or a connection to its tables. confidence: of the two-sided interval. arm: None where the run has
    but one that drafts. class_: a class of prompts; `all` pools them. run_id: None for the latest run.

    Raises TraceAssertionError, which says what was measured; also where there is no verdict (under 5 prompts), where
    nothing was ever proposed, and where outputs are not ordinary decoding's. UsageError: there is no such run, arm or
    class, or a number makes no sense.
    """
    if not 0 < confidence < 1:
        raise UsageError(f"confidence is {confidence}; it must lie between 0 and 1, as 0.95 does")
    if not 0 < min_speedup < math.inf:
        raise UsageError(f"min_speedup is {min_speedup}; it must be above 0, as 1.2 is")
    with _open(store) as con:
        row = _find_row(_fetch(con, run_id), arm, class_)
        expected = f"{row['arm']} more than {min_speedup:g} times as fast as ordinary decoding"
        if obstacle := _find_obstacle(row):
            raise TraceAssertionError(f"expected {expected}\nfound {obstacle}\n{_say_where(row)}")
        measured = _measure(con, row, confidence)
    if measured.low <= min_speedup:
        raise TraceAssertionError(
            f"expected {expected}, at {100 * confidence:g} % confidence\n"
            f"found {measured.speedup:.3f} times, interval {measured.low:.3f} to {measured.high:.3f}: "
            f"{_judge(measured, min_speedup)}\n{_say_where(row)}"
        )
    return measured


@contextmanager
def _open(store: Path | str | DuckDBPyConnection) -> Iterator[DuckDBPyConnection]:
    if not isinstance(store, (str, Path)):
        install_views(store)
        yield store
        return
    from telemetry.store import connect

    with connect(Path(store), prepare=install_views) as connected:
        yield connected.con


def _fetch(con: DuckDBPyConnection, run_id: str | None) -> list[Row]:
    result = run(con, "verdict", run_id=run_id, resamples=1)
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def _find_row(rows: list[Row], arm: str | None, class_: str) -> Row:
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    if not arms:
        raise UsageError("the run has no arm that drafts: `roundscope run` compares some, or name another with run_id=")
    if arm is None and len(arms) > 1:
        raise UsageError(f"the run has several arms; choose one with arm=: {', '.join(arms)}")
    if arm is not None and arm not in arms:
        raise UsageError(f"the run has no arm {arm!r}; it has: {', '.join(arms)}")
    of_arm = {row["class"]: row for row in rows if row["arm"] == (arm or arms[0])}
    if class_ not in of_arm:
        raise UsageError(f"the arm ran no class {class_!r}; it ran: {', '.join(of_arm)}")
    return of_arm[class_]


def _find_obstacle(row: Row) -> str | None:
    """Why no speedup would count, whatever it is."""
    if row["n_divergent"]:
        return (
            f"{row['n_divergent']} of {row['n_compared']} outputs that are not ordinary decoding's, beyond a near tie"
        )
    if row["limited_by"] == "nothing proposed":
        return "that nothing was ever proposed"
    return None if row["verdict"] else str(row["note"] or "no verdict: nothing was measured")


def _measure(con: DuckDBPyConnection, row: Row, confidence: float) -> Measured:
    df = row["df"]
    [(t_975,)] = con.execute("SELECT t_975(?)", [df]).fetchall()
    error = math.log(row["speedup_high"] / row["speedup_low"]) / 2 / t_975
    half = t_quantile((1 + confidence) / 2, df) * error
    speedup = row["speedup"]
    return Measured(
        row["run_id"], row["arm"], row["n_prompts"], speedup, speedup * math.exp(-half), speedup * math.exp(half)
    )


def _judge(measured: Measured, min_speedup: float) -> str:
    if measured.high < min_speedup:
        return "it is slower than that"
    if measured.speedup <= min_speedup:
        return "it may be slower than that"
    return f"its lower end lies {min_speedup - measured.low:.3f} too low; more prompts would narrow it"


def _say_where(row: Row) -> str:
    tokens = "not known"
    if row["seconds_per_token"] is not None and row["ordinary_seconds_per_token"] is not None:
        mine, ordinary = (1e3 * row[name] for name in ("seconds_per_token", "ordinary_seconds_per_token"))
        tokens = f"{mine:.3g} ms, ordinary decoding {ordinary:.3g} ms"
    limit = f", limited by {row['limited_by']}" if row["limited_by"] else ""
    return f"run {row['run_id']}, class {row['class']}, {row['n_prompts']} prompts; a token takes {tokens}{limit}"
