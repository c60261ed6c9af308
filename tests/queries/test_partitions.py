"""Every query over the archive's partitions gives what it gives from the database; ClickHouse reads them too."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import duckdb
import msgspec
import pytest

import queries
from runtime.cli.main import main
from telemetry.archive import FOLDER, MANIFESTS
from telemetry.archiving import archive_before
from telemetry.errors import UsageError
from telemetry.journal import Journal
from telemetry.records import ForecastRecord
from telemetry.schema import layouts
from telemetry.store import connect
from tests.dashboards.test_command import record, record_ncm
from tests.queries.given import ONLY_OF_SOME_RUNS
from tests.queries.simulate import Simulation
from tests.queries.simulate_ncm import NcmSimulation

KINDS = ("speculation", "ncm")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two archived stores with two runs each, by the kind of their runs."""
    found = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for run_id, seed in (("run-1", 1), ("run-2", 2)):
        simulation = Simulation(run_id=run_id, seed=seed)
        record(found["speculation"], simulation)
        with Journal(found["speculation"]) as journal:
            for forecast in simulation.forecasts(simulation.rows()[0]):
                journal.write(msgspec.convert(forecast, ForecastRecord))
        record_ncm(found["ncm"], NcmSimulation(run_id=run_id, seed=seed))
    for store in found.values():
        assert archive_before(store, date.today() + timedelta(days=2)).left == {}
    return found


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in queries.names() for kind in queries.find(name).runs]
)
def test_a_query_over_partitions_gives_what_the_database_gives(stores: dict[str, Path], name: str, kind: str) -> None:
    with duckdb.connect() as con, connect(stores[kind], queries.install_views) as connected:
        assert queries.install_tables_over(con, stores[kind] / FOLDER) == []
        assert connected.source == "database"
        latest = "run_id" if any(variable.name == "run_id" for variable in queries.find(name).variables) else "run_b"
        for run_id in (None, "run-1"):
            expected, found = (queries.run(each, name, **{latest: run_id}) for each in (connected.con, con))
            assert found.columns == expected.columns
            assert found.rows == [
                tuple(pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for v in row) for row in expected.rows
            ]
            assert expected.rows or name in ONLY_OF_SOME_RUNS or (name, run_id) == ("compare", "run-1")


@pytest.mark.parametrize("kind", KINDS)
def test_every_table_over_partitions_has_the_rows_and_types_of_the_database(stores: dict[str, Path], kind: str) -> None:
    with duckdb.connect() as con, connect(stores[kind], queries.install_views) as connected:
        queries.install_tables_over(con, stores[kind] / FOLDER)
        for table in [*(layout.name for layout in layouts()), "spans"]:
            for sql in (
                f"FROM {table} ORDER BY ALL",
                # Partitions hold as texts what is an ENUM in the database.
                f"SELECT column_name, if(column_type LIKE 'ENUM%', 'VARCHAR', column_type) FROM (DESCRIBE {table})",
            ):
                assert con.execute(sql).fetchall() == connected.con.execute(sql).fetchall()


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


@pytest.mark.parametrize(
    "arguments",
    [("report",), ("report", "survival", "--json"), ("sql", "from rounds select count(*), max(t_round_ns)", "--csv")],
    ids=" ".join,
)
def test_commands_read_the_archive_alone(
    stores: dict[str, Path], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    store = str(stores["speculation"])
    wanted = call(capsys, *arguments, "--store", store)
    assert wanted[0] == 0
    assert call(capsys, *arguments, "--store", store, "--archive-only") == wanted


def test_sql_over_the_archive_reads_no_other_file(
    stores: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "secret.csv"
    other.write_text("a\n1\n")
    code, out, err = call(
        capsys, "sql", f"from read_csv('{other}')", "--archive-only", "--store", str(stores["speculation"])
    )
    assert (code, out) == (2, "")
    assert "Permission Error" in err


def test_what_is_not_archived_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, Simulation(classes=("copy",)))
    code, _, err = call(capsys, "report", "--archive-only", "--store", str(tmp_path))
    assert (code, err) == (
        2,
        f"error: nothing is archived in {tmp_path / FOLDER}: `roundscope archive --before DATE` does\n",
    )
    with duckdb.connect() as con, pytest.raises(UsageError, match="nothing is archived"):
        queries.install_tables_over(con, tmp_path / FOLDER)


def test_a_partition_that_is_gone_is_named(tmp_path: Path) -> None:
    record(tmp_path, Simulation(classes=("copy",), run_id="run-1"))
    archive_before(tmp_path, date.today() + timedelta(days=2))
    [path] = (tmp_path / FOLDER).glob("rounds/*/*/*.parquet")
    path.unlink()
    with duckdb.connect() as con:
        [note] = queries.install_tables_over(con, tmp_path / FOLDER)
        assert note.startswith(f"{path} of the archive is missing or damaged (No such file or directory)")
        assert con.execute("SELECT count(*) FROM rounds").fetchall() == [(0,)]
    assert len(list((tmp_path / FOLDER / MANIFESTS).iterdir())) == 1


def test_clickhouse_reads_the_partitions(stores: dict[str, Path]) -> None:
    """An engine that shares nothing with DuckDB: counts, sums, lists and maps."""
    chdb = pytest.importorskip("chdb", reason="chdb is not installed; it is no dependency")
    questions = {
        "rounds": "count(*), sum(t_round_ns), sum(committed), count(DISTINCT generation_id), min(outcome)",
        "generations": "count(*), sum(prompt_tokens), max(class), sum(n_committed)",
        "runs": "count(*), max(run_id), max(started_wall_ns)",
        "journals": "count(*), sum(n_lines)",
    }
    with connect(stores["speculation"]) as connected:
        for table, wanted in questions.items():
            source = f"file('{stores['speculation'] / FOLDER / table}/run=*/day=*/*.parquet', Parquet)"
            answer = chdb.query(f"SELECT {wanted} FROM {source}", "JSONCompactEachRow")
            found = json.loads(str(answer))
            [expected] = connected.con.execute(f"SELECT {wanted} FROM {table}").fetchall()
            assert [str(value) for value in found] == [str(value) for value in expected]
