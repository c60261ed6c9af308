"""The files of queries/ as they stand, in a client that knows nothing of this package: a read-only store is enough."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import queries
from telemetry.store import DATABASE, load
from tests.conftest import ROOT
from tests.dashboards.test_command import record, record_ncm
from tests.queries.given import ONLY_OF_SOME_RUNS
from tests.queries.simulate import Simulation
from tests.queries.simulate_ncm import NcmSimulation


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The databases of two stores with two runs each, by the kind of their runs."""
    stores = {kind: tmp_path_factory.mktemp(kind) for kind in ("speculation", "ncm")}
    for run_id, seed in (("run-1", 1), ("run-2", 2)):
        record(stores["speculation"], Simulation(run_id=run_id, seed=seed))
        record_ncm(stores["ncm"], NcmSimulation(run_id=run_id, seed=seed))
    for store in stores.values():
        load(store, queries.install_views)
    return {kind: store / DATABASE for kind, store in stores.items()}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in queries.names()
        if name not in {*ONLY_OF_SOME_RUNS, "compare"}
        for kind in queries.find(name).runs
    ],
)
def test_a_file_runs_unchanged(databases: dict[str, Path], name: str, kind: str) -> None:
    text = (ROOT / "queries" / f"{name}.sql").read_text(encoding="utf-8")
    with duckdb.connect(databases[kind], read_only=True) as con:
        latest = con.execute(text).fetchall()
        con.execute("set variable run_id = 'run-1'")
        first = con.execute(text).fetchall()
    with duckdb.connect(databases[kind], read_only=True) as con:
        expected = [queries.run(con, name, run_id=run_id).rows for run_id in ("run-2", "run-1")]
    for rows, wanted in zip((latest, first), expected, strict=True):
        assert rows
        assert rows == [tuple(pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for v in row) for row in wanted]


def test_two_runs_are_compared_by_the_file_as_it_stands(databases: dict[str, Path]) -> None:
    text = (ROOT / "queries" / "compare.sql").read_text(encoding="utf-8")
    with duckdb.connect(databases["speculation"], read_only=True) as con:
        latest = con.execute(text).fetchall()
        con.execute("set variable run_a = 'run-2'")
        con.execute("set variable run_b = 'run-1'")
        swapped = con.execute(text).fetchall()
    assert {row[:2] for row in latest} == {("run-1", "run-2")}
    assert {row[:2] for row in swapped} == {("run-2", "run-1")}
    assert [row[7] for row in swapped] == [pytest.approx(1 / row[7], rel=1e-9) for row in latest]
