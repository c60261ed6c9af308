"""Completeness, survival, stages, seconds per token and break-even, over rows written down by hand."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

import queries
from tests.queries.given import MS, Given, spec, step
from tests.queries.simulate import Row, insert

LOOKUP = ("prompt-lookup", 4)


def ask(con: duckdb.DuckDBPyConnection, name: str, arm: str, class_: str = "all") -> list[Row]:
    """The rows about an arm and class, less what says which."""
    result = queries.run(con, name)
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    return [
        {key: value for key, value in row.items() if key not in LABELS}
        for row in rows
        if (row["arm"], row["class"]) == (arm, class_)
    ]


LABELS = ("run_id", "arm", "drafter", "draft_length", "class", "n_prompts")
ARM = "prompt-lookup m=4"


def test_completeness_counts_what_is_there_and_what_is_not(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        given.add(None, "p0", [step(10)] * 3, warm_up=True)
        given.add(None, "p0", [step(10)] * 3)
        given.add(LOOKUP, "p0", [spec(10, 4, 2)] * 2, equal=True)
        given.add(LOOKUP, "p1", [spec(10, 4, 2)] * 2, equal=False, near_tie=True)
        given.add(LOOKUP, "p2", [spec(10, 4, 2)] * 2, equal=False, near_tie=False, **{"class": "list"})
        given.add(LOOKUP, "p3", [spec(10, 0, 0, requested=4)] * 2)
        given.add(LOOKUP, "p4", [spec(10, 4, 2)] * 2, n_rounds=5)
        for reason in ("cancelled", "error", "aborted", "running", "unknown"):
            given.add(LOOKUP, "p5", [], finish_reason=reason, n_rounds=None)
    with Given(con, "run-0") as other:
        other.add(None, "p0", [step(10)] * 3)
    whole = {"n_torn": 0, "n_rejected": 0, "n_lost": 0, "bytes_read": 0, "fingerprint": 0, "n_lines": 0}
    journals = [
        {"journal": "a", "writer": "ended"} | whole | {"n_torn": 1, "n_rejected": 2, "n_lost": 3},
        {"journal": "b", "writer": "ended"} | whole | {"n_torn": 4, "n_rejected": 5, "n_lost": 6},
    ]
    insert(con, "journals", journals)
    insert(con, "waiting", [{"journal": "a", "line": 9, "type": "run_end", "record": "{}"}])
    lines = ("n_torn_lines", "n_rejected_lines", "n_waiting_lines", "n_lost_records", "n_unassigned_lines")
    ranks = {"n_ranks": 0, "missing_ranks": None}
    ends = dict.fromkeys(("n_cancelled", "n_error", "n_aborted", "n_running", "n_unknown"), 0)
    none = dict.fromkeys(("n_incomplete", "n_warm_up", "n_rounds_missing", "n_nothing_proposed"), 0) | dict.fromkeys(
        (
            "n_levels",
            "n_levels_missing",
            "n_compared",
            "n_attributed",
            "n_equal",
            "n_near_ties",
            "n_divergent",
            "n_sampled",
            "n_relaxed",
        ),
        0,
    )
    unsaid = dict.fromkeys((*lines, *ranks))
    assert ask(con, "completeness", "ordinary") == [
        {"n_generations": 2, "n_whole": 2, "n_rounds": 6} | ends | none | unsaid | {"n_warm_up": 1}
    ]
    of_list = {"n_generations": 1, "n_whole": 1, "n_rounds": 2, "n_compared": 1, "n_divergent": 1}
    assert ask(con, "completeness", ARM, "list") == [ends | none | unsaid | of_list]
    of_arm = dict.fromkeys(ends, 1) | {
        "n_generations": 10,
        "n_whole": 4,
        "n_incomplete": 1,
        "n_warm_up": 0,
        "n_rounds": 10,
        "n_rounds_missing": 3,
        "n_levels": 0,
        "n_levels_missing": 0,
        "n_nothing_proposed": 1,
        "n_compared": 3,
        "n_attributed": 0,
        "n_equal": 1,
        "n_near_ties": 1,
        "n_divergent": 1,
        "n_sampled": 0,
        "n_relaxed": 0,
    }
    assert ask(con, "completeness", ARM) == [of_arm | unsaid]
    of_run = {"n_generations": 12, "n_whole": 6, "n_rounds": 16, "n_warm_up": 1}
    assert ask(con, "completeness", "all") == [of_arm | of_run | ranks | dict(zip(lines, (1, 2, 1, 3, 9), strict=True))]


def test_completeness_of_an_empty_store_is_nothing_and_no_null(con: duckdb.DuckDBPyConnection) -> None:
    ((run_id, arm, class_, *counts),) = queries.run(con, "completeness").rows
    assert (run_id, arm, class_) == (None, "all", "all")
    assert counts == [0] * (len(counts) - 1) + [None]


def test_a_run_whose_own_line_is_lost_is_there_all_the_same(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        given.add(None, "p0", [step(10)])
    con.execute("delete from runs")
    assert [row[0] for row in queries.run(con, "completeness").rows] == ["run-1"] * 3


def test_cut_tokens_are_not_judged(con: duckdb.DuckDBPyConnection) -> None:
    """The end came at the second of four: the third and fourth say nothing about the drafter."""
    with Given(con) as given:
        given.add(LOOKUP, "p0", [spec(10, 4, 3), spec(10, 4, 0), spec(10, 4, 2, cut=2)])
        given.add(LOOKUP, "p1", [spec(10, 2, 2)])
        given.add(LOOKUP, "p2", [spec(10, 4, 4)], finish_reason="aborted")
    columns = ("position", "n_judged", "n_accepted", "n_reached", "n_cut", "survival", "conditional_survival")
    found = [tuple(row[name] for name in columns) for row in ask(con, "survival", ARM)]
    assert found == [
        (1, 4, 3, 4, 0, 0.75, 0.75),
        (2, 4, 3, 3, 0, 0.75, 1.0),
        (3, 2, 1, 1, 1, 0.5, 1.0),
        (4, 2, 0, 1, 1, 0.0, 0.0),
    ]


def test_stages_are_shares_of_attributed_rounds_beside_the_observer_effect(con: duckdb.DuckDBPyConnection) -> None:
    attributed = [spec(25, 4, 4, draft=5), spec(25, 4, 0, draft=10) | {"trim_ns": 3 * MS, "trim_basis": "host"}]
    attributed[1]["verify_ns"] -= 5 * MS
    attributed[0]["draft_basis"] = "barrier"
    with Given(con) as given:
        given.add(LOOKUP, "p0", attributed, timing="attributed")
        given.add(LOOKUP, "p0", [spec(20, 4, 4)] * 2)
        given.add(LOOKUP, "p1", [spec(1000, 4, 4)])
    rows = ask(con, "stages", ARM)
    shown = ("stage", "basis", "n_entered", "seconds_per_round", "share")
    assert [tuple(row.pop(name) for name in shown) for row in rows] == [
        ("draft", "barrier, host", 2, 0.0075, 0.3),
        ("verify", "barrier", 2, 0.015, 0.6),
        ("synchronize", None, 0, 0.0, 0.0),
        ("trim", "host", 1, 0.0015, 0.06),
        ("rewind", None, 0, 0.0, 0.0),
        ("other", None, None, 0.001, 0.04),
    ]
    per_token = {"attributed_seconds_per_token": 0.05 / 6, "fused_seconds_per_token": 0.004}
    assert rows == [{"n_rounds": 2, **per_token, "observer_effect": pytest.approx(0.05 / 6 / 0.004)}] * 6


def test_tokens_cost_what_rounds_took_and_prefill_stands_apart(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        for prompt in ("p0", "p1"):
            given.add(None, prompt, [step(10)] * 10)
        given.add(LOOKUP, "p0", [spec(20, 4, 4)] * 2)
    (row,) = ask(con, "seconds_per_token", ARM)
    expected: dict[str, Any] = {
        "n_generations": 1,
        "n_rounds": 2,
        "n_tokens": 10,
        "seconds_per_token": 0.004,
        "ordinary_seconds_per_token": 0.01,
        "speedup": 2.5,
        "speedup_low": None,
        "speedup_high": None,
        "prefill_seconds": 0.03,
        "ttft_seconds": 0.05,
        "end_to_end_seconds": 0.071,
        "ordinary_end_to_end_seconds": 0.131,
    }
    assert row == expected
    (ordinary,) = ask(con, "seconds_per_token", "ordinary")
    its_own = {"n_generations": 2, "n_rounds": 20, "n_tokens": 20, "seconds_per_token": 0.01, "speedup": None}
    assert ordinary == expected | its_own | {"ttft_seconds": 0.04, "end_to_end_seconds": 0.131}


def test_break_even_says_how_far_it_is(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        for prompt in ("p0", "p1", "p2", "p3", "p4"):
            given.add(None, prompt, [step(10)] * 10)
            for timing in ("fused", "attributed"):
                given.add(LOOKUP, prompt, [spec(40, 4, 1, draft=10)] * 5, timing=timing)
    assert ask(con, "break_even", ARM) == [
        {
            "committed_per_round": 2.0,
            "committed_per_round_needed": pytest.approx(4.0),
            "round_seconds": 0.04,
            "round_seconds_dearest": pytest.approx(0.02),
            "draft_seconds": pytest.approx(0.01),
            "draft_seconds_dearest": pytest.approx(-0.01),
            "verdict": "loses",
            "limited_by": "acceptance",
            "more_prompts": None,
        }
    ]
