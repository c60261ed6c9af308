"""`roundscope report` on stores as runs leave them: what is printed where, and the exit codes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import msgspec
import pytest

import queries
from runtime.cli.main import main
from runtime.cli.report import command
from telemetry.journal import Journal
from telemetry.ledger import Ledger
from telemetry.ncm_records import LevelRecord, NcmComparison, NcmEnd, NcmRecord
from telemetry.records import (
    ComparisonRecord,
    GenerationEnd,
    GenerationRecord,
    RoundRecord,
    RunEnd,
    RunRecord,
    VerifyCostRecord,
)
from tests.conftest import run_python
from tests.queries.given import ONLY_OF_SOME_RUNS
from tests.queries.simulate import Simulation
from tests.queries.simulate_ncm import NcmSimulation
from tests.telemetry.stores import generation, generation_end, header, run, write_lines


def record(store: Path, simulation: Simulation) -> None:
    """Leaves the journal of a simulated run in a store."""
    with Journal(store) as journal:
        run = simulation.run_row()
        journal.write(msgspec.convert(run, RunRecord))
        for generation, rounds in simulation.generations():
            journal.write(msgspec.convert(generation, GenerationRecord))
            for one in rounds:
                journal.write(msgspec.convert(one, RoundRecord))
            journal.write(msgspec.convert(generation, GenerationEnd))
            if generation["equal"] is not None:
                pair = {"generation_id": generation["generation_id"], "pair_id": "0" * 32, "equal": True}
                journal.write(msgspec.convert(pair, ComparisonRecord))
        for cost in simulation.verify_costs():
            journal.write(msgspec.convert(cost, VerifyCostRecord))
        journal.write(msgspec.convert(run, RunEnd))


def record_ncm(store: Path, simulation: NcmSimulation) -> None:
    """Leaves the journal of a simulated run of a coarse-to-fine generator in a store."""
    with Journal(store) as journal:
        run = simulation.run_row()
        journal.write(msgspec.convert(run, RunRecord))
        for generation, levels in simulation.generations():
            journal.write(msgspec.convert(generation, NcmRecord))
            for level in levels:
                journal.write(msgspec.convert(level, LevelRecord))
            journal.write(msgspec.convert(generation, NcmEnd))
            if generation["equal"] is not None:
                pair = {"generation_id": generation["generation_id"], "pair_id": "0" * 32, "equal": True}
                journal.write(msgspec.convert(pair, NcmComparison))
        journal.write(msgspec.convert(run, RunEnd))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two runs."""
    record(tmp_path, Simulation(run_id="run-1", seed=1))
    record(tmp_path, Simulation(run_id="run-2", seed=2))
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `roundscope report`."""
    with pytest.raises(SystemExit) as ended:
        main(["report", *arguments])
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


def test_page_is_about_the_latest_run(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "--store", str(store))
    assert (code, err) == (0, "")
    assert out.startswith("run       run-2, 2023-11-14 22:13 UTC, complete")
    assert f"roundscope report stages --run run-2 --store {store}\n" in out
    assert call(capsys, "--store", str(store), "--run", "run-1")[1].startswith("run       run-1,")


def test_it_works_while_another_process_records(tmp_path: Path) -> None:
    """duckdb#17158: the rounds closed so far are there, and more of them when asked again."""
    simulation = Simulation(run_id="run-1", seed=1)
    program = "from runtime.cli.main import main; main()"
    command = ("report", "completeness", "--run", "run-1", "--json", "--store", str(tmp_path))
    with Journal(tmp_path) as journal:
        journal.write(msgspec.convert(simulation.run_row(), RunRecord))
        begun, rounds = next(iter(simulation.generations()))
        journal.write(msgspec.convert(begun, GenerationRecord))
        for n, one in enumerate(rounds[:2], 1):
            journal.write(msgspec.convert(one, RoundRecord))
            asked = run_python(program, *command)
            [whole] = [row for row in json.loads(asked.stdout) if row["arm"] == "all"]
            assert (asked.returncode, whole["n_running"], whole["n_rounds"]) == (0, 1, n)
        page = run_python(program, "report", "--store", str(tmp_path))
        assert (page.returncode, "Still running: 1 generation" in page.stdout) == (0, True)
    assert "Still running" not in run_python(program, "report", "--store", str(tmp_path)).stdout


