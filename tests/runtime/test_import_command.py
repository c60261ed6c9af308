"""`roundscope import`: what was exported comes back as it was, or not at all."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from telemetry.otlp import write_otlp_json
from telemetry.spans import build_spans
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
    assert sorted(path.name for path in other.iterdir()) == ["journal", "roundscope.duckdb"]
    bad_only = tmp_path / "bad.otlp.json"
    bad_only.write_text(write_otlp_json(list(build_spans(bad))))
    assert call(capsys, "import", bad_only, "--store", tmp_path / "third")[0] == 1
    assert not list((tmp_path / "third").iterdir())


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
    assert not list(other.iterdir())
    assert call(capsys, "import", file, "--store", other) == (0, "generations: 12 taken, 0 were there already\n", "")


def test_a_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = call(capsys, "import", tmp_path / "none.json", "--store", tmp_path)
    assert code == 2
    assert "cannot read" in err
