"""Verdicts over rows written down by hand: what counts, what limits, what is said where there is none."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

import queries
from tests.queries.given import Given, spec, step

LOOKUP = ("prompt-lookup", 4)
PROMPTS = [f"p{i}" for i in range(6)]


def ask(
    con: duckdb.DuckDBPyConnection, *columns: str, name: str = "verdict", class_: str = "all"
) -> list[tuple[Any, ...]]:
    """These columns of the rows about a class."""
    result = queries.run(con, name)
    at = [result.columns.index(column) for column in columns]
    of = result.columns.index("class")
    return [tuple(row[i] for i in at) for row in result.rows if row[of] == class_]


def compare(con: duckdb.DuckDBPyConnection, rounds: list[dict[str, Any]], arm: tuple[str, int] = LOOKUP) -> None:
    """Six prompts of ten ordinary steps of about 10 ms, beside `rounds`, fused and attributed."""
    with Given(con) as given:
        for i, prompt in enumerate(PROMPTS):
            given.add(None, prompt, [step(10 + 0.1 * i)] * 10)
            given.add(arm, prompt, rounds)
            given.add(arm, prompt, rounds, timing="attributed")


def test_high_acceptance_and_dear_verification_loses(con: duckdb.DuckDBPyConnection) -> None:
    """Seven of ten proposed tokens are accepted, and it is twice as slow all the same: that is verification's doing."""
    compare(con, [spec(62, 3, 3, draft=2), spec(62, 3, 1, draft=2), spec(62, 3, 2, draft=2)])
    assert ask(con, "verdict", "limited_by", "accepted_per_round", "note") == [("loses", "verification", 2.0, None)]
    ((speedup,),) = ask(con, "speedup")
    assert speedup == pytest.approx(0.010250 * 9 / (3 * 0.062))


def test_dear_draft_loses(con: duckdb.DuckDBPyConnection) -> None:
    compare(con, [spec(62, 3, 3, draft=50), spec(62, 3, 1, draft=50)])
    assert ask(con, "verdict", "limited_by") == [("loses", "drafting")]


def test_wrong_draft_loses_and_its_zero_is_no_null(con: duckdb.DuckDBPyConnection) -> None:
    compare(con, [spec(14, 4, 0, draft=1)] * 10)
    assert ask(con, "verdict", "limited_by", "accepted_per_round") == [("loses", "acceptance", 0.0)]
    found = ask(con, "position", "n_judged", "survival", "n_reached", "conditional_survival", name="survival")
    assert found == [(1, 60, 0.0, 60, 0.0), *((j, 60, 0.0, 0, None) for j in (2, 3, 4))]


def test_free_oracle_pays(con: duckdb.DuckDBPyConnection) -> None:
    compare(con, [spec(11, 4, 4)] * 2, ("oracle", 4))
    assert ask(con, "verdict", "limited_by", "would_settle") == [("pays", "verification", None)]


def test_nothing_proposed_is_said(con: duckdb.DuckDBPyConnection) -> None:
    compare(con, [spec(11, 0, 0, requested=4)] * 10)
    expected = ("loses", "nothing proposed", "asked to speculate, but nothing was ever proposed")
    assert ask(con, "verdict", "limited_by", "note") == [expected]
    assert ask(con, "n_judged", "survival", "conditional_survival", name="survival") == [(0, None, None)] * 4
    assert ask(con, "n_nothing_proposed", name="completeness")[1:2] == [(12,)]


def test_an_arm_that_drafts_nothing_by_design_is_not_blamed(con: duckdb.DuckDBPyConnection) -> None:
    compare(con, [step(11)] * 10, ("none", 0))
    expected = ("loses", None, "drafts nothing: shows what the loop itself costs")
    assert ask(con, "verdict", "limited_by", "note") == [expected]