def test_spans_that_nobody_wants_are_not_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a destination that lacks spans, those are named that it could get: none of a trace that is not sampled."""
    unsampled = {"trace_id": "a" * 32, "parent_span_id": "b" * 16, "sampled": False}
    own = [generation("g1"), generation_end("g1"), generation("g2", **unsampled), generation_end("g2")]
    write_lines(tmp_path, [header(), run(), *own])
    with Ledger(tmp_path, "http://127.0.0.1:4318/v1/traces") as ledger:
        ledger.note_failed(1)
        assert "note: spans of 1 generation are not at http" in call(capsys, "--store", str(tmp_path))[2]
        ledger.note("g1", sent=1, refused=1)
    said = "note: spans of 1 generation were refused for good by http://127.0.0.1:4318/v1/traces: 1\n"
    assert call(capsys, "--store", str(tmp_path))[2] == said


def test_rows_are_data_on_stdout(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = [column.name for column in queries.find("verdict").columns]
    code, out, err = call(capsys, "--json", "--store", str(store))
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert [list(row) for row in rows] == [columns] * 4
    assert [(row["run_id"], row["class"]) for row in rows] == [("run-2", c) for c in ("copy", "list", "write", "all")]
    code, out, _ = call(capsys, "verdict", "--csv", "--run", "run-1", "--store", str(store))
    table = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [row["run_id"] for row in table] == ["run-1"] * 4
    for name in set(queries.names("speculation")) - ONLY_OF_SOME_RUNS:
        code, out, _ = call(capsys, name, "--json", "--store", str(store))
        assert (code, list(json.loads(out)[0])) == (0, [column.name for column in queries.find(name).columns])
    code, out, _ = call(capsys, "survival", "--store", str(store))
    assert (code, out.split()[:3]) == (0, ["run_id", "arm", "drafter"])


def test_wrong_names_are_usage_errors(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "verdicts", "--store", str(store))
    assert (code, out, err) == (
        2,
        "",
        f"error: there is no query 'verdicts'; known are: {', '.join(queries.names())}\n",
    )
    code, out, err = call(capsys, "--run", "run-3", "--store", str(store))
    assert (code, out) == (2, "")
    assert err.startswith("error: there is no run 'run-3'; the latest are: run-2 ")


def test_a_run_of_the_generator_beside_them_has_its_own_page_and_rows(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_ncm(store, NcmSimulation(run_id="run-3"))
    code, out, err = call(capsys, "--store", str(store))
    assert (code, err) == (0, "")
    assert out.startswith("run       run-3, 2023-11-14 22:13 UTC, complete")
    assert "The prefix cache of scripted pays: " in out
    assert f"roundscope report ncm_exit --run run-3 --store {store}\n" in out
    assert call(capsys, "--store", str(store), "--run", "run-2")[1].startswith("run       run-2,")
    rows = json.loads(call(capsys, "--store", str(store), "--json")[1])
    assert [(row["run_id"], row["level"]) for row in rows] == [("run-3", level) for level in ("0", "1", "2", "all")]
    for name in queries.names("ncm"):
        code, out, _ = call(capsys, name, "--json", "--store", str(store))
        assert (code, json.loads(out)[0]["run_id"]) == (0, "run-3")


def test_a_query_of_the_other_kind_names_those_that_suit(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_ncm(store, NcmSimulation(run_id="run-3"))
    assert call(capsys, "verdict", "--store", str(store)) == (
        2,
        "",
        "error: verdict is about runs of kind speculation, and run run-3 is of kind ncm: ask it completeness, "
        "ncm_cache, ncm_exit; the latest run it suits: --run run-2\n",
    )
    code, out, err = call(capsys, "ncm_cache", "--run", "run-1", "--json", "--store", str(store))
    assert (code, out) == (2, "")
    assert err.endswith("the latest run it suits: --run run-3\n")


def test_a_store_without_a_run_fails_with_the_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "--store", str(tmp_path))
    assert (code, out) == (2, "")
    assert "record one: roundscope run --quick" in err


def test_help_names_every_query() -> None:
    assert ", ".join(queries.names()) in " ".join((command.help or "").split())
