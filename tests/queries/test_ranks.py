"""The query `ranks`, and what a report says of it, over rows written down by hand."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

import queries
from dashboards.report.ranks import say_missing, say_ranks
from tests.queries.given import MS, Given, spec, step
from tests.queries.simulate import Row, insert

LOOKUP = ("prompt-lookup", 4)


def rank(number: int, finish: str = "complete", n_generations: int = 2, **changes: Any) -> Row:
    """A row of `ranks` on host h0, h1, ..., with two prompts."""
    row = {
        "run_id": "run-1",
        "rank": number,
        "size": 3,
        "host": f"h{number}",
        "pid": 1,
        "backend": "ring",
        "n_prompts": 2,
        "started_wall_ns": 0,
        "offset_ns": 0,
        "uncertainty_ns": 0,
        "finish_reason": finish,
        "n_generations": n_generations,
        "journal": "a",
    }
    return row | changes


def ask(con: duckdb.DuckDBPyConnection, name: str = "ranks") -> list[Row]:
    """The rows of a query."""
    result = queries.run(con, name)
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def fill(con: duckdb.DuckDBPyConnection) -> None:
    """Two of three ranks: 0 did a prompt by both arms and one by one arm, 1 is faster and has died."""
    with Given(con) as given:
        given.add(None, "p0", [step(1)], rank=0, warm_up=True)
        given.add(None, "p0", [step(10), step(20)], rank=0)
        given.add(LOOKUP, "p0", [spec(30, 4, 2)], rank=0, equal=True)
        given.add(LOOKUP, "p0", [spec(90, 4, 2)], rank=0, timing="attributed")
        given.add(None, "p1", [step(10)], rank=0)
        given.add(None, "p2", [step(5)], rank=1)
        given.add(LOOKUP, "p2", [spec(5, 4, 4)], rank=1, finish_reason="aborted", n_rounds=None)


def test_every_rank_that_the_run_began_with_has_a_row(con: duckdb.DuckDBPyConnection) -> None:
    fill(con)
    insert(con, "ranks", [rank(0, n_generations=5), rank(1, "aborted", n_generations=None)])
    first, second, third = ask(con)
    assert first == {
        "run_id": "run-1",
        "rank": 0,
        "host": "h0",
        "finish": "complete",
        "is_whole": True,
        "n_prompts": 2,
        "n_prompts_done": 1,
        "n_generations": 5,
        "n_rounds": 6,
        "n_committed": 10,
        "seconds_per_token": pytest.approx(0.070 / 6),
        "ordinary_seconds_per_token": pytest.approx(0.040 / 3),
        "median_round_seconds": pytest.approx(0.015),
        "longest_round_seconds": pytest.approx(0.030),
        "offset_seconds": 0.0,
        "uncertainty_seconds": 0.0,
        "skew_in_median_rounds": 0.0,
        "skew_in_longest_rounds": 0.0,
        "skew_exceeds_round": False,
    }
    assert (second["finish"], second["is_whole"], second["n_prompts_done"], second["n_committed"]) == (
        "aborted",
        False,
        0,
        6,
    )
    assert {name: value for name, value in third.items() if value is not None} == {
        "run_id": "run-1",
        "rank": 2,
        "finish": "absent",
        "is_whole": False,
        "n_prompts_done": 0,
        "n_generations": 0,
        "n_rounds": 0,
        "n_committed": 0,
    }
    whole = ask(con, "completeness")[-1]
    assert (whole["n_ranks"], whole["missing_ranks"]) == (3, "1 (aborted), 2 (absent)")
    assert {row["missing_ranks"] for row in ask(con, "completeness")[:-1]} == {None}
    assert list(say_ranks([first, second, third])) == [
        ("Distributed: 1 of 3 ranks complete, on 2 hosts (h0, h1).", False),
        ("Rank 1 on h1: its process died (aborted), 0 of its 2 prompts done.", True),
        ("Rank 2: it left no record in this store.", True),
    ]


def test_a_rank_of_which_a_generation_is_missing_is_not_whole(con: duckdb.DuckDBPyConnection) -> None:
    fill(con)
    insert(con, "ranks", [rank(0, n_generations=6, size=1)])
    assert say_missing(ask(con)) == "rank 0 on h0: some of its records are missing, 1 of its 2 prompts done"
    assert ask(con, "completeness")[-1]["missing_ranks"] == "0 (records missing)"


def test_a_run_that_was_not_distributed_has_no_ranks(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        given.add(None, "p0", [step(10)])
    insert(con, "ranks", [rank(0, run_id="run-0")])
    assert ask(con) == []
    assert list(say_ranks([])) == []
    whole = ask(con, "completeness")[-1]
    assert (whole["n_ranks"], whole["missing_ranks"]) == (0, None)


@pytest.mark.parametrize(
    ("offset", "uncertainty", "exceeds"),
    [(25, 4, True), (-25, 4, True), (25, 6, False), (-20, 0, False), (0, 100, False)],
)
def test_a_skew_is_told_where_it_is_certainly_more_than_a_median_round(
    con: duckdb.DuckDBPyConnection, offset: int, uncertainty: int, exceeds: bool
) -> None:
    with Given(con) as given:
        given.add(None, "p0", [step(10), step(20), step(50)], rank=0)
        given.add(None, "p1", [step(10), step(20), step(50)], rank=1)
    moved = {"offset_ns": offset * MS, "uncertainty_ns": uncertainty * MS}
    insert(con, "ranks", [rank(0, size=2, n_generations=1), rank(1, size=2, n_generations=1, **moved)])
    [_, row] = found = ask(con)
    assert (row["skew_in_median_rounds"], row["skew_in_longest_rounds"]) == (abs(offset) / 20, abs(offset) / 50)
    assert row["skew_exceeds_round"] == exceeds
    ahead = "ahead of" if offset > 0 else "behind"
    told = [text for text, is_warning in say_ranks(found) if is_warning]
    assert [text[: text.index(")") + 1] for text in told] == [
        f"The clock of rank 1 on h1 is 25.0 ms {ahead} rank 0's (give or take 4.00 ms)"
    ] * exceeds


def test_drift_is_judged_within_ranks(con: duckdb.DuckDBPyConnection) -> None:
    """A fast rank with a short order and a slow one with a long order: no machine has changed."""
    with Given(con) as given:
        for i in range(40):
            slow = i >= 12
            given.add(
                None,
                f"p{i}",
                [step((30 if slow else 10) + 0.1 * (i % 3))],
                rank=int(slow),
                sequence=i % 12 if not slow else i - 12,
            )
    assert {row["drifted"] for row in ask(con, "baseline_drift")} == {False}
    con.execute("update generations set rank = null")
    assert {row["drifted"] for row in ask(con, "baseline_drift")} == {True}
