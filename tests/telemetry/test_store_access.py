"""The database when it cannot be had as usual: held by others, on a full disk, damaged, or of another version."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pytest

from telemetry.errors import RoundscopeError
from telemetry.records import SCHEMA_VERSION
from telemetry.store import DATABASE, StoreBusy, StoreUnwritable, connect, load, restrict
from tests.conftest import ROOT, child_environment, run_python
from tests.telemetry.stores import column, dump, dump_file, generation, header, rounds, whole_run, write_lines

HOLD = """
import duckdb, sys
con = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "reads")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another(path: Path, how: str) -> Iterator[int]:
    """Another process has the database open; gives its id."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        yield child.pid
        child.communicate()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store whose database lacks what its second journal says."""
    write_lines(tmp_path, whole_run())
    load(tmp_path)
    write_lines(tmp_path, [header(), generation("new"), *rounds("new", 1)], "b")
    return tmp_path


@pytest.mark.parametrize("how", ["writes", "reads"])
def test_while_somebody_else_has_the_database_the_journals_are_read_into_memory(store: Path, how: str) -> None:
    """duckdb#17158: readers and a writer exclude each other."""
    with held_by_another(store / DATABASE, how) as pid, connect(store, patience_s=0.1) as connected:
        assert connected.source == "memory"
        [note] = connected.notes
        assert note.startswith(f"{store / DATABASE} is in use by ")
        assert f"(PID {pid}); the journals were read into memory instead" in note
        in_memory = dump(connected.con)
    with connect(store) as connected:
        assert (connected.source, connected.notes) == ("database", ())
        assert dump(connected.con) == in_memory
        assert column(connected.con, "SELECT count(*) FROM rounds") == [7]


def test_loading_into_a_database_that_somebody_else_has_says_who(store: Path) -> None:
    with held_by_another(store / DATABASE, "writes") as pid, pytest.raises(StoreBusy, match=rf"\(PID {pid}\)"):
        load(store, patience_s=0)


def test_loading_waits_for_somebody_who_is_about_to_finish(store: Path) -> None:
    with held_by_another(store / DATABASE, "writes"):
        waiting = subprocess.Popen(
            [sys.executable, "-c", "import sys; from pathlib import Path; from telemetry.store import load\n"
             "print('waits', flush=True); print(load(Path(sys.argv[1]), patience_s=300).n_lines)", str(store)],
            stdout=subprocess.PIPE, cwd=ROOT, env=child_environment(), text=True,
        )  # fmt: skip
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
    assert waiting.communicate() == ("3\n", None)


def test_a_connection_inside_another_of_the_same_process(store: Path) -> None:
    """Both read the file; where something is new, the inner one cannot write it and reads the journals."""
    with connect(store) as outer, connect(store, patience_s=0) as inner:
        assert (outer.source, inner.source) == ("database", "database")
    with connect(store) as outer:
        write_lines(store, [header(), generation("z"), *rounds("z", 1)], "z")
        with connect(store, patience_s=0) as inner:
            assert column(inner.con, "SELECT count(*) FROM rounds") == [
                1 + column(outer.con, "SELECT count(*) FROM rounds")[0]
            ]
            assert (outer.source, inner.source) == ("database", "memory")
            assert inner.notes == (
                f"{store / DATABASE} is open elsewhere in this process; the journals were read into memory instead",
            )


def test_a_database_that_cannot_be_written(tmp_path: Path) -> None:
    """Whoever may write everywhere cannot write to a folder either."""
    write_lines(tmp_path, whole_run())
    (tmp_path / DATABASE).mkdir()
    with pytest.raises(StoreUnwritable, match="Is a directory"):
        load(tmp_path)
    with connect(tmp_path) as connected:
        assert connected.source == "memory"
        assert connected.notes[0].endswith("; the journals were read into memory instead")
        assert column(connected.con, "SELECT count(*) FROM rounds") == [6]
    assert (tmp_path / DATABASE).is_dir()


READ_ONLY = """
import os, sys
from pathlib import Path
from telemetry.store import connect
from telemetry import loading
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
with connect(Path(sys.argv[1])) as connected:
    print(connected.source)
    print(connected.con.execute("SELECT count(*) FROM rounds").fetchall())
    print(*connected.notes)
"""


