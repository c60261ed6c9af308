"""What `roundscope doctor` says, in both its forms."""

from __future__ import annotations

import json
import os
import sys
from datetime import date
from pathlib import Path

import mlx.core
import pytest
from msgspec.structs import asdict

from runtime.cores import usable_processors
from runtime.diagnosis import Diagnosis, explain, judge
from runtime.environment import PRECISION_VARIABLES
from telemetry.archiving import archive_before
from telemetry.records import Environment
from telemetry.sizes import measure_store
from telemetry.store import DATABASE
from tests.conftest import lack, run_python
from tests.telemetry.stores import header, whole_run, write_lines

DOCTOR = "from runtime.cli.main import main\nmain(['doctor', *__import__('sys').argv[1:]])"
HIDE_MODEL = """
import importlib.util, runtime.gguf.default_model
find = importlib.util.find_spec
runtime.gguf.default_model.find_spec = lambda name, *rest: None
"""


@pytest.mark.parametrize(
    ("steps", "verification", "sentence"),
    [
        (
            1.04,
            "cheap",
            "Verification is cheap here: as far as matmul goes, verifying 8 tokens costs about 1.0 ordinary steps, "
            "so proposals that are often right will pay.",
        ),
        (
            2.0,
            "moderate",
            "Verification is moderate here: as far as matmul goes, verifying 8 tokens costs about 2.0 ordinary steps, "
            "so proposals must be right most of the time to pay.",
        ),
        (
            7.7,
            "dear",
            "Verification is dear here: as far as matmul goes, verifying 8 tokens costs about 7.7 ordinary steps, "
            "so speculation can hardly pay in float32.",
        ),
    ],
)
def test_the_sentence_follows_from_the_cost_of_eight_rows(steps: float, verification: str, sentence: str) -> None:
    assert judge(steps) == verification
    assert explain(verification, steps) == sentence


def test_json_is_one_document_with_every_fact() -> None:
    unset: dict[str, str | None] = dict.fromkeys(PRECISION_VARIABLES)
    child = run_python(DOCTOR, "--json", env=unset | {"ROUNDSCOPE_BLAS": "stock", "MLX_ENABLE_TF32": "0"})
    assert (child.returncode, child.stderr) == (0, "")
    document = json.loads(child.stdout)
    assert set(document) == {*Diagnosis.__struct_fields__, "store"}
    assert set(document["environment"]) == set(Environment.__struct_fields__)
    environment = document["environment"]
    assert environment["precision"] == {"MLX_ENABLE_TF32": "0"}
    assert environment["cores"] == usable_processors()
    assert environment["python_version"] == sys.version.split()[0]
    assert environment["mlx_version"] == mlx.core.__version__
    assert environment["machine"] == os.uname().machine
    assert environment["host"] == os.uname().nodename
    assert environment["device"].startswith(mlx.core.default_device().type.name)
    assert environment["blas"] in ("stock", "accelerate")
    assert list(document["matmul_us"]) == ["1", "8", "64"]
    assert min(document["matmul_us"].values()) > 0
    assert document["sentence"] == explain(document["verification"], document["steps_for_8"])
    assert (document["model_path"] is None) != (document["model_problem"] is None)


def test_the_sizes_of_a_store_are_those_of_its_files(tmp_path: Path) -> None:
    write_lines(tmp_path, whole_run())
    archive_before(tmp_path, date(2023, 11, 16))
    kept = write_lines(tmp_path, [header()], "b")
    [partition] = (tmp_path / "archive" / "rounds").rglob("*.parquet")
    sizes = measure_store(tmp_path)
    assert sizes is not None
    assert asdict(sizes) == {
        "journals": 1,
        "journal_bytes": kept.stat().st_size,
        "database_bytes": (tmp_path / DATABASE).stat().st_size,
        "archive_files": 4,
        "archive_bytes": sum(path.stat().st_size for path in tmp_path.rglob("*.parquet")),
        "archived_journals": 1,
        "archived_rows": {"runs": 1, "generations": 2, "rounds": 6, "journals": 1},
        "problems": [],
    }
    partition.unlink()
    child = run_python(DOCTOR, "--store", str(tmp_path), env={"COLUMNS": "400", "ROUNDSCOPE_BLAS": "stock"})
    assert (child.returncode, child.stderr.split(": ")[:2]) == (
        3,
        ["error", f"the store {tmp_path} is not as it should be"],
    )
    shown = dict(line.rstrip().split("  ", 1) for line in child.stdout.split("\n\n")[0].splitlines())
    assert shown["journals"].strip() == f"1 files, {kept.stat().st_size:,} bytes"
    assert shown["problem 1"].strip().startswith(f"{partition} of the archive is missing or damaged")
    assert measure_store(tmp_path / "none") is None


def test_the_number_of_threads_is_the_one_that_was_asked_for() -> None:
    child = run_python(DOCTOR, "--json", env={"ROUNDSCOPE_BLAS_THREADS": "1"})
    environment = json.loads(child.stdout)["environment"]
    if environment["blas"] != "openblas":
        lack("OpenBLAS in front of MLX", "make setup, on Linux")
    assert (child.returncode, child.stderr, environment["blas_threads"]) == (0, "", 1)


def test_the_table_shows_the_same_and_ends_with_the_sentence(tmp_path: Path) -> None:
    child = run_python(DOCTOR, "--store", str(tmp_path / "none"), env={"COLUMNS": "200", "ROUNDSCOPE_BLAS": "stock"})
    assert (child.returncode, child.stderr) == (0, "")
    lines = [line.rstrip() for line in child.stdout.splitlines()]
    labels = [line.split("  ")[0] for line in lines[: lines.index("")]]
    assert labels == [
        *(name.replace("_", " ") for name in Environment.__struct_fields__ if name != "precision"),
        "precision variables",
        "blas from",
        "default model",
        "matmul, 1 row",
        "matmul, 8 rows",
        "matmul, 64 rows",
        "store",
    ]
    assert lines[-1].startswith("Verification is ")


def test_a_missing_model_is_told_with_its_cure_and_is_no_failure() -> None:
    child = run_python(HIDE_MODEL + DOCTOR, "--json", env={"ROUNDSCOPE_BLAS": "stock"})
    assert (child.returncode, child.stderr) == (0, "")
    document = json.loads(child.stdout)
    assert document["model_path"] is None
    assert "is not installed: run `" in document["model_problem"]


def test_doctor_leaves_nothing_behind() -> None:
    """It needs no store, so it makes none."""
    code = (
        "import os, sys, tempfile\nsys.path.insert(0, os.getcwd())\nfolder = tempfile.mkdtemp()\nos.chdir(folder)\n"
        "from runtime.cli.main import main\n"
        "try: main(['doctor', '--json'])\nexcept SystemExit: print(os.listdir(folder), file=sys.stderr)"
    )
    assert run_python(code, env={"ROUNDSCOPE_BLAS": "stock"}).stderr == "[]\n"


def test_journals_that_cannot_be_read_are_no_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by what the system says: whoever may read everything, as in a container, sees no permission denied."""
    write_lines(tmp_path, whole_run())
    listdir = os.listdir

    def refuse(path: Path) -> list[str]:
        if Path(path).name == "journal":
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    sizes = measure_store(tmp_path)
    assert sizes is not None
    assert sizes.problems == [
        f"{tmp_path / 'journal'} cannot be read (Permission denied): its journals are not counted"
    ]
