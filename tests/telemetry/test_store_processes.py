"""Recording and loading by several processes at once, and by processes that die."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from telemetry.store import DATABASE, connect, load
from tests.conftest import ROOT, child_environment, run_python
from tests.telemetry.stores import column, dump_file

N_WRITERS = 10
PREAMBLE = """
import os, sys, time
from pathlib import Path
from telemetry.journal import Journal
from telemetry.store import load
from tests.telemetry.stores import generation, generation_end, rounds

store, name = Path(sys.argv[1]), sys.argv[2]
journal = Journal(store)
journal.write(generation(name))
"""
OPEN = (
    PREAMBLE
    + """
for record in rounds(name, 5):
    journal.write(record)
print("recorded", flush=True)
{end}
"""
)


@contextmanager
def start(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A child that runs `code`, once it has said that it has recorded."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=child_environment()
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "recorded\n"
        yield child


def generations(store: Path) -> list[tuple[str, str, int]]:
    """Every generation with its finish reason and number of rounds in the tables."""
    with connect(store) as connected:
        rows = connected.con.execute(
            "SELECT generation_id, finish_reason, count(index) FROM generations LEFT JOIN rounds USING (generation_id) "
            "GROUP BY ALL ORDER BY ALL"
        ).fetchall()
        assert connected.source == "database"
    return rows


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_every_closed_round_of_a_killed_process_is_there_and_its_generation_is_aborted(
    tmp_path: Path, death: signal.Signals
) -> None:
    """opentelemetry-python#4813; and duckdb#17158: the report works before, from another process, during the run."""
    with start(OPEN.format(end="sys.stdin.read()"), str(tmp_path), "g") as child:
        assert generations(tmp_path) == [("g", "running", 5)]
        child.send_signal(death)
        assert child.wait() == -death
        assert generations(tmp_path) == [("g", "aborted", 5)]


def test_every_closed_round_before_os_exit_is_there(tmp_path: Path) -> None:
    with start(OPEN.format(end="os._exit(3)"), str(tmp_path), "g") as child:
        assert child.wait() == 3
        assert generations(tmp_path) == [("g", "aborted", 5)]


def test_a_killed_load_is_taken_up(tmp_path: Path) -> None:
    """What a process leaves that dies while it loads is whole; the next load makes of it what a first one would."""
    code = """
from telemetry import inserting, loading
really_insert, n = inserting.insert, 0
def insert(*arguments):
    global n
    n += 1
    if n == {n}:
        os.kill(os.getpid(), 9)
    return really_insert(*arguments)
inserting.insert, loading.GROUPS_AT_ONCE = insert, 1
load(store)
"""
    for n in (1, 2, 3):
        with start(OPEN.format(end=code.format(n=n)), str(tmp_path), f"g{n}") as child:
            assert child.wait() == -signal.SIGKILL
    assert generations(tmp_path) == [(f"g{n}", "aborted", 5) for n in (1, 2, 3)]
    found = dump_file(tmp_path)
    (tmp_path / DATABASE).unlink()
    load(tmp_path)
    assert dump_file(tmp_path) == found


def test_a_run_of_one_round_is_in_the_database_when_its_process_has_ended(tmp_path: Path) -> None:
    """knowledge-base-mcp-server#879: nothing is still in a queue when a short command exits."""
    code = PREAMBLE + "journal.write(*rounds(name, 1)); journal.write(generation_end(name, n_rounds=1)); load(store)"
    child = run_python(code, str(tmp_path), "g")
    assert (child.returncode, child.stderr) == (0, "")
    tables = dump_file(tmp_path)
    assert [row[:2] for row in tables["rounds"]] == [("g", 0)]
    assert len(tables["generations"]) == 1


WRITER = (
    PREAMBLE
    + """
print("recorded", flush=True)
sys.stdin.readline()
for n in range(6):
    journal.write(generation(f"{name}-{n}"))
    for record in rounds(f"{name}-{n}", 30):
        journal.write(record)
    journal.write(generation_end(f"{name}-{n}", n_rounds=30))
journal.write(generation_end(name))
load(store, patience_s=300)
"""
)


def test_several_processes_record_into_one_store_while_others_load_it(tmp_path: Path) -> None:
    """Each load sees a state that was; in the end all is there once, as if it had been loaded at once."""
    names = [f"writer-{n}" for n in range(N_WRITERS)]
    with ExitStack() as stack:
        children = [stack.enter_context(start(WRITER, str(tmp_path), name)) for name in names]
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        seen = [0]
        while any(child.poll() is None for child in children):
            with connect(tmp_path, patience_s=300) as connected:
                seen += column(connected.con, "SELECT count(*) FROM rounds")
                beheaded = "FROM rounds ANTI JOIN generations USING (generation_id) SELECT count(*)"
                assert column(connected.con, beheaded) == [0]
                torn = "SELECT sum(n_torn) + sum(n_rejected) FROM journals"
                assert column(connected.con, torn) == [0]
        assert [child.returncode for child in children] == [0] * N_WRITERS
    assert seen == sorted(seen)
    found = generations(tmp_path)
    assert found == sorted(
        [(name, "length", 0) for name in names] + [(f"{name}-{n}", "length", 30) for name in names for n in range(6)]
    )
    tables = dump_file(tmp_path)
    (tmp_path / DATABASE).unlink()
    load(tmp_path)
    assert dump_file(tmp_path) == tables
