"""The archive: journals become partitions and go; every row, count and reason stays, whatever is broken off or lost."""

from __future__ import annotations

import os
import shutil
import signal
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from telemetry import archive, archiving, loading
from telemetry.archive_choice import LATER, RECORDING, SHARED, UNKNOWN
from telemetry.archiving import DIFFERENT, archive_before
from telemetry.errors import RoundscopeError, UsageError
from telemetry.journal import Journal
from telemetry.records import SCHEMA_VERSION
from telemetry.store import DATABASE, connect, load
from tests.conftest import run_python
from tests.telemetry.archives import DAY, STARTED, fill_store, journals, look, partitions, rebuild
from tests.telemetry.stores import (
    TABLES,
    comparison,
    generation,
    generation_end,
    header,
    rounds,
    run,
    run_end,
    whole_generation,
    whole_run,
    write_lines,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A run, generations outside a run, and a journal with all kinds of damage."""
    return fill_store(tmp_path)


def test_all_is_there_from_the_archive_alone(store: Path) -> None:
    expected = rebuild(store)
    assert {name: len(rows) for name, rows in expected.items() if name in ("rounds", "rejected", "waiting")} == {
        "rounds": 10,
        "rejected": 1,
        "waiting": 1,
    }
    done = archive_before(store, DAY)
    assert (done.journals, done.left, done.notes, journals(store)) == (3, {}, [], [])
    assert done.rows == {"runs": 1, "generations": 5, "rounds": 10, "rejected": 1}
    assert look(store) == expected
    assert rebuild(store) == expected
    assert archive_before(store, DAY).journals == 0


def test_partitions_are_plain_parquet_by_run_and_day_with_the_tables_columns(store: Path) -> None:
    expected = rebuild(store)
    archive_before(store, DAY)
    assert partitions(store) == [
        "generations/run=none/day=2023-11-14",
        "generations/run=none/day=2023-11-15",
        "generations/run=run-1/day=2023-11-14",
        "generations/run=run-2/day=2023-11-14",
        "journals/run=none/day=1970-01-01",
        "journals/run=none/day=2023-11-14",
        "rejected/run=none/day=2023-11-14",
        "rounds/run=none/day=2023-11-14",
        "rounds/run=none/day=2023-11-15",
        "rounds/run=run-1/day=2023-11-14",
        "runs/run=run-1/day=2023-11-14",
        "waiting/run=none/day=2023-11-14",
    ]
    with duckdb.connect() as con:
        for table in TABLES:
            paths = f"'{store / archive.FOLDER / table}/*/*/*.parquet'"
            if not expected[table]:
                continue
            # Every reader of Parquet knows texts; ENUM is DuckDB's own.
            wanted = [(name, "VARCHAR" if "ENUM" in kind else kind) for name, kind, *_ in describe(store, table)]
            [*found, day, run_column] = con.execute(f"DESCRIBE FROM read_parquet({paths})").fetchall()
            assert [(name, kind) for name, kind, *_ in found] == wanted
            assert (run_column[0], day[:2]) == ("run", ("day", "DATE"))
            metadata = con.execute(f"SELECT key, value FROM parquet_kv_metadata({paths})").fetchall()
            assert (b"roundscope_schema_version", str(SCHEMA_VERSION).encode()) in metadata
            assert (b"roundscope_table", table.encode()) in metadata


def describe(store: Path, table: str) -> list[Any]:
    with connect(store) as connected:
        return connected.con.execute(f"DESCRIBE {table}").fetchall()


def test_a_dry_run_says_the_same_and_changes_nothing(store: Path) -> None:
    load(store)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    said = archive_before(store, DAY, dry_run=True)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    done = archive_before(store, DAY)
    assert (said.journals, said.rows, said.journal_bytes, said.left) == (
        done.journals,
        done.rows,
        done.journal_bytes,
        done.left,
    )


def test_what_may_go_on_stays(tmp_path: Path) -> None:
    """Processes that live or may live, days that are not over, and runs of which a part stays."""
    begun = {"started_wall_ns": STARTED}
    with Journal(tmp_path) as journal:
        journal.write(generation("open", run_id="run-r", **begun))
        write_lines(tmp_path, [header(), *whole_generation("rank"), run("run-r"), run_end("run-r")], "rank-1")
        write_lines(tmp_path, [header(host="elsewhere"), *whole_generation("h")], "elsewhere")
        write_lines(
            tmp_path, [header(), run("late", **begun), run_end("late", ended_wall_ns=STARTED + 2 * 10**14)], "l"
        )
        late = generation("aborted", run_id=None, started_wall_ns=STARTED + 92_790 * 10**9)  # ends 20 s into DAY
        write_lines(tmp_path, [header(), late, *rounds("aborted", 1, start_ns=30 * 10**9)], "m")
        expected = look(tmp_path)
        done = archive_before(tmp_path, date(2023, 11, 16))
        assert done.journals == 0
        assert done.left == {RECORDING: 1, SHARED: 1, UNKNOWN: 1, LATER: 2}
        assert not (tmp_path / archive.FOLDER).exists() or partitions(tmp_path) == []
    assert look(tmp_path)["rounds"] == expected["rounds"]
    assert archive_before(tmp_path, date(2023, 11, 18)).journals == 2  # the first one was made today


class Killed(BaseException):
    """Stands for the death of the process: nothing of ours handles it."""


def break_off(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Die instead of the `at`-th change of a name, counted from 0."""
    left = [at]

    def wrap(really: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if not left[0]:
                raise Killed
            left[0] -= 1
            return really(*arguments, **options)

        return call

    changed = {name: wrap(getattr(os, name)) for name in ("replace", "unlink")}
    monkeypatch.setattr(archiving, "os", SimpleNamespace(**{**vars(os), **changed}))


def test_broken_off_anywhere_nothing_is_lost_or_there_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each change of a name, with the database that was and with none; and the next archiving does the rest."""
    lines = [header(), run(), *whole_generation("g1"), b"rubbish", comparison("nobody"), run_end()]
    write_lines(tmp_path / "origin", lines)
    write_lines(tmp_path / "origin", [header(), generation("g2", run_id=None), *rounds("g2", 3)], "b")
    expected = look(tmp_path / "origin")
    n_points = 0
    while True:
        store = tmp_path / str(n_points)
        shutil.copytree(tmp_path / "origin", store)
        with monkeypatch.context() as patches:
            break_off(patches, n_points)
            try:
                archive_before(store, DAY)
                break
            except Killed:
                n_points += 1
        assert look(store) == expected
        assert rebuild(store) == expected
        archive_before(store, DAY)
        assert (journals(store), rebuild(store)) == ([], expected)
        with duckdb.connect() as con:  # strays are gone, for those who know of no manifest
            found = con.execute(f"FROM read_parquet('{store}/archive/rounds/*/*/*.parquet') SELECT count(*)").fetchall()
        assert found == [(len(expected["rounds"]),)]
        shutil.rmtree(store)
    assert n_points > 10


KILLED = """
import os, sys
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from telemetry import archiving
archiving.os = SimpleNamespace(**{**vars(os), "unlink": lambda path: os.kill(os.getpid(), 9)})
archiving.archive_before(Path(sys.argv[1]), date(2023, 11, 16))
"""


def test_killed_before_it_deletes(store: Path) -> None:
    expected = look(store)
    child = run_python(KILLED, str(store))
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert len(journals(store)) == 3
    assert look(store) == expected
    assert rebuild(store) == expected
    done = archive_before(store, DAY)
    assert (done.n_finished, done.journals, journals(store)) == (1, 2, [])
    assert rebuild(store) == expected


@pytest.mark.parametrize("first", ["opens", "ends"])
def test_what_waits_for_the_other_half_finds_it(tmp_path: Path, first: str) -> None:
    """A generation and its end in two journals, one archived before the other comes, then both."""
    parts = {
        "opens": [header(), generation("g", run_id=None), *rounds("g", 3)],
        "ends": [header(), generation_end("g"), comparison("g")],
    }
    for name, records in parts.items():
        write_lines(tmp_path / "together", records, name)
    expected = look(tmp_path / "together")
    assert expected["waiting"] == []
    store = tmp_path / "apart"
    write_lines(store, parts.pop(first), first)
    assert archive_before(store, DAY).journals == 1
    [(second, records)] = parts.items()
    write_lines(store, records, second)
    for _ in range(2):
        assert look(store) == expected
        assert rebuild(store) == expected
        archive_before(store, DAY)
    assert journals(store) == []


def test_a_copy_of_a_journal_stays_and_what_it_repeats_stays_rejected(tmp_path: Path) -> None:
    path = write_lines(tmp_path, whole_run())
    shutil.copy(path, path.with_name("copy.ndjson"))
    expected = look(tmp_path)
    assert len(expected["rejected"]) == 14
    assert archive_before(tmp_path, DAY).left == {DIFFERENT: 1}
    assert (journals(tmp_path), rebuild(tmp_path)) == (["copy"], expected)
    shutil.copy(path.with_name("copy.ndjson"), path)  # what was archived comes back
    assert rebuild(tmp_path) == expected
    done = archive_before(tmp_path, DAY)
    assert (done.n_finished, done.left, journals(tmp_path)) == (1, {DIFFERENT: 1}, ["copy"])


@pytest.mark.parametrize("run_id", ["../../up", "a b/c*[1]?%2F=\u00e9'\"", "none", "", "x" * 300, "20231114"])
def test_any_run_id_is_the_name_of_a_folder(tmp_path: Path, run_id: str) -> None:
    lines = [header(created_wall_ns=STARTED), run(run_id), generation("g", run_id=run_id), *rounds("g", 3)]
    write_lines(tmp_path / "[s]*", [*lines, run_end(run_id)])
    store = tmp_path / "[s]*"
    expected = look(store)
    archive_before(store, DAY)
    assert rebuild(store) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["[s]*"]
    assert len(list((store / archive.FOLDER / "rounds").iterdir())) == 1


ARCHIVE = """
import sys
from datetime import date
from pathlib import Path
from telemetry.archiving import archive_before
print(archive_before(Path(sys.argv[1]), date(2023, 11, 16)).journals)
"""


def test_a_reader_that_archiving_overtakes_misses_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked at the archive before, and at the journals after."""
    expected = look(store)
    (store / DATABASE).unlink()
    really_load, calls = loading.load_batches, 0

    def load_batches(con: duckdb.DuckDBPyConnection, folder: Path) -> list[str]:
        nonlocal calls
        calls += 1
        notes = really_load(con, folder)
        if calls == 1:
            child = run_python(ARCHIVE, str(store))
            assert (child.returncode, child.stdout) == (0, "3\n"), child.stderr
        return notes

    monkeypatch.setattr(loading, "load_batches", load_batches)
    assert look(store) == expected
    assert calls > 1


def test_only_one_archives(store: Path) -> None:
    with archiving._alone(store), pytest.raises(RoundscopeError, match=r"another archiving of .* is going on; wait"):
        archive_before(store, DAY)
    with pytest.raises(UsageError, match="no store at"):
        archive_before(store / "nowhere", DAY)


def test_a_full_disk_leaves_the_journals(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = look(store)

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patches:
        patches.setattr(archiving, "os", SimpleNamespace(**{**vars(os), "replace": refuse}))
        with pytest.raises(RoundscopeError, match=r"No space left on device\. What was not archived is still there"):
            archive_before(store, DAY)
    assert (len(journals(store)), rebuild(store)) == (3, expected)