def test_under_five_prompts_there_is_no_verdict(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        for class_, prompts in (("copy", PROMPTS[:4]), ("list", PROMPTS[:1])):
            for i, prompt in enumerate(prompts):
                given.add(None, prompt, [step(10 + i)] * 5, **{"class": class_})
                given.add(LOOKUP, prompt, [spec(10, 4, 4)], **{"class": class_})
    rows = [ask(con, "n_prompts", "verdict", "speedup_low", "note", class_=name)[0] for name in ("copy", "list", "all")]
    unknown = "no attributed rounds, so what limits is not known"
    none = "no verdict under 5 prompts that both arms completed, here"
    assert [(n, verdict, note) for n, verdict, _, note in rows] == [
        (4, None, f"{none} 4; {unknown}"),
        (1, None, f"{none} 1; {unknown}"),
        (5, "pays", unknown),
    ]
    assert [low is None for _, _, low, _ in rows] == [False, True, False]


def test_an_attributed_run_has_shares_and_no_verdict(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        for prompt in PROMPTS:
            given.add(None, prompt, [step(10)] * 10)
            given.add(LOOKUP, prompt, [spec(11, 4, 4)] * 2, timing="attributed")
    note = "no verdict: attributed rounds give shares only"
    assert ask(con, "n_prompts", "verdict", "speedup", "limited_by", "note") == [(0, None, None, None, note)]
    assert len(ask(con, "share", name="stages")) == 6


def test_indistinguishable_says_what_would_settle_it(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        for i in range(8):
            given.add(None, f"p{i}", [step(10)] * 10)
            given.add(LOOKUP, f"p{i}", [spec((24, 14)[i % 2], 4, 1)] * 5)
    ((verdict, more, would, speedup),) = ask(con, "verdict", "more_prompts", "would_settle", "speedup")
    assert (verdict, would) == ("indistinguishable", "pays")
    assert speedup == pytest.approx(20 / 19)
    # The influences are -5/19 and 5/19 by turns: 1.98045 * 5/19 * sqrt(8/7) / sqrt(118) is the first below ln(20/19).
    assert more == 118 - 8


def test_what_is_equal_is_practically_equal(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        for i in range(8):
            given.add(None, f"p{i}", [step(10)] * 10)
            given.add(LOOKUP, f"p{i}", [spec((25, 15)[i % 2], 4, 1)] * 5)
            given.add(LOOKUP, f"p{i}", [spec((25, 15)[i % 2], 4, 1)] * 5, timing="attributed")
    expected = ("indistinguishable", None, None, "practically equal: 10,000 more prompts would not settle it")
    assert ask(con, "verdict", "more_prompts", "would_settle", "note") == [expected]


def test_only_whole_fused_generations_after_the_warm_up_are_figures(con: duckdb.DuckDBPyConnection) -> None:
    compare(con, [spec(11, 4, 4)] * 2)
    before = ask(con, "n_prompts", "speedup", "n_equal")
    with Given(con) as given:
        slow = [spec(1000, 4, 4)] * 2
        given.add(LOOKUP, "p0", slow, warm_up=True)
        given.add(LOOKUP, "p0", slow, timing="attributed")
        for i, reason in enumerate(("cancelled", "error", "aborted", "running", "unknown")):
            given.add(None, f"q{i}", [step(10)] * 10)
            given.add(LOOKUP, f"q{i}", slow, finish_reason=reason)
        given.add(None, "q5", [step(10)] * 10)
        given.add(LOOKUP, "q5", slow, n_rounds=3)
        given.add(None, "q6", [step(10)] * 10)
        given.add(LOOKUP, "q6", slow, n_committed=11)
        given.add(LOOKUP, "q7", slow)
        given.add(LOOKUP, "p0", slow, repeat=1)
    assert ask(con, "n_prompts", "speedup", "n_equal") == before


def test_classes_and_prompts_without_one(con: duckdb.DuckDBPyConnection) -> None:
    """A prompt without a class counts over all only, as does one of a class that is called 'all' itself."""
    with Given(con) as given:
        for i, class_ in enumerate(["copy"] * 5 + [None] * 2 + ["all"]):
            given.add(None, f"p{i}", [step(10)] * 10, **{"class": class_})
            given.add(LOOKUP, f"p{i}", [spec(11, 4, 4)] * 2, **{"class": class_})
    result = queries.run(con, "verdict")
    columns = [result.columns.index(name) for name in ("class", "n_prompts")]
    assert [tuple(row[i] for i in columns) for row in result.rows] == [("copy", 5), ("all", 8)]


def test_repeats_stay_in_their_prompt(con: duckdb.DuckDBPyConnection) -> None:
    """Twice the repeats are no more evidence if they say the same: prompts are what the interval counts."""
    for run_id, repeats in (("run-1", 1), ("run-2", 3)):
        with Given(con, run_id) as given:
            for i in range(6):
                for repeat in range(repeats):
                    given.add(None, f"p{i}", [step(10 + i)] * 10, repeat=repeat)
                    given.add(LOOKUP, f"p{i}", [spec(11, 4, 4)] * 2, repeat=repeat)
    columns = ("n_prompts", "speedup", "speedup_low", "speedup_high")
    found = ask(con, *columns)
    con.execute("set variable run_id = 'run-1'")
    assert [pytest.approx(row) for row in ask(con, *columns)] == found
    assert found[0][0] == 6


def test_outputs_that_differ_are_noted(con: duckdb.DuckDBPyConnection) -> None:
    equalities = [(True, None), (True, None), (False, True), (False, False), (None, None)]
    with Given(con) as given:
        for i, (equal, near) in enumerate(equalities):
            given.add(None, f"p{i}", [step(10)] * 10)
            given.add(LOOKUP, f"p{i}", [spec(11, 4, 4)] * 2, equal=equal, near_tie=near)
            given.add(LOOKUP, f"p{i}", [spec(11, 4, 4)] * 2, timing="attributed")
    note = "1 of 4 outputs differ from ordinary decoding beyond a near tie"
    assert ask(con, "n_equal", "n_compared", "note") == [(2, 4, note)]


def test_a_long_bad_and_a_short_good_generation_are_pooled(con: duckdb.DuckDBPyConnection) -> None:
    """Seconds over tokens of both together: the mean of their ratios would say 2.75 times as fast."""
    with Given(con) as given:
        for prompt, tokens, gain in (("long", 100, 0.5), ("short", 10, 5.0)):
            given.add(None, prompt, [step(10)] * tokens)
            given.add(("a", 4), prompt, [spec(50 / gain, 4, 4)] * (tokens // 5))
    result = queries.run(con, "verdict")
    [row] = [dict(zip(result.columns, row, strict=True)) for row in result.rows if "all" in row]
    assert row["speedup"] == pytest.approx((1100 / 110) / (2020 / 110))
