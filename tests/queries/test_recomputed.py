"""Every query over rows as irregular as real ones gives what plain Python gives from the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

import queries
from tests.queries.recomputations import TWO_RUNS, recompute
from tests.queries.recompute import Recomputed
from tests.queries.recompute_runs import compare
from tests.queries.simulate import Arm, Row, Simulation, insert, open_store

ARMS = (
    Arm(),
    Arm("assistant", 4, rate=0.7, draft_ns=20_000_000),
    Arm("none", 0),
    Arm("oracle", 8, rate=1.0, draft_ns=0),
    Arm("prompt-lookup", 4, rate=0.3, rates={"copy": 0.9, "write": 0.05}, offers=0.6),
    Arm("prompt-lookup", 8, rate=0.3, rates={"copy": 0.9, "write": 0.05}, offers=0.6),
    Arm("silent", 3, offers=0.0),
)
CONTROLLED = (
    Arm("prompt-lookup", 8, rate=0.3, rates={"copy": 0.9, "write": 0.05}, offers=0.6, auto=True),
    Arm("unrivalled", 6, rate=0.4, auto=True),
)

ONE_RUN = [name for name in queries.names("speculation") if name not in (*TWO_RUNS, "ranks")]
LINES = ("n_torn_lines", "n_rejected_lines", "n_waiting_lines", "n_lost_records", "n_unassigned_lines")
RANKS = ("n_ranks", "missing_ranks")
LEFT_OUT = ("run_id", "note", *LINES, *RANKS)


def damage(generations: list[Row], rounds: list[Row]) -> None:
    """Makes the rows of a run as irregular as a real store's may be: each kind of it touches every seventh or so."""
    broken = {"cancelled", "error", "aborted", "running", "unknown"}
    for i, reason in enumerate(sorted(broken)):
        generations[20 + 7 * i]["finish_reason"] = reason
    for i, generation in enumerate(generations[70:]):
        if i % 11 == 0:
            generation["n_rounds"] += 1
        if i % 13 == 0 and not generation["warm_up"]:
            generation["equal"], generation["near_tie"] = False, i % 2 == 0
        elif i % 5 == 0:
            generation["equal"] = None
    del generations[90:95]
    known = {generation["generation_id"] for generation in generations}
    rounds[:] = [one for one in rounds if one["generation_id"] in known]


def as_rows(result: queries.Result) -> list[dict[str, Any]]:
    """Rows as `Recomputed` gives them."""
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    return [{name: value for name, value in row.items() if name not in LEFT_OUT} for row in rows]


def approximate(row: Row) -> dict[str, Any]:
    """The same row, its floats equal to any that agree in nine digits; ends of a trend's interval in six.

    Those have more than 30 degrees of freedom, where the quantile of Student's t is good to seven digits.
    """
    digits = {"change_low": 1e-6, "change_high": 1e-6}
    return {
        name: pytest.approx(v, rel=digits.get(name, 1e-9), abs=1e-15) if isinstance(v, float) else v
        for name, v in row.items()
    }


@pytest.fixture(scope="module", params=[1, 2])
def simulated(request: pytest.FixtureRequest) -> Iterator[tuple[duckdb.DuckDBPyConnection, Recomputed]]:
    """A run in a store, and recomputed: two seeds."""
    simulation = Simulation(
        n_prompts=9, arms=ARMS, repeats=2, tokens=24, noise=0.2, seed=request.param, growth=0.003 * (request.param - 1)
    )
    generations, rounds = simulation.rows()
    damage(generations, rounds)
    with open_store() as con:
        insert(con, "runs", [simulation.run_row()])
        insert(con, "generations", generations)
        insert(con, "rounds", rounds)
        forecasts, costs = list(simulation.forecasts(generations)), list(simulation.verify_costs())
        insert(con, "forecasts", forecasts)
        insert(con, "verify_costs", costs)
        yield con, Recomputed(generations, rounds, forecasts, costs, [simulation.run_row()])


@pytest.mark.parametrize("name", ONE_RUN)
def test_query_is_the_recomputed(simulated: tuple[duckdb.DuckDBPyConnection, Recomputed], name: str) -> None:
    con, recomputed = simulated
    assert as_rows(queries.run(con, name)) == [approximate(row) for row in recompute(recomputed, name)]


