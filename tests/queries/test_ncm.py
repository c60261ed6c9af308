"""The queries about coarse-to-fine generations: beside plain Python over irregular rows, and on rows that are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import queries
from runtime.ncm import init_model
from runtime.ncm.accounting import count_once, count_payload_bytes, count_repeated
from runtime.ncm.experiment.execution import Execution
from runtime.ncm.experiment.samples import Samples, make_samples
from telemetry.fields import LevelAttention, PrefixAttention
from telemetry.journal import Journal
from telemetry.recorder import Recorder
from telemetry.store import connect
from tests.queries.recompute_ncm import RecomputedNcm
from tests.queries.simulate import Row, open_store
from tests.queries.simulate_ncm import NcmSimulation, fill
from tests.queries.test_recomputed import approximate, as_rows
from tests.runtime.ncm.experiment.tiny import make_config, plan_run

QUERIES = ("ncm_cache", "ncm_exit")
UNFINISHED = ("aborted", "cancelled", "error", "running", "unknown")


def ask(con: duckdb.DuckDBPyConnection, name: str, **wanted: Any) -> Row:
    """The one row of a query that has these values."""
    result = queries.run(con, name)
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    (row,) = [row for row in rows if wanted.items() <= row.items()]
    return row


def damage(generations: list[Row], levels: list[Row]) -> None:
    """Leaves some generations unfinished, takes levels away from others, and gives one other codes."""
    for i, reason in enumerate(UNFINISHED):
        generations[9 + 7 * i]["finish_reason"] = reason
    lost = {generations[i]["generation_id"] for i in (17, 31)}
    levels[:] = [level for level in levels if level["generation_id"] not in lost or level["level"] > 0]
    for generation in generations:
        if generation["batch_id"] == "b8" and generation["cache"]:
            generation["codes_digest"] = "other"


@pytest.fixture(scope="module", params=[1, 2])
def simulated(request: pytest.FixtureRequest) -> Iterator[tuple[duckdb.DuckDBPyConnection, RecomputedNcm]]:
    """A damaged run in a store, and recomputed: two seeds."""
    simulation = NcmSimulation(n_batches=9, batch=3, repeats=2, n_attributed=4, noise=0.3, seed=request.param)
    generations, levels = simulation.rows()
    damage(generations, levels)
    with open_store() as con:
        fill(con, simulation.run_row(), generations, levels)
        yield con, RecomputedNcm(generations, levels)


@pytest.fixture(scope="module")
def recorded(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[duckdb.DuckDBPyConnection, RecomputedNcm]]:
    """A run of a tiny model on twelve puzzles, some of which are called solved at once and the others never."""
    store = tmp_path_factory.mktemp("store")
    made = make_samples(make_config(), 12, 1)
    samples = Samples(made.name, made.conditioning, lambda _, puzzles: [puzzle[0] > 0 for puzzle in puzzles])
    with Journal(store) as journal:
        plan = plan_run(samples=samples, repeats=2)
        Execution(plan, init_model(make_config()), Recorder(journal, run_id="run-1")).run()
    with connect(store, prepare=queries.install_views) as connected:
        yield connected.con, RecomputedNcm.read(connected.con, "run-1")


@pytest.mark.parametrize("name", QUERIES)
def test_query_of_a_real_run_is_the_recomputed(
    recorded: tuple[duckdb.DuckDBPyConnection, RecomputedNcm], name: str
) -> None:
    con, recomputed = recorded
    rows = as_rows(queries.run(con, name))
    assert rows == [approximate(row) for row in getattr(recomputed, name)()]
    assert rows


def test_a_real_run_is_whole_and_its_work_is_that_of_the_formulas(
    recorded: tuple[duckdb.DuckDBPyConnection, RecomputedNcm],
) -> None:
    con, _ = recorded
    row = ask(con, "ncm_cache", level="all")
    once, repeated = count_once(make_config()), count_repeated(make_config())
    found = [row[f"{side}_{name}"] for side in ("cached", "uncached") for name in ("positions", "allowed")]
    assert found == [once.positions, once.pairs, repeated.positions, repeated.pairs]
    assert row["kv_bytes"] == row["kv_bytes_formula"] == count_payload_bytes(make_config(), 2)
    whole = ask(con, "completeness", arm="all")
    # Warm-up, six batches twice and two of them attributed, by four arms; half of the latter 56 were compared.
    assert [whole[name] for name in ("n_generations", "n_whole", "n_warm_up", "n_compared", "n_equal")] == [
        60,
        60,
        4,
        28,
        28,
    ]


@pytest.mark.parametrize("name", QUERIES)
def test_query_is_the_recomputed(simulated: tuple[duckdb.DuckDBPyConnection, RecomputedNcm], name: str) -> None:
    con, recomputed = simulated
    expected = [approximate(row) for row in getattr(recomputed, name)()]
    assert as_rows(queries.run(con, name)) == expected
    assert len(expected) > 2


def test_what_ran_is_what_the_formulas_say(con: duckdb.DuckDBPyConnection) -> None:
    NcmSimulation().fill(con)
    for level in ("0", "1", "2", "all"):
        row = ask(con, "ncm_cache", level=level)
        for name in ("positions", "allowed"):
            for side in ("cached", "uncached"):
                assert row[f"{side}_{name}"] == row[f"{side}_{name}_formula"]
    row = ask(con, "ncm_cache", level="all")
    found = [row[f"{side}_{name}"] for name in ("positions", "allowed", "computed") for side in ("cached", "uncached")]
    # P = 5, levels 1, 2 and 4: 5 + 7 and 3 x 5 + 7 positions; 25 + 35 + 21 and 3 x 25 + 35 + 21 pairs; 35 more ran.
    assert found == [12, 22, 81, 131, 81, 166]
    assert (row["kv_bytes"], row["kv_bytes_formula"]) == (2 * 2 * 2 * 5 * 8 * 4,) * 2


@pytest.mark.parametrize("prefix_attention", ["all", "units"])
@pytest.mark.parametrize("level_attention", ["all", "cells"])
def test_the_formulas_know_masks(
    prefix_attention: PrefixAttention, level_attention: LevelAttention, tmp_path: Path
) -> None:
    config = make_config(lengths=(1, 7, 9, 50, 81), prefix_attention=prefix_attention, level_attention=level_attention)
    plan = plan_run(2, config=config, exit=False)
    with Journal(tmp_path) as journal:
        Execution(plan, init_model(config), Recorder(journal, run_id="run-1")).run()
    with connect(tmp_path, prepare=queries.install_views) as connected:
        row = ask(connected.con, "ncm_cache", level="all")
        by_level = [ask(connected.con, "ncm_cache", level=str(level)) for level in range(5)]
    once, repeated = count_once(config).pairs, count_repeated(config).pairs
    assert (row["cached_allowed"], row["cached_allowed_formula"]) == (once, once)
    assert (row["uncached_allowed"], row["uncached_allowed_formula"]) == (repeated, repeated)
    for one in by_level:
        assert one["cached_allowed"] == one["cached_allowed_formula"]
        assert one["uncached_allowed"] == one["uncached_allowed_formula"]


def test_without_noise_the_speedup_is_the_ratio_of_work(con: duckdb.DuckDBPyConnection) -> None:
    NcmSimulation(noise=0.0, arms=((True, "none"), (False, "none"))).fill(con)
    row = ask(con, "ncm_cache", level="1")
    # Two samples: 2 positions each, or 7, of 10 us; and 30 us of the level beside its forward.
    assert (row["cached_seconds"], row["uncached_seconds"]) == pytest.approx((70e-6, 170e-6))
    assert (row["timing"], row["verdict"], row["n_batches"]) == ("attributed", None, 2)
    pooled = ask(con, "ncm_cache", level="all")
    assert (pooled["timing"], pooled["verdict"], pooled["n_batches"], pooled["note"]) == ("fused", "pays", 5, None)
    assert pooled["speedup_low"] == pytest.approx(pooled["speedup"]) == pytest.approx(730 / 530)
    alone = ask(con, "ncm_exit", arm="cache", against=None)
    assert (alone["generation_seconds"], alone["speedup"]) == (pytest.approx(pooled["cached_seconds"]), None)
    assert len(queries.run(con, "ncm_exit").rows) == 2


def test_other_codes_are_counted_and_said(con: duckdb.DuckDBPyConnection) -> None:
    simulation = NcmSimulation()
    generations, levels = simulation.rows()
    for generation in generations:
        if (generation["cache"], generation["batch_id"], generation["exit"]) == (True, "b3", "none"):
            generation |= {"codes_digest": "other", "equal": False, "near_tie": generation["timing"] == "attributed"}
    fill(con, simulation.run_row(), generations, levels)
    row = ask(con, "ncm_cache", level="all")
    assert (row["n_codes_equal"], row["n_codes_compared"], row["note"]) == (4, 5, "1 of 5 have other codes")
    whole = ask(con, "completeness", arm="all")
    # Five fused batches without the warm-up and two attributed ones, cached, with and without exit.
    assert (whole["n_compared"], whole["n_equal"], whole["n_divergent"]) == (14, 13, 1)


def test_every_row_says_that_the_exit_selects_other_outputs(con: duckdb.DuckDBPyConnection) -> None:
    NcmSimulation().fill(con)
    result = queries.run(con, "ncm_exit")
    at = result.columns.index("selection")
    assert [row[at] for row in result.rows] == ["the exit changes which outputs are selected"] * 7


def test_nothing_solved_has_no_price(con: duckdb.DuckDBPyConnection) -> None:
    NcmSimulation(solve_rate=0.0, leave_rate=0.0).fill(con)
    row = ask(con, "ncm_exit", arm="cache exit", against="cache")
    shown = ("verdict", "speedup", "solved_seconds", "solved_share", "levels_used", "against_levels_used")
    assert [row[name] for name in shown] == [None, None, None, 0.0, 3.0, 3.0]
    assert row["note"] == "no time per solved sample where none was solved"


def test_an_exit_that_spares_levels_pays_per_solved_sample(con: duckdb.DuckDBPyConnection) -> None:
    NcmSimulation(n_batches=12, noise=0.0, solve_rate=1.0, leave_rate=0.6, prefix_length=30).fill(con)
    row = ask(con, "ncm_exit", arm="no-cache exit", against="no-cache")
    assert (row["verdict"], row["solved_share"], row["against_levels_used"]) == ("pays", 1.0, 3.0)
    assert 1.0 < row["levels_used"] < 2.0
    assert 0.0 < row["checking_share"] < 0.5


def test_arms_without_a_partner_have_a_row_that_says_so(con: duckdb.DuckDBPyConnection) -> None:
    NcmSimulation(arms=((True, "none"),), n_attributed=0).fill(con)
    row = ask(con, "ncm_cache", level="all")
    assert (row["n_pairs"], row["verdict"], row["speedup"]) == (0, None, None)
    assert row["note"] == "no verdict under 5 batches that were completed fused, cached and uncached, here 0"
    assert [row["arm"] for row in as_rows(queries.run(con, "ncm_exit"))] == ["cache"]
    row = ask(con, "ncm_exit", arm="cache")
    assert (row["against"], row["speedup"], row["note"]) == (None, None, None)
    # Six batches of two, the first for warm-up.
    assert (row["n_generations"], row["n_batches"], row["n_samples"]) == (5, 5, 10)
    assert row["solved_share"] == row["n_solved"] / 10 > 0
    assert row["solved_seconds"] == pytest.approx(5 * row["generation_seconds"] / row["n_solved"])


def test_arms_that_nobody_checked_have_times_and_no_share(con: duckdb.DuckDBPyConnection) -> None:
    simulation = NcmSimulation(arms=((False, "none"),))
    generations, levels = simulation.rows()
    fill(con, simulation.run_row(), [generation | {"n_solved": None} for generation in generations], levels)
    row = ask(con, "ncm_exit", arm="no-cache")
    assert [row[name] for name in ("n_solved", "solved_share", "solved_seconds", "note")] == [None] * 4
    assert row["generation_seconds"] > 0


def test_attributed_times_enter_no_verdict(con: duckdb.DuckDBPyConnection) -> None:
    NcmSimulation(n_batches=0, n_attributed=8).fill(con)
    rows = {row[2]: row for row in queries.run(con, "ncm_cache").rows}
    assert sorted(rows) == ["0", "1", "2", "all"]
    assert ask(con, "ncm_cache", level="all")["n_pairs"] == 0
    assert ask(con, "ncm_cache", level="0")["n_pairs"] == 7
    alone = ask(con, "ncm_exit", arm="cache exit", against=None)
    shown = ("n_generations", "generation_seconds", "note")
    assert [alone[name] for name in shown] == [0, None, "no generation was completed fused"]


def test_unfinished_generations_are_counted_and_left_out(con: duckdb.DuckDBPyConnection) -> None:
    simulation = NcmSimulation(n_batches=10)
    generations, levels = simulation.rows()
    damage(generations, levels)
    fill(con, simulation.run_row(), generations, levels)
    row = ask(con, "completeness", arm="all")
    shown = ("n_generations", "n_whole", *(f"n_{reason}" for reason in UNFINISHED), "n_incomplete", "n_warm_up")
    assert [row[name] for name in shown] == [48, 41, 1, 1, 1, 1, 1, 2, 4]
    missing = sum(generation["n_levels"] for generation in generations) - len(levels)
    assert (row["n_levels"], row["n_levels_missing"], row["n_rounds"]) == (len(levels), missing, 0)
    assert missing > 0


def test_a_busy_machine_is_told_with_every_verdict(con: duckdb.DuckDBPyConnection) -> None:
    NcmSimulation(n_batches=8).fill(con)
    con.execute("update runs set load1 = 3.5, cores = 2, power = 'battery'")
    said = "something else was running: the load was 3.5 on 2 cores at the start; the machine ran on its battery"
    for name, verdicts in (("ncm_cache", "level"), ("ncm_exit", "against")):
        result = queries.run(con, name)
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
        told = [str(row["note"]).endswith(said) for row in rows]
        assert told == [row[verdicts] not in (None, "0", "1", "2") for row in rows]
        assert any(told)
