"""The files of queries/ as they stand, in a client that knows nothing of this package: a read-only store is enough."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import queries
from telemetry.store import DATABASE, load
from tests.conftest import ROOT
from tests.dashboards.test_command import record
from tests.queries.simulate import Simulation
from tests.queries.test_recomputed import ONE_RUN


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a store with two runs."""
    store = tmp_path_factory.mktemp("store")
    record(store, Simulation(run_id="run-1", seed=1))
    record(store, Simulation(run_id="run-2", seed=2))
    load(store, queries.install_views)
    return store / DATABASE


@pytest.mark.parametrize("name", ONE_RUN)
def test_a_file_runs_unchanged(database: Path, name: str) -> None:
    text = (ROOT / "queries" / f"{name}.sql").read_text(encoding="utf-8")
    with duckdb.connect(database, read_only=True) as con:
        latest = con.execute(text).fetchall()
        con.execute("set variable run_id = 'run-1'")
        first = con.execute(text).fetchall()
    with duckdb.connect(database, read_only=True) as con:
        expected = [queries.run(con, name, run_id=run_id).rows for run_id in ("run-2", "run-1")]
    for rows, wanted in zip((latest, first), expected, strict=True):
        assert rows
        assert rows == [tuple(pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for v in row) for row in wanted]


def test_two_runs_are_compared_by_the_file_as_it_stands(database: Path) -> None:
    text = (ROOT / "queries" / "compare.sql").read_text(encoding="utf-8")
    with duckdb.connect(database, read_only=True) as con:
        latest = con.execute(text).fetchall()
        con.execute("set variable run_a = 'run-2'")
        con.execute("set variable run_b = 'run-1'")
        swapped = con.execute(text).fetchall()
    assert {row[:2] for row in latest} == {("run-1", "run-2")}
    assert {row[:2] for row in swapped} == {("run-2", "run-1")}
    assert [row[7] for row in swapped] == [pytest.approx(1 / row[7], rel=1e-9) for row in latest]
