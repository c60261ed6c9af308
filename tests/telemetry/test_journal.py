"""The journal's writer: one line a record, a lock while it lives, and a file of its own in every process."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from telemetry.errors import RoundscopeError
from telemetry.journal import Journal
from telemetry.records import SCHEMA_VERSION, JournalRecord, LossRecord, RunEnd, RunRecord
from tests.conftest import run_python
from tests.telemetry.disk import note, read


def is_locked(path: Path) -> bool:
    """Whether somebody holds the journal's lock."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_lines_are_the_records_in_order_after_a_header(tmp_path: Path) -> None:
    with Journal(tmp_path / "store") as journal:
        for index in range(3):
            journal.write(note(index))
            assert len(read(journal.path)) == index + 2  # there at once: nothing is buffered
    header, *records = read(journal.path)
    assert records == [note(0), note(1), note(2)]
    assert (header.schema_version, header.host, header.pid) == (SCHEMA_VERSION, socket.gethostname(), os.getpid())
    assert isinstance(header, JournalRecord)
    assert journal.path.parent == tmp_path / "store" / "journal"
    assert re.fullmatch(rf"\d{{8}}T\d{{6}}-.+-{os.getpid()}-[0-9a-f]{{8}}\.ndjson", journal.path.name)
    assert journal.n_lost == 0


