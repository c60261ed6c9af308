"""The journal when writing fails: every loss is counted, noted in the file and warned about once; none is raised."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.errors import RoundscopeError
from telemetry.journal import _CUT_SHORT, Journal
from telemetry.records import LossRecord, RunEnd
from tests.conftest import run_python
from tests.telemetry.disk import Disk, decode_line, note, read, salvage


def test_a_failed_write_is_counted_noted_and_warned_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Disk full while recording: one warning, the loss in the file once it works, everything else as it was."""
    with Journal(tmp_path) as journal:
        journal.write(note(0))
        monkeypatch.setattr(os, "write", Disk(["full", "full", "full"]).write)
        for index in range(1, 6):
            journal.write(note(index))
    assert read(journal.path)[1:] == [
        note(0),
        LossRecord(n_records=3, reason="No space left on device"),
        note(4),
        note(5),
    ]
    assert journal.n_lost == 3
    warned = capsys.readouterr()
    assert warned.out == ""
    assert warned.err.count("journal.write_failed") == 1
    assert "No space left on device" in warned.err
    assert str(journal.path) in warned.err


def test_after_a_torn_line_the_next_record_starts_on_a_new_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(tmp_path) as journal:
        monkeypatch.setattr(os, "write", Disk([None, 50, None, None]).write)
        for index in range(3):
            journal.write(note(index))
    lines = journal.path.read_bytes().splitlines()
    assert [decode_line(line) for line in lines[1:2] + lines[3:]] == [
        note(0),
        LossRecord(n_records=1, reason="only part of a line was written: the disk is probably full"),
        note(2),
    ]
    with pytest.raises(msgspec.DecodeError):
        decode_line(lines[2])


def test_a_line_that_lacks_but_its_end_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path) as journal:
        monkeypatch.setattr(os, "write", Disk(["end", None, None, "gone", "end"]).write)
        for index in range(4):
            journal.write(note(index))
    # The third is lost, and so is the fourth: its note is what was written but for the end of the line.
    lost = [LossRecord(n_records=1, reason="Input/output error"), LossRecord(n_records=1, reason=_CUT_SHORT)]
    assert read(journal.path)[1:] == [note(0), note(1), *lost]
    assert journal.n_lost == 2


def test_losses_at_the_end_are_noted_when_closing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    monkeypatch.setattr(os, "write", Disk(["gone"]).write)
    journal.write(note(1))
    journal.close()
    assert read(journal.path)[1:] == [LossRecord(n_records=1, reason="Input/output error")]


STEPS = st.one_of(st.none(), st.integers(0, 100), st.sampled_from(["full", "gone", "end"]))


@settings(max_examples=200)
@given(script=st.lists(STEPS, max_size=30), n=st.integers(0, 20))
def test_whatever_the_disk_does_records_are_there_or_counted(
    tmp_path_factory: pytest.TempPathFactory, script: list[Any], n: int
) -> None:
    journal = Journal(tmp_path_factory.mktemp("store"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "write", Disk(script).write)
        for index in range(n):
            journal.write(note(index))
        assert journal.n_lost <= n
        patched.setattr(os, "write", Disk([]).write)
        journal.close()
    _, *found = salvage(journal.path)
    records = [record.ended_wall_ns for record in found if isinstance(record, RunEnd)]
    assert records == sorted(set(records))
    assert len(records) + journal.n_lost == n
    assert sum(record.n_records for record in found if isinstance(record, LossRecord)) == journal.n_lost


def test_a_warning_that_cannot_be_written_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error may be a file on the same full disk, or closed."""
    with Journal(tmp_path) as journal, (tmp_path / "log").open("w") as log:
        log.close()
        monkeypatch.setattr(sys, "stderr", log)
        monkeypatch.setattr(os, "write", Disk(["full"]).write)
        journal.write(note(1))
        journal.write(note(2))
    assert read(journal.path)[1:] == [LossRecord(n_records=1, reason="No space left on device"), note(2)]


def test_a_record_that_is_no_text_is_lost_and_counted(tmp_path: Path) -> None:
    """A command line may hold bytes that are no UTF-8; Python shows them as lone surrogates."""
    with Journal(tmp_path) as journal:
        journal.write(RunEnd(run_id="\udcff", outcome="complete", ended_wall_ns=1))
        journal.write(note(2))
    [loss, after] = read(journal.path)[1:]
    assert (loss.n_records, after, journal.n_lost) == (1, note(2), 1)
    assert loss.reason == "the record is no text: surrogates not allowed"


def test_a_disk_that_is_full_before_the_first_line_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_open = len(os.listdir("/dev/fd"))
    for step in ("full", 50):
        monkeypatch.setattr(os, "write", Disk([step]).write)
        with pytest.raises(RoundscopeError, match="cannot write a journal in"):
            Journal(tmp_path)
        assert list((tmp_path / "journal").iterdir()) == []
    assert len(os.listdir("/dev/fd")) == n_open


LIMITED = """
import resource, sys
from telemetry.journal import Journal
from telemetry.records import RunEnd

journal = Journal(sys.argv[1])
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
size = journal.path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
for index in range(5):
    journal.write(RunEnd(run_id="r", outcome="complete", ended_wall_ns=index))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
journal.write(RunEnd(run_id="r", outcome="complete", ended_wall_ns=5))
journal.close()
print(journal.path)
print(journal.n_lost)
"""


def test_a_file_that_hits_its_size_limit(tmp_path: Path) -> None:
    """A real one: the second line is torn, further ones fail, and the last finds room again."""
    child = run_python(LIMITED, str(tmp_path))
    assert child.returncode == 0, child.stderr
    path, n_lost = child.stdout.split()
    _, *found = salvage(Path(path))
    assert found == [note(0), LossRecord(n_records=4, reason="File too large"), note(5)]
    assert n_lost == "4"
    assert child.stderr.count("journal.write_failed") == 1
