"""Rows with known answers: a machine that changed, two machines, one prompt, other time zones and languages."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import duckdb
import pytest

import queries
from telemetry.schema import create_schema
from tests.conftest import ROOT, child_environment
from tests.queries.given import MS, ONLY_OF_SOME_RUNS, Given, spec, step
from tests.queries.simulate import Arm, Row, Simulation, insert

LOOKUP = ("prompt-lookup", 4)


def ask(con: duckdb.DuckDBPyConnection, name: str, **variables: object) -> list[Row]:
    """The rows of a query by column name."""
    result = queries.run(con, name, **variables)
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def nearly(value: Any) -> Any:
    """The value, or a float but for its last bits: sums may be taken in another order."""
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value


def give(con: duckdb.DuckDBPyConnection, times: list[float], run_id: str = "run-1", gain: float = 2.0) -> None:
    """A prompt for every time of an ordinary step, with an arm that takes `gain` times less a token."""
    with Given(con, run_id) as given:
        for i, t in enumerate(times):
            given.add(None, f"p{i}", [step(t)] * 10)
            given.add(LOOKUP, f"p{i}", [spec(5 * t / gain, 4, 4)] * 2)


def test_a_machine_that_slowed_down_is_noted_in_the_verdict(con: duckdb.DuckDBPyConnection) -> None:
    give(con, [10 * 1.02**i for i in range(11)])
    rows = ask(con, "baseline_drift")
    assert [row["n_generations"] for row in rows] == [3, 2, 2, 2, 2]
    assert [row["first_sequence"] for row in rows] == [0, 6, 10, 14, 18]
    assert rows[0]["step_seconds"] == pytest.approx(0.01 * 1.02)
    assert rows[0]["relative_to_run"] == pytest.approx(1.02**-4)
    # A trend without noise: its interval is a point.
    assert {round(row[name], 6) for row in rows for name in ("change", "change_low", "change_high")} == {
        round(1.02**10 - 1, 6)
    }
    assert {row["drifted"] for row in rows} == {True}
    note = "the machine changed during the run: ordinary steps got 22 % slower"
    [*_, pooled] = ask(con, "verdict")
    assert note in pooled["note"]
    assert pooled["speedup"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "times",
    [
        [10 * 1.004**i for i in range(11)],  # a sure trend of 4 %
        [10, 13, 9, 14, 10, 9, 15, 11, 13, 14, 12],  # noise that ends higher than it began
    ],
)
def test_a_small_trend_and_one_that_may_be_chance_are_no_drift(
    con: duckdb.DuckDBPyConnection, times: list[float]
) -> None:
    give(con, times)
    assert {(row["drifted"], row["change"] > 0.03) for row in ask(con, "baseline_drift")} == {(False, True)}
    assert "changed" not in (ask(con, "verdict")[-1]["note"] or "")


def test_another_load_is_noted(con: duckdb.DuckDBPyConnection) -> None:
    give(con, [10, 11, 10, 11, 10])
    con.execute("update runs set load1 = 0.9")
    assert "running" not in ask(con, "verdict")[-1]["note"]
    con.execute("update runs set load1 = 1.26")
    assert "something else was running: the load was 1.3 on 2 cores at the start" in ask(con, "verdict")[-1]["note"]
    con.execute("update runs set cores = 1")
    assert "the load was 1.3 on 1 core at the start" in ask(con, "verdict")[-1]["note"]


@pytest.mark.parametrize(
    ("state", "note"),
    [
        ("power = 'battery'", "the machine ran on its battery"),
        ("power = 'mains', power_end = 'battery'", "the machine ran on its battery"),
        ("power = 'mains', power_end = 'mains'", None),
        ("throttle_count = 7, throttle_count_end = 9", "processors were slowed for heat 2 times"),
        ("throttle_count = 7, throttle_count_end = 7", None),
        ("throttle_count = 7", None),
        ("speed_limit = 100, speed_limit_end = 62", "the system allowed 62 % of the speed"),
        ("speed_limit = 100", None),
    ],
)
def test_power_and_heat_are_noted(con: duckdb.DuckDBPyConnection, state: str, note: str | None) -> None:
    give(con, [10.0] * 6)
    con.execute(f"update runs set {state}")
    unsaid = "no attributed rounds, so what limits is not known"
    assert {row["note"] for row in ask(con, "verdict")} == {"; ".join(filter(None, (unsaid, note)))}


def test_two_machines_in_one_store_are_never_mixed(con: duckdb.DuckDBPyConnection) -> None:
    """Runs by turns on a machine and one twice as fast: every run is compared with the last on its own machine."""
    for i, (host, factor) in enumerate([("here", 1.0), ("there", 0.5), ("here", 1.1), ("there", 0.55)]):
        give(con, [factor * t for t in (10, 11, 12, 13, 14)], f"run-{i}")
        con.execute("update runs set host = ? where run_id = ?", [host, f"run-{i}"])
    found = [(row["run_id"], row["host"], row["change"]) for row in ask(con, "history") if row["arm"] == "ordinary"]
    assert found == [
        ("run-3", "there", pytest.approx(0.1)),
        ("run-2", "here", pytest.approx(0.1)),
        ("run-1", "there", None),
        ("run-0", "here", None),
    ]
    assert [row["run_id"] for row in ask(con, "history", run_id="run-1")] == ["run-1", "run-1", "run-0", "run-0"]
    assert [row["speedup"] for row in ask(con, "verdict")] == [pytest.approx(2.0)] * 2
    across = ask(con, "compare")
    assert {(row["run_a"], row["run_b"], row["change"], row["differences"]) for row in across} == {
        ("run-2", "run-3", None, "host: here, then there")
    }
    assert [row["speedup_ratio"] for row in across] == [None, None, pytest.approx(1.0), pytest.approx(1.0)]
    own = ask(con, "compare", run_a="run-0", run_b="run-2")
    assert [(row["ratio"], row["change"], row["differences"]) for row in own] == [
        (pytest.approx(1.1), "slower", None)
    ] * 4


def test_ten_runs_in_one_store_do_not_touch_each_other(con: duckdb.DuckDBPyConnection) -> None:
    """Every query about one run says what it would say were it alone."""
    for i in range(10):
        Simulation(run_id=f"run-{i}", seed=i).fill(con)
    for name in ("verdict", "seconds_per_token", "survival", "stages", "break_even", "memory"):
        for i in (0, 4, 9):
            with duckdb.connect() as alone:
                create_schema(alone)
                queries.install_views(alone)
                Simulation(run_id=f"run-{i}", seed=i).fill(alone)
                expected = [{key: nearly(value) for key, value in row.items()} for row in ask(alone, name)]
                assert ask(con, name, run_id=f"run-{i}") == expected


def test_runs_that_draw_another_way_are_told_apart(con: duckdb.DuckDBPyConnection) -> None:
    """`compare` names the difference; `history` reports no change against them."""
    for i, drawn in enumerate(("null", "0.8", "0.8")):
        give(con, [10, 11, 12, 13, 14], f"run-{i}")
        con.execute(f"update generations set temperature = {drawn}, top_k = 5 where run_id = ?", [f"run-{i}"])
        con.execute("update generations set top_k = null where temperature is null")
    found = [(row["run_id"], row["change"]) for row in ask(con, "history") if row["arm"] == "ordinary"]
    assert found == [("run-2", pytest.approx(0.0)), ("run-1", None), ("run-0", None)]
    [differences] = {row["differences"] for row in ask(con, "compare", run_a="run-0", run_b="run-1")}
    assert differences == "sampling: greedy, then temperature 0.8, top-k 5"
    assert {row["differences"] for row in ask(con, "compare", run_a="run-1", run_b="run-2")} == {None}


def test_a_run_whose_own_line_is_lost_is_judged_of_no_machine(con: duckdb.DuckDBPyConnection) -> None:
    for run_id in ("run-1", "run-2"):
        give(con, [10, 11, 12, 13, 14], run_id)
    con.execute("delete from runs where run_id = 'run-1'")
    assert {(row["ratio"], row["change"], row["same_machine"]) for row in ask(con, "compare")} == {(1.0, None, None)}


def test_prompts_of_another_length_are_not_the_same(con: duckdb.DuckDBPyConnection) -> None:
    for run_id in ("run-1", "run-2"):
        give(con, [10, 11, 12], run_id)
    con.execute("update generations set prompt_tokens = 9 where run_id = 'run-2' and prompt_id = 'p0'")
    assert {row["n_prompts"] for row in ask(con, "compare")} == {2}


def test_one_prompt_gives_figures_and_no_interval(con: duckdb.DuckDBPyConnection) -> None:
    give(con, [10])
    give(con, [11], "run-2")
    insert(con, "forecasts", [forecast(con, offered=[4] * 10, right=[4] * 10)])
    for name in queries.names("speculation"):
        if name not in {*ONLY_OF_SOME_RUNS, "verify_cost", "stages"}:
            assert ask(con, name), name
    [ordinary, *_] = ask(con, "compare")
    assert (ordinary["ratio"], ordinary["ratio_low"], ordinary["change"]) == (pytest.approx(1.1), None, None)
    assert {row["change"] for row in ask(con, "baseline_drift")} == {None}
    lengths = ask(con, "draft_length", run_id="run-1")
    assert {(row["predicted_speedup_low"], row["predicted_verdict"], row["is_best"]) for row in lengths} == {
        (None, None, None)
    }


def forecast(con: duckdb.DuckDBPyConnection, offered: list[int], right: list[int]) -> Row:
    """A forecast of the first ordinary output of run-1."""
    [(generation_id,)] = con.execute(
        "select generation_id from generations where run_id = 'run-1' and drafter is null order by sequence limit 1"
    ).fetchall()
    row = {"generation_id": generation_id, "spec": "prompt-lookup", "longest": 4, "journal": "a"}
    return row | {"prompt_tokens": 1, "offered": offered, "right": right}


def test_draft_lengths_with_known_answers(con: duckdb.DuckDBPyConnection) -> None:
    """Ten tokens, the drafter right twice and then wrong: at m = 2 a round commits three; longer ones gain nothing.

    A forward takes 10 ms and 1 ms more a further position, a round nothing beside it.
    """
    with Given(con) as given:
        for i in range(5):
            given.add(None, f"p{i}", [step(10)] * 10, **{"max_tokens": 10})
            given.add(("a", 2), f"p{i}", [spec(12, 2, 2)] * 3 + [spec(10, 0, 0)], **{"max_tokens": 10})
    ids = con.execute("select generation_id from generations where drafter is null").fetchall()
    shared = {"spec": "a", "longest": 4, "journal": "a", "prompt_tokens": 1}
    right = [2, 1, 0, 2, 1, 0, 2, 1, 0, 0]
    insert(con, "forecasts", [shared | {"generation_id": g, "offered": [4] * 10, "right": right} for (g,) in ids])
    price: Row = {"calibration_id": "c", "run_id": "run-1", "journal": "a", "model": "m", "dtype": "d", "context": 5}
    for width in (1, 3, 5):
        ns = (9 + width) * MS
        times = {"verify_ns": ns, "fastest_ns": ns, "slowest_ns": ns}
        insert(con, "verify_costs", [price | {"width": width, "n": 3} | times])
    rows = [row for row in ask(con, "draft_length") if row["class"] == "all"]
    columns = ("m", "predicted_rounds", "measured_rounds", "predicted_accepted", "measured_accepted", "is_best")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        (0, 50, None, 0, None, False),
        (1, 35, None, 15, None, False),
        (2, 20, 20, 30, 30, True),
        (3, 20, None, 30, None, False),
        (4, 20, None, 30, None, False),
    ]
    # Three rounds of 12 ms, of 13, or of 14 (the third has a budget for three drafts), and a last one of one token.
    assert [row["predicted_seconds_per_token"] for row in rows[2:]] == [
        pytest.approx(t) for t in (0.0046, 0.0049, 0.0051)
    ]
    assert rows[2]["measured_seconds_per_token"] == pytest.approx(0.0046)
    assert [row["predicted_verdict"] for row in rows] == [None, *["pays"] * 4]
    assert {row["note"] for row in rows} == {None}


def test_what_was_measured_at_a_length_has_no_part_in_its_price(con: duckdb.DuckDBPyConnection) -> None:
    """Slower rounds at m = 4 leave its own prediction alone and raise those of the others; a dearer forward raises all
    that need it."""

    def predict() -> dict[int, float]:
        rows = ask(con, "draft_length")
        assert {(row["m"], row["priced_on"]) for row in rows if row["m"]} == {
            (m, "other lengths") for m in range(1, simulation.longest + 1)
        }
        return {row["m"]: row["predicted_seconds_per_token"] for row in rows if row["class"] == "all"}

    arms = (Arm(), Arm("prompt-lookup", 2, rate=0.7), Arm("prompt-lookup", 4, rate=0.7))
    simulation = Simulation(arms=arms)
    simulation.fill(con)
    before = predict()
    con.execute(
        "update rounds set t_round_ns = 3 * t_round_ns where generation_id in "
        "(select generation_id from generations where draft_length = 4)"
    )
    slower = predict()
    assert slower[4] == pytest.approx(before[4], rel=1e-9)
    assert slower[2] > 2 * before[2]
    con.execute("update verify_costs set verify_ns = 10 * verify_ns where width >= 8")
    dearer = predict()
    assert dearer[2] == pytest.approx(slower[2], rel=1e-9)
    assert dearer[7] > 1.5 * slower[7]


def test_a_single_length_is_no_check_of_its_price(con: duckdb.DuckDBPyConnection) -> None:
    Simulation().fill(con)
    rows = [row for row in ask(con, "draft_length") if row["class"] == "all" and row["m"]]
    assert {row["priced_on"] for row in rows if row["m"] == 4} == {"this length"}
    assert {row["priced_on"] for row in rows if row["m"] != 4} == {"other lengths"}


def test_zero_drafts_have_no_chance_to_be_seen(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        for i in range(5):
            given.add(None, f"p{i}", [step(10)] * 10)
            given.add(LOOKUP, f"p{i}", [spec(11, 0, 0, requested=4)] * 10)
    [row] = [row for row in ask(con, "break_even_surface") if row["class"] == "all"]
    shown = ("side", "iid_acceptance_seen", "iid_committed", "iid_error", "draft_cost", "verify_cost")
    assert [row[name] for name in shown] == ["loses", None, None, None, None, None]
    assert (row["committed_per_round"], row["committed_needed"]) == (1.0, pytest.approx(1.1))


def test_the_surface_with_known_answers(con: duckdb.DuckDBPyConnection) -> None:
    """Two positions cost 1.5 steps: m = 1 pays where half of the drafts are right, none where drafting costs half."""
    with Given(con) as given:
        for i in range(5):
            given.add(None, f"p{i}", [step(10)] * 10)
    price: Row = {"calibration_id": "c", "run_id": "run-1", "journal": "a", "model": "m", "dtype": "d", "context": 5}
    for width, t in ((1, 10), (2, 15)):
        times = {"verify_ns": t * MS, "fastest_ns": t * MS, "slowest_ns": t * MS}
        insert(con, "verify_costs", [price | {"width": width, "n": 3} | times])
    found = {row["draft_cost"]: row["iid_acceptance_needed"] for row in ask(con, "break_even_surface")}
    assert found == {cost: pytest.approx(0.5 + cost) for cost in (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)}
    con.execute("update verify_costs set verify_ns = 15100000 where width = 2")
    found = {row["draft_cost"]: row["iid_acceptance_needed"] for row in ask(con, "break_even_surface")}
    assert found[0.5] is None


SHOW = """
import queries
from tests.queries.simulate import Simulation, open_store
with open_store() as con:
    for run_id in ("run-1", "run-2"):
        Simulation(run_id=run_id, n_prompts=5, seed=int(run_id[-1])).fill(con)
    for name in queries.names("speculation"):
        print(name, queries.run(con, name))
"""


def test_rows_are_the_same_in_every_time_zone_and_language() -> None:
    def show(**settings: str) -> str:
        environment: Any = child_environment() | {"PYTHONPATH": str(ROOT)} | settings
        done = subprocess.run(
            [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, timeout=300, check=True
        )
        return done.stdout

    plain = show(TZ="UTC", LC_ALL="C.UTF-8")
    assert "2023-11-14T22:13:20Z" in plain
    assert show(TZ="Pacific/Kiritimati", LC_ALL="de_DE.UTF-8", LANG="de_DE.UTF-8") == plain