def test_fields_that_are_not_set_are_left_out_and_zeros_are_not(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.write(note(0))
    assert journal.path.read_bytes().splitlines()[1] == (
        b'{"type":"run_end","run_id":"r","outcome":"complete","ended_wall_ns":0}'
    )


def test_the_lock_is_held_while_the_journal_is_open(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert is_locked(journal.path)
    journal.close()
    assert not is_locked(journal.path)


def test_two_journals_in_one_process_are_two_files(tmp_path: Path) -> None:
    with Journal(tmp_path) as first, Journal(tmp_path) as second:
        first.write(note(1))
        second.write(note(2))
        assert is_locked(first.path)
        assert is_locked(second.path)
    assert [read(each.path)[1:] for each in (first, second)] == [[note(1)], [note(2)]]
    assert sorted(path.name for path in (tmp_path / "journal").iterdir()) == sorted(
        each.path.name for each in (first, second)
    )


def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(ValueError, match=re.escape(f"the journal {journal.path} is closed")):
        journal.write(note(1))
    assert len(read(journal.path)) == 1


def test_a_store_that_cannot_be_written_to_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RoundscopeError) as caught:
        Journal(tmp_path / "file")
    assert str(caught.value) == (
        f"cannot write a journal in {tmp_path / 'file' / 'journal'}: Not a directory. Choose another place with "
        "--store DIR."
    )


def test_threads_may_share_one(tmp_path: Path) -> None:
    """Every line is whole: one write a record on an appending file."""
    with Journal(tmp_path) as journal:

        def work(start: int) -> None:
            for index in range(start, start + 200):
                journal.write(note(index))

        threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [record.ended_wall_ns for record in read(journal.path)[1:]]
    assert sorted(found) == [1000 * n + index for n in range(4) for index in range(200)]


FORKING = """
import os, sys
from telemetry.journal import Journal
from telemetry.records import RunEnd

def note(index):
    return RunEnd(run_id="r", outcome="complete", ended_wall_ns=index)

journal, silent, closed = Journal(sys.argv[1]), Journal(sys.argv[1]), Journal(sys.argv[1])
closed.close()
journal.write(note(1))
really_write, os.write = os.write, lambda fd, data: really_write(-1, data)
journal.write(note(8))
os.write = really_write
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.close(go[1])
    journal.write(note(2))
    assert journal.n_lost == 0
    try:
        closed.write(note(9))
    except ValueError:
        journal.write(note(3))
    os.write(ready[1], os.fsencode(journal.path))
    os.read(go[0], 1)
    os._exit(0)
os.close(ready[1])
theirs = os.read(ready[0], 4096).decode()
journal.write(note(4))
ours = journal.path
journal.close()
import fcntl
file = open(ours, "rb")
fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
try:
    fcntl.flock(open(theirs, "rb"), fcntl.LOCK_SH | fcntl.LOCK_NB)
except BlockingIOError:
    print("the child's is locked")
os.write(go[1], b"x")
os.waitpid(child, 0)
fcntl.flock(open(theirs, "rb"), fcntl.LOCK_SH | fcntl.LOCK_NB)
print(ours)
print(theirs)
print(len(os.listdir(ours.parent)))
"""


def test_a_forked_child_writes_a_file_of_its_own_and_keeps_no_lock_of_its_parents(tmp_path: Path) -> None:
    """A journal that the child never writes to makes no file, and one that is closed stays closed."""
    child = run_python(FORKING, str(tmp_path))
    assert child.returncode == 0, child.stderr
    said, ours, theirs, n_files = child.stdout.splitlines()
    assert said == "the child's is locked"
    first, second = read(Path(ours)), read(Path(theirs))
    assert [type(record) for record in first] == [JournalRecord, RunEnd, LossRecord, RunEnd]
    assert (first[1], first[3], second[1:]) == (note(1), note(4), [note(2), note(3)])
    assert first[0].pid != second[0].pid
    assert n_files == "4"


def test_a_started_program_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = "import subprocess, sys; from telemetry.journal import Journal; j = Journal(sys.argv[1])\n"
    code += "p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE); j.close()\n"
    code += "import fcntl; fcntl.flock(open(j.path, 'rb'), fcntl.LOCK_SH | fcntl.LOCK_NB); p.communicate(b'x')\n"
    child = run_python(code, str(tmp_path))
    assert child.returncode == 0, child.stderr


DYING = """
import os, signal, sys
from runtime.generate import speculate
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.journal import Journal
from telemetry.recorder import Recorder

target = ScriptedTarget(lambda history: (history[-1] + 1) % 26, vocab_size=26)
drafter = ScriptedDrafter(lambda history, m: [(history[-1] + 1) % 26] * m)
recorder = Recorder(Journal(sys.argv[1]))
for entry in speculate(target, drafter, [0], draft_length=2, max_tokens=40, recorder=recorder):
    if entry.index == 4:
        {death}
"""


@pytest.mark.parametrize(
    "death", ["os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGTERM)", "os._exit(3)"]
)
def test_every_closed_round_outlives_its_process(tmp_path: Path, death: str) -> None:
    """opentelemetry-python#4813: SIGTERM, `os._exit` and kill -9 lose nothing, and leave the lock free."""
    child = run_python(DYING.format(death=death), str(tmp_path))
    assert child.returncode != 0
    [path] = (tmp_path / "journal").iterdir()
    kinds = [msgspec.to_builtins(record)["type"] for record in read(path)]
    assert kinds == ["journal", "generation", *["round"] * 5]
    assert not is_locked(path)


def test_a_run_record_survives_the_journey(tmp_path: Path) -> None:
    record = RunRecord(
        kind="speculation",
        run_id="r",
        started_wall_ns=2**63 - 1,
        command="roundscope run --prompts 'a b.txt'",
        model="größe",
        dtype="float32",
        parameter_bytes=1,
        workload="w",
        workload_digest="0" * 64,
        n_prompts=1,
        arms=["ordinary", "prompt-lookup m=4"],
        timing="fused",
        seed=-5,
        max_tokens=1,
        repeats=1,
        record_text=False,
        roundscope_version="0",
        python_version="3",
        mlx_version="0",
        os="o",
        machine="m",
        host="h",
        cpu="c",
        cores=2,
        device="cpu",
        blas="stock",
        precision={"MLX_ENABLE_TF32": "0"},
    )
    with Journal(tmp_path) as journal:
        journal.write(record)
    assert read(journal.path)[1:] == [record]
