"""Which run is meant."""

from __future__ import annotations

import duckdb
import pytest

from dashboards.report import find_kind, list_runs, resolve_run
from dashboards.report.runs import list_states
from telemetry.errors import RoundscopeError, UsageError
from tests.queries.given import Given, step
from tests.queries.simulate import Simulation, insert, open_store
from tests.queries.simulate_ncm import NcmSimulation


def test_the_latest_is_meant_unless_one_is_named(con: duckdb.DuckDBPyConnection) -> None:
    for run_id in ("20240101T000000-aa", "20240102T000000-bb", "20240102T000000-bc"):
        Given(con, run_id)
    assert resolve_run(con, None) == "20240102T000000-bc"
    assert resolve_run(con, "20240101T000000-aa") == "20240101T000000-aa"
    assert resolve_run(con, "20240101") == "20240101T000000-aa"
    assert [run.run_id for run in list_runs(con)] == ["20240102T000000-bc", "20240102T000000-bb", "20240101T000000-aa"]


def test_what_is_unknown_or_unclear_is_refused_with_the_latest_runs(con: duckdb.DuckDBPyConnection) -> None:
    for i in range(7):
        Given(con, f"run-{i}")
    listed = "; ".join(f"run-{i}  2023-11-14 22:13 UTC  scripted, simulated, 18 prompts" for i in (6, 5, 4, 3, 2))
    with pytest.raises(UsageError) as unknown:
        resolve_run(con, "walk")
    assert str(unknown.value) == f"there is no run 'walk'; the latest are: {listed}"
    with pytest.raises(UsageError) as unclear:
        resolve_run(con, "run")
    assert str(unclear.value) == f"7 runs begin with 'run'; the latest are: {listed}"


def test_an_empty_store_has_no_run(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(
        RoundscopeError, match="no run is recorded in this store yet; record one: roundscope run --quick"
    ):
        resolve_run(con, None)


def test_a_run_whose_own_line_is_lost_can_be_named(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con, "run-1") as given:
        given.add(None, "p0", [step(10)])
    con.execute("delete from runs")
    assert resolve_run(con, "run-1") == "run-1"
    assert list_runs(con) == []


def test_a_run_of_the_generator_counts_and_is_known_by_its_kind(con: duckdb.DuckDBPyConnection) -> None:
    Given(con, "run-1")
    NcmSimulation(run_id="run-2").fill(con)
    assert resolve_run(con, None) == "run-2"
    assert [run.line for run in list_runs(con)] == [
        "run-2  2023-11-14 22:13 UTC  scripted, generated, 12 samples",
        "run-1  2023-11-14 22:13 UTC  scripted, simulated, 18 prompts",
    ]
    assert (find_kind(con, "run-1"), find_kind(con, "run-2")) == ("speculation", "ncm")
    con.execute("delete from runs")
    assert resolve_run(con, None) == "run-2"
    assert find_kind(con, "run-2") == "ncm"


def test_how_runs_stand(con: duckdb.DuckDBPyConnection) -> None:
    """By their outcome, else by what is known of their writer, else not at all."""
    for i, journal in enumerate(("a", "b", "c", "gone")):
        Given(con, f"run-{i}")
        con.execute("update runs set journal = ?, outcome = null where run_id = ?", [journal, f"run-{i}"])
    counts = {"bytes_read": 0, "fingerprint": 0, "n_lines": 0, "n_torn": 0, "n_rejected": 0, "n_lost": 0}
    writers = (("a", "running"), ("b", "ended"), ("c", "unknown"))
    insert(con, "journals", [{"journal": journal, "writer": writer, **counts} for journal, writer in writers])
    Given(con, "run-4")
    states, n_runs = list_states(con, 4)
    assert n_runs == 5
    assert [(run.run_id, run.state) for run in states] == [
        ("run-4", "complete"),
        ("run-3", "not known: its line is lost"),
        ("run-2", "not known: another machine writes it"),
        ("run-1", "broken off"),
    ]
    assert list_states(con, 5)[0][-1].state == "going on"
    assert {(run.kind, run.model, run.started and run.started.isoformat()) for run in states} == {
        ("speculation", "scripted", "2023-11-14T22:13:20+00:00")
    }


def test_an_empty_id_is_refused() -> None:
    with open_store() as con:
        Simulation().fill(con)
        with pytest.raises(UsageError, match="the run's id is empty: give the beginning of one, or leave it out"):
            resolve_run(con, "")
