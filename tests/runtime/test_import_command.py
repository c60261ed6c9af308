"""`roundscope import`: what was exported comes back as it was, or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from telemetry.importing import LOCK, WORK, Result, import_file
from telemetry.otlp import write_otlp_json
from telemetry.sizes import measure_store
from telemetry.spans import build_spans
from tests.conftest import child_environment, run_python
from tests.runtime.commands import call
from tests.telemetry.disk import really_write
from tests.telemetry.stores import generation, generation_end, rounds
from tests.telemetry.traces import IDS, read_spans, write_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a generation of each kind."""
    write_store(tmp_path / "store")
    return tmp_path / "store"


def _export(capsys: pytest.CaptureFixture[str], store: Path, file: Path) -> None:
    assert call(capsys, "export", "--otlp-json", file, "--store", store)[0] == 0


def test_there_and_back_again(capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "spans.otlp.json", tmp_path / "other"
    _export(capsys, store, file)
    assert call(capsys, "import", file, "--store", other) == (0, "generations: 12 taken, 0 were there already\n", "")
    assert call(capsys, "import", file, "--store", other) == (0, "generations: 0 taken, 12 were there already\n", "")
    for table in ("generations", "rounds", "ncm_generations", "levels"):
        sql = f"FROM {table} SELECT * EXCLUDE (journal) ORDER BY ALL"
        first, second = (call(capsys, "sql", sql, "--store", place, "--json") for place in (store, other))
        assert first == second
        assert json.loads(first[1])
    again = tmp_path / "again.otlp.json"
    _export(capsys, other, again)
    assert sorted(read_spans(again), key=str) == sorted(read_spans(file), key=str)


def test_an_export_of_nothing_is_an_import_of_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, other = tmp_path / "spans.otlp.json", tmp_path / "other"
    (tmp_path / "store").mkdir()
    _export(capsys, tmp_path / "store", file)
    assert call(capsys, "import", file, "--store", other) == (0, "generations: 0 taken, 0 were there already\n", "")
    assert not other.exists()


def test_what_is_foreign_or_malformed_is_refused_with_its_reason(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path
) -> None:
    file, other = tmp_path / "spans.otlp.json", tmp_path / "other"
    _export(capsys, store, file)
    foreign = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "GET /", "startTimeUnixNano": "1"}
    broken = {**foreign, "spanId": "b"}
    with file.open("a") as out:
        out.write(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [foreign, broken]}]}]}) + "\n")
    code, out_text, err = call(capsys, "import", file, "--store", other, "--json")
    assert (code, json.loads(out_text)) == (
        1,
        {
            "generations": 12,
            "generations_already_there": 0,
            "spans_refused": {"line 13: a malformed span: 'b' is no id": 1, "not a span of roundscope": 1},
        },
    )
    assert "1 because: not a span of roundscope" in err


def test_what_the_tables_would_reject_is_refused_as_a_whole_and_the_rest_is_taken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, other = tmp_path / "spans.otlp.json", tmp_path / "other"
    good = [generation(IDS[0], run_id=None), *rounds(IDS[0], 2), generation_end(IDS[0])]
    bad = [generation(IDS[1], run_id=None), *rounds(IDS[1], 2, requested=1), generation_end(IDS[1])]
    n_spans = len(list(build_spans(bad)))
    file.write_text(write_otlp_json(list(build_spans([*bad, *good]))))
    code, out, _ = call(capsys, "import", file, "--store", other, "--json")
    assert (code, json.loads(out)) == (
        1,
        {
            "generations": 1,
            "generations_already_there": 0,
            "spans_refused": {"malformed: more tokens proposed than requested": n_spans},
        },
    )
    tables = ("generations", "rounds", "rejected")
    sql = f"SELECT {', '.join(f'(SELECT count(*) FROM {table}) AS {table}' for table in tables)}"
    [row] = json.loads(call(capsys, "sql", sql, "--store", other, "--json")[1])
    assert row == {"generations": 1, "rounds": 2, "rejected": 0}
    assert sorted(path.name for path in other.iterdir()) == [LOCK, "journal", "roundscope.duckdb"]
    bad_only = tmp_path / "bad.otlp.json"
    bad_only.write_text(write_otlp_json(list(build_spans(bad))))
    assert call(capsys, "import", bad_only, "--store", tmp_path / "third")[0] == 1
    assert [path.name for path in (tmp_path / "third").iterdir()] == [LOCK]


def test_an_import_that_finds_no_space_takes_nothing_and_can_be_repeated(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came half would be an aborted generation for ever, because the next import finds its id there."""
    file, other = tmp_path / "spans.otlp.json", tmp_path / "other"
    _export(capsys, store, file)
    left = [20]

    def write(fd: int, data: bytes) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really_write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        code, out, err = call(capsys, "import", file, "--store", other)
    assert (code, out) == (1, "")
    assert "records could not be written; nothing was imported: free space" in err
    assert [path.name for path in other.iterdir()] == [LOCK]
    assert call(capsys, "import", file, "--store", other) == (0, "generations: 12 taken, 0 were there already\n", "")


CHILD = """
import os, signal, sys
from pathlib import Path
import telemetry.importing
find = telemetry.importing._find_reasons
def stop(*arguments):
    if sys.argv[3] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    print("here", flush=True)
    sys.stdin.read()
    return find(*arguments)
telemetry.importing._find_reasons = stop
telemetry.importing.import_file(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_what_a_killed_import_left_is_named_and_deleted_by_the_next(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path
) -> None:
    file, other = tmp_path / "spans.otlp.json", tmp_path / "other"
    _export(capsys, store, file)
    assert run_python(CHILD, str(file), str(other), "dies").returncode == -signal.SIGKILL
    assert sorted(path.name for path in other.iterdir()) == [LOCK, WORK]
    sizes = measure_store(other)
    assert sizes is not None
    assert sizes.problems == [f"{other / WORK} is what an import left that was broken off; the next import deletes it"]
    assert call(capsys, "import", file, "--store", other) == (0, "generations: 12 taken, 0 were there already\n", "")
    assert sorted(path.name for path in other.iterdir()) == [LOCK, "journal"]


def test_a_living_import_is_waited_for(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else both would take the same generations, and the second would delete what the first works on."""
    file, other = tmp_path / "spans.otlp.json", tmp_path / "other"
    _export(capsys, store, file)
    command = [sys.executable, "-c", CHILD, str(file), str(other), "waits"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment()) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        sizes = measure_store(other)
        assert sizes is not None
        assert sizes.problems == []
        flock = fcntl.flock

        def let_go_on(file: Any, operation: int) -> None:
            if not operation & fcntl.LOCK_NB:
                assert child.stdin is not None
                child.stdin.close()
            flock(file, operation)

        names = SimpleNamespace(flock=let_go_on, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB)
        monkeypatch.setattr("telemetry.importing.fcntl", names)
        assert import_file(file, other) == Result(n_taken=0, n_known=12, refused=Counter())
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert [(each["event"], each["store"]) for each in said] == [("import.waiting", str(other))]


def test_a_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "none.json"
    code, _, err = call(capsys, "import", file, "--store", tmp_path)
    reason = f"[Errno 2] No such file or directory: '{file}'"
    cure = "name a file that `roundscope export --otlp-json` wrote"
    assert (code, err) == (2, f"error: cannot read {file}: {reason}; {cure}\n")