def test_a_store_in_a_folder_that_cannot_be_written() -> None:
    with TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        write_lines(store, whole_run())
        for path in (store, store.parent):
            path.chmod(0o555)
        child = run_python(READ_ONLY, str(store))
        for path in (store.parent, store):
            path.chmod(0o755)
    assert child.returncode == 0, child.stderr
    source, counted, note = child.stdout.splitlines()
    assert (source, counted) == ("memory", "[(6,)]")
    assert "Permission denied" in note
    assert note.endswith("; the journals were read into memory instead")


FULL = """
import resource, sys
from pathlib import Path
from telemetry.store import StoreUnwritable, connect, load
store, size = Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
try:
    load(store)
except StoreUnwritable as error:
    print(error)
with connect(store) as connected:
    print(connected.source)
    print(connected.con.execute("SELECT count(*) FROM rounds").fetchall())
"""


@pytest.mark.parametrize(("had_database", "n_bytes"), [(False, 10_000), (False, 60_000), (True, 60_000)])
def test_a_full_disk_leaves_the_report_whole(tmp_path: Path, had_database: bool, n_bytes: int) -> None:
    """No file may grow beyond its limit, as on a full disk: rows come from memory, and later from the database.

    Ten rounds of 2,000 short token ids are 45 kB in the journal and 160 kB in the database.
    """
    if had_database:
        write_lines(tmp_path, [header(), *rounds("old", 1)], "old")
        load(tmp_path)
    n_tokens, n_rounds = (2000, 10) if n_bytes > 50_000 else (1, 3)
    write_lines(tmp_path, [header(), *rounds("new", n_rounds, tokens=[1] * n_tokens)], "new")
    child = run_python(FULL, str(tmp_path), str(n_bytes))
    assert child.returncode == 0, child.stderr
    said, source, counted = child.stdout.splitlines()
    assert (source, counted) == ("memory", f"[({n_rounds + had_database},)]")
    assert said.startswith(f"{tmp_path / DATABASE} cannot be written (")
    assert "File too large" in said
    with connect(tmp_path) as connected:
        assert connected.source == "database"
        assert column(connected.con, "SELECT count(*) FROM rounds") == [n_rounds + had_database]


def test_no_space_for_temporary_files_is_one_clear_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path, whole_run())

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(RoundscopeError, match="No space left on device; free space there, or set TMPDIR"):
        load(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"x", b"garbage" * 10_000, None], ids=["empty", "short", "garbage", "half of it"]
)
def test_a_damaged_database_is_put_aside_and_made_anew(store: Path, content: bytes | None) -> None:
    whole = (store / DATABASE).read_bytes()
    damaged = whole[: len(whole) // 2] if content is None else content
    (store / DATABASE).write_bytes(damaged)
    with connect(store) as connected:
        assert connected.source == "database"
        [note] = connected.notes
        assert note.startswith(f"{store / DATABASE} cannot be read (")
        assert note.endswith(f"; it was made anew from the journals, the old one is {store / DATABASE}.old")
        assert column(connected.con, "SELECT count(*) FROM rounds") == [7]
    assert (store / f"{DATABASE}.old").read_bytes() == damaged
    with connect(store) as connected:
        assert connected.notes == ()


@pytest.mark.parametrize(
    "change", [f"UPDATE schema_version SET version = {SCHEMA_VERSION + 1}", "DROP TABLE schema_version"]
)
def test_a_database_of_another_version_is_put_aside_and_made_anew(store: Path, change: str) -> None:
    with duckdb.connect(str(store / DATABASE)) as con:
        con.execute(change)
    report = load(store)
    assert report.notes == [
        f"{store / DATABASE} has the tables of another version of roundscope; it was made anew from the journals, "
        f"the old one is {store / DATABASE}.old"
    ]
    assert len(dump_file(store)["rounds"]) == 7
    assert load(store).notes == []


def test_a_journal_of_a_newer_version_is_left_out_as_a_whole(tmp_path: Path) -> None:
    newer = header(schema_version=SCHEMA_VERSION + 1, roundscope_version="9.9")
    write_lines(tmp_path, [newer, *rounds("theirs", 2)], "newer")
    write_lines(tmp_path, [header(), *rounds("ours", 2)], "ours")
    with connect(tmp_path) as connected:
        assert connected.notes == (
            f"newer.ndjson was written by roundscope 9.9 (records of version {SCHEMA_VERSION + 1}, known here: up to "
            f"{SCHEMA_VERSION}); it is left out until roundscope is upgraded",
        )
        assert column(connected.con, "SELECT DISTINCT journal FROM rounds") == ["ours.ndjson"]
        assert column(connected.con, "SELECT journal FROM journals") == ["ours.ndjson"]


def test_a_journal_of_an_older_version_is_read(tmp_path: Path) -> None:
    write_lines(tmp_path, [header(schema_version=0), *rounds("g", 2)])
    assert load(tmp_path).n_rejected == 0
    assert len(dump_file(tmp_path)["rounds"]) == 2


def test_a_journal_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path, whole_run())
    broken = path.with_name("broken.ndjson")
    broken.symlink_to(path.with_name("nowhere"))
    (path.parent / "folder.ndjson").mkdir()
    secret = write_lines(tmp_path, [header()], "secret")
    secret.chmod(0)
    report = load(tmp_path)
    assert report.n_lines == 15 + (os.geteuid() == 0)
    assert report.notes == ([] if os.geteuid() == 0 else [f"cannot read the journal {secret}: Permission denied"])


