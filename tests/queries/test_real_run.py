"""What a run leaves, from loop to journal to tables to queries, is what plain Python computes from the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

import queries
from runtime.experiment.execution import Execution
from runtime.experiment.plan import Plan, make_plan
from runtime.workloads import Workload
from telemetry.journal import Journal
from telemetry.recorder import Recorder
from telemetry.store import connect
from telemetry.testing import FakeClock
from tests.queries.given import ONLY_OF_SOME_RUNS
from tests.queries.recomputations import recompute
from tests.queries.recompute import Recomputed
from tests.queries.test_recomputed import ONE_RUN, approximate, as_rows
from tests.runtime.experiment.letters import make_request, make_target, make_workload
from tests.runtime.scripted import draw

DRAFTERS = ("prompt-lookup", "oracle", "wrong", "none")
LENGTHS = (1, 2, 3, 4, 6, 8)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[duckdb.DuckDBPyConnection, Recomputed]]:
    """A run of many arms on fourteen prompts whose forwards take some 10 ms, no two the same; and its rows."""
    store, clock = tmp_path_factory.mktemp("store"), FakeClock(tick_ns=1000)
    target = make_target(
        cost_ns=lambda width, context: 9_000_000 + 400_000 * width + draw(clock.monotonic_ns()) % 2_000_000,
        clock=clock,
        eos=(),
    )
    request = make_request(drafters=DRAFTERS, draft_lengths=LENGTHS, repeats=2, max_tokens=15)
    execute(store, make_plan(request, make_workload(14, classes=("x", "y")), target), target, clock)
    with connect(store, prepare=queries.install_views) as connected:
        assert (connected.source, connected.notes) == ("database", ())
        yield connected.con, Recomputed.read(connected.con, "run-1")


def execute(store: Path, plan: Plan, target: Any, clock: FakeClock) -> None:
    with Journal(store) as journal:
        Execution(plan, target, Recorder(journal, run_id="run-1", clock=clock)).run()
    assert journal.n_lost == 0


@pytest.mark.parametrize("name", ONE_RUN)
def test_query_is_the_recomputed(recorded: tuple[duckdb.DuckDBPyConnection, Recomputed], name: str) -> None:
    con, recomputed = recorded
    rows = as_rows(queries.run(con, name))
    assert rows == [approximate(row) for row in recompute(recomputed, name)]
    assert rows or name in ONLY_OF_SOME_RUNS


def test_the_bounds_are_where_they_must_be(recorded: tuple[duckdb.DuckDBPyConnection, Recomputed]) -> None:
    con, _ = recorded
    result = queries.run(con, "verdict")
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    verdicts = {row["arm"]: row["verdict"] for row in rows if row["class"] == "all"}
    assert (verdicts["oracle m=4"], verdicts["wrong m=4"]) == ("pays", "loses")
    assert {(row["n_equal"], row["n_compared"]) for row in rows if row["class"] == "all"} == {(32, 32)}


def test_predicted_rounds_are_those_that_were_run(
    recorded: tuple[duckdb.DuckDBPyConnection, Recomputed],
) -> None:
    """Every draft length that ran as an arm took the rounds, and accepted the tokens, that were predicted for it."""
    con, _ = recorded
    rows = as_rows(queries.run(con, "draft_length"))
    ran = [row for row in rows if row["measured_rounds"] is not None]
    assert {(row["drafter"], row["class"], row["m"]) for row in ran} == {
        (drafter, scope, m) for drafter in ("prompt-lookup", "oracle", "wrong") for scope in "xy" for m in LENGTHS
    } | {(drafter, "all", m) for drafter in ("prompt-lookup", "oracle", "wrong") for m in LENGTHS}
    predicted = [(row["predicted_rounds"], row["predicted_accepted"]) for row in ran]
    assert predicted == [(row["measured_rounds"], row["measured_accepted"]) for row in ran]
    assert len(set(predicted)) > len(LENGTHS)


def test_predicted_times_follow_the_context(tmp_path: Path) -> None:
    """Prompts of 12 and of 400 tokens, whose forwards take 9 or 29 ms: at one price for both a third would be wrong."""
    clock = FakeClock(tick_ns=1000)
    target = make_target(
        cost_ns=lambda width, context: 9_000_000 + 400_000 * width + 50_000 * context, clock=clock, eos=()
    )
    request = make_request(draft_lengths=(1, 2, 6), max_tokens=15)
    items = make_workload(12, classes=("short", "long")).items
    longer = {"short": 1, "long": 33}
    workload = Workload("letters", tuple(replace(i, content=str(i.content) * longer[i.class_]) for i in items))
    execute(tmp_path, make_plan(request, workload, target), target, clock)
    with connect(tmp_path, prepare=queries.install_views) as connected:
        rows = as_rows(queries.run(connected.con, "draft_length"))
    ran = [row for row in rows if row["measured_rounds"] and row["m"]]
    assert {(row["class"], row["m"]) for row in ran} == {(c, m) for c in ("short", "long", "all") for m in (1, 2, 6)}
    predicted, measured = ([row[f"{of}_seconds_per_token"] for row in ran] for of in ("predicted", "measured"))
    assert predicted == pytest.approx(measured, rel=0.01)
    assert [row["position_seconds"] for row in ran] == [pytest.approx(50e-6, rel=0.01)] * len(ran)