@pytest.mark.parametrize("name", ["break_even", "completeness", "overlap", "survival", "verdict"])
def test_rules_of_acceptance_beside_each_other(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """Couplings are neighbours in `overlap`, as are what the parts of a composed drafter draw from; a relaxed arm has
    none, and `verdict` says of it that it is not exact.
    """
    arms = (
        Arm(),
        Arm("prompt-lookup", 8, rate=0.4, policy="stochastic"),
        Arm("prompt-lookup", 8, rate=0.3, coupling="equality", policy="stochastic"),
        Arm("prompt-lookup", 8, rate=0.8, policy="relaxed"),
        Arm("prompt-lookup+ar", 4, rate=0.5, offers=0.8, policy="stochastic"),
    )
    simulation = Simulation(n_prompts=6, arms=arms, tokens=24, noise=0.2)
    simulation.fill(con)
    rows = as_rows(queries.run(con, name))
    assert rows == [approximate(row) for row in recompute(Recomputed.read(con, "run-1"), name)]
    if name == "overlap":
        assert [row["coupling"] for row in rows[:8]] == ["residual", "equality"] * 4
        assert [row["q_source"] for row in rows[8:]] == ["drafter", "point"] * 4
        assert all(row["n_judged"] and 0 < row["overlap"] < 1 for row in rows)
    if name == "verdict":
        exact = {row["arm"]: row["is_exact"] for row in rows}
        assert [arm for arm, is_exact in exact.items() if not is_exact] == ["prompt-lookup m=8 (not exact, relaxed)"]
        notes = {row[1] for row in queries.run(con, name).rows if "not exact: its output" in str(row[-1])}
        assert notes == {"prompt-lookup m=8 (not exact, relaxed)"}


@pytest.mark.parametrize("name", ["break_even_surface", "controller", "decisions", "draft_length", "verdict"])
@pytest.mark.parametrize("seed", [1, 2])
def test_query_with_controlled_arms_is_the_recomputed(con: duckdb.DuckDBPyConnection, name: str, seed: int) -> None:
    simulation = Simulation(n_prompts=6, arms=(*ARMS, *CONTROLLED), repeats=2, tokens=24, noise=0.2, seed=seed)
    generations, rounds = simulation.rows()
    damage(generations, rounds)
    insert(con, "runs", [simulation.run_row()])
    insert(con, "generations", generations)
    insert(con, "rounds", rounds)
    forecasts, costs = list(simulation.forecasts(generations)), list(simulation.verify_costs())
    insert(con, "forecasts", forecasts)
    insert(con, "verify_costs", costs)
    found = as_rows(queries.run(con, name))
    assert found == [approximate(row) for row in recompute(Recomputed(generations, rounds, forecasts, costs), name)]
    assert found


def test_two_runs_compared_are_the_recomputed(con: duckdb.DuckDBPyConnection) -> None:
    """Runs of other lengths of output, of which some prompts are not whole in one or the other."""
    data = []
    for seed in (1, 2):
        run = Simulation(run_id=f"run-{seed}", n_prompts=9, arms=ARMS, repeats=seed, tokens=24, noise=0.2, seed=seed)
        generations, rounds = run.rows()
        damage(generations, rounds)
        insert(con, "runs", [run.run_row()])
        insert(con, "generations", generations)
        insert(con, "rounds", rounds)
        data.append(Recomputed(generations, rounds))
    con.execute("update runs set max_tokens = 24")
    found = [{k: v for k, v in row.items() if not k.startswith("run_")} for row in as_rows(queries.run(con, "compare"))]
    assert found == [approximate(row) for row in compare(*data)]
    assert {row["change"] for row in found} >= {"indistinguishable", "faster"}


@pytest.mark.parametrize("singles", [["b"], ["b", "d"], ["b", None], [None, None, None]])
def test_single_prompts_of_a_class_are_the_recomputed(
    con: duckdb.DuckDBPyConnection, singles: list[str | None]
) -> None:
    """Beside two classes of several prompts: one of a single prompt, two, one and a prompt without any, and three."""
    simulation = Simulation(classes=("a", "c"), n_prompts=6, tokens=10, noise=0.3)
    simulation.fill(con)
    for i, class_ in enumerate(singles):
        con.execute("update generations set class = ? where prompt_id = ?", [class_, f"a-{i}"])
    pooled = as_rows(queries.run(con, "verdict"))[-1]
    expected = Recomputed.read(con, simulation.run_id).compare(pooled["arm"], "all")
    shown = {"speedup_low": "low", "speedup_high": "high", "more_prompts": "more"}
    names = ("n_prompts", "df", "verdict", *shown)
    assert {name: pooled[name] for name in names} == approximate({n: expected[shown.get(n, n)] for n in names})
    assert pooled["n_prompts"] == 12
    assert 1 <= pooled["df"] < 11


def test_who_proposed_is_the_recomputed(con: duckdb.DuckDBPyConnection) -> None:
    arms = (Arm(), Arm("prompt-lookup+ar", 3, rate=0.5, offers=0.8, auto=True), Arm("suffix", 2))
    simulation = Simulation(arms=arms, n_prompts=6, tokens=20, noise=0.3)
    simulation.fill(con)
    found = as_rows(queries.run(con, "drafters"))
    assert found == [approximate(row) for row in recompute(Recomputed.read(con, simulation.run_id), "drafters")]
    by_drafter = {row["drafter"]: row["proposers"] for row in found if row["class"] == "all"}
    assert by_drafter["suffix"] is None
    assert {"ar", "prompt-lookup"} == set(by_drafter["prompt-lookup+ar"].replace(",", "").split()[::2])
    chosen = as_rows(queries.run(con, "decisions"))
    assert chosen == [approximate(row) for row in recompute(Recomputed.read(con, simulation.run_id), "decisions")]
    assert {row["proposer"] for row in chosen} == {None, "ar", "prompt-lookup"}


def test_bootstrap_is_the_recomputed(con: duckdb.DuckDBPyConnection) -> None:
    simulation = Simulation(classes=("copy", "list"), n_prompts=47, tokens=10, noise=0.3)
    simulation.fill(con)
    found = as_rows(queries.run(con, "verdict", seed=7, resamples=300))
    expected = list(Recomputed.read(con, simulation.run_id).verdict(seed=7, resamples=300))
    assert found == [approximate(row) for row in expected]
    assert [row["boot_low"] is None for row in found] == [True, True, False]
    pooled = found[-1]
    assert pooled["boot_low"] == pytest.approx(pooled["speedup_low"], rel=0.05)
    assert pooled["boot_high"] == pytest.approx(pooled["speedup_high"], rel=0.05)


def test_contexts_have_a_price_where_they_have_one(simulated: tuple[duckdb.DuckDBPyConnection, Recomputed]) -> None:
    """In the second run only do rounds get dearer with the context: the slopes that are recomputed are of all kinds."""
    con, recomputed = simulated
    found = {row["position_seconds"] for row in as_rows(queries.run(con, "draft_length"))} - {None}
    if recomputed.runs[0]["seed"] == 1:
        assert 0.0 in found
    else:
        assert min(found) > 1e-4