def test_older_clients_can_open_the_database(store: Path) -> None:
    with duckdb.connect() as con:
        con.execute(f"ATTACH '{store / DATABASE}' AS store (READ_ONLY)")
        tags = column(con, "SELECT tags['storage_version'] FROM duckdb_databases() WHERE database_name = 'store'")
    assert tags == ["v1.0.0+"]


ESCAPES = [
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM 'https://example.org/x.csv'",
    "COPY (SELECT 1) TO '{folder}/out.csv'",
    "COPY (SELECT 1) TO '{folder}/roundscope.duckdb'",
    "EXPORT DATABASE '{folder}/out'",
    "ATTACH '{folder}/out.duckdb'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SELECT getenv('HOME')",
    "SELECT * FROM secret_of_the_caller",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "SET allowed_directories = ['/']",
    "CREATE PERSISTENT SECRET s (TYPE s3)",
    "PRAGMA enable_profiling",
    "CALL enable_logging(storage = 'file', storage_config = {{'path': '{folder}/out'}})",
]


@pytest.mark.parametrize("source", ["database", "memory"])
def test_a_restricted_connection_reaches_nothing_but_its_tables(store: Path, source: str) -> None:
    secret_of_the_caller = duckdb.sql("SELECT 1 AS x")
    (store / "file").write_text("x")
    files = sorted(store.rglob("*"))
    with connect(store) as outer, connect(store, patience_s=0) as inner:
        con = outer.con if source == "database" else inner.con
        restrict(con)
        for escape in ESCAPES:
            with pytest.raises(duckdb.Error):
                con.execute(escape.format(file=store / "file", folder=store)).fetchall()
        assert column(con, "SELECT count(*) FROM rounds") == [7]
        con.execute("SET VARIABLE n = 3")
        assert column(con, "SELECT getvariable('n')") == [3]
    assert secret_of_the_caller.fetchall() == [(1,)]
    assert sorted(store.rglob("*")) == files


@pytest.mark.parametrize("statement", ["DELETE FROM rounds", "DROP TABLE runs", "CREATE TABLE x (i INT)"])
def test_the_database_is_open_for_reading_only(store: Path, statement: str) -> None:
    with connect(store) as connected, pytest.raises(duckdb.InvalidInputException, match="read-only"):
        connected.con.execute(statement)


def test_no_progress_is_drawn_between_the_data(store: Path) -> None:
    """DuckDB would write it to standard output after two seconds."""
    with connect(store) as connected:
        assert column(connected.con, "SELECT current_setting('enable_progress_bar')") == [False]


def test_journals_that_cannot_be_listed_are_not_taken_for_none(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("telemetry.loading.os.listdir", refuse)
    with pytest.raises(RoundscopeError, match=r"cannot read the journals in .*journal: Permission denied"):
        connect(store).__enter__()
