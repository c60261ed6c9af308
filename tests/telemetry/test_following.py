"""Following journals: growth, torn lines, files that are replaced or removed, resuming, many writers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from telemetry.following import Follower, Line
from telemetry.journal import FOLDER, Journal
from telemetry.records import SCHEMA_VERSION, Record
from tests.telemetry import stores
from tests.telemetry.disk import note


def given(lines: list[Line]) -> list[tuple[str, int, Record | None]]:
    """What was handed out, without faults."""
    return [(line.journal, line.number, line.record) for line in lines]


def numbered(name: str, records: list[Record], first: int = 1) -> list[tuple[str, int, Record | None]]:
    """The same, expected."""
    return [(name, number, record) for number, record in enumerate(records, first)]


def test_what_is_new_is_handed_out_once_while_a_journal_grows(tmp_path: Path) -> None:
    follower = Follower(tmp_path / FOLDER)
    assert follower.poll() == []
    with Journal(tmp_path) as journal:
        name = journal.path.name
        assert [line.number for line in follower.poll()] == [1]
        assert follower.writer(name) == "running"
        journal.write(note(1))
        journal.write(note(2))
        assert given(follower.poll()) == numbered(name, [note(1), note(2)], 2)
        assert follower.poll() == []
        journal.write(note(3))
        assert given(follower.poll()) == numbered(name, [note(3)], 4)
    assert follower.poll() == []
    assert follower.writers == {name: "ended"}


def test_a_line_its_living_writer_has_not_finished_is_left_for_later(tmp_path: Path) -> None:
    follower = Follower(tmp_path / FOLDER)
    with Journal(tmp_path) as journal:
        follower.poll()
        line = stores.encode(note(1)) + b"\n"
        with journal.path.open("ab") as file:
            file.write(line[:20])
            file.flush()
            assert follower.poll() == []
            file.write(line[20:])
        assert given(follower.poll()) == numbered(journal.path.name, [note(1)], 2)


def test_a_dead_writers_torn_line_is_a_fault_and_its_whole_one_a_record(tmp_path: Path) -> None:
    torn = stores.write_lines(tmp_path, stores.whole_run(), "a")
    torn.write_bytes(torn.read_bytes()[:-9])
    whole = stores.write_lines(tmp_path, [stores.header(), note(1)], "b")
    whole.write_bytes(whole.read_bytes()[:-1])
    follower = Follower(tmp_path / FOLDER)
    lines = follower.poll()
    *records, last = stores.whole_run()
    assert lines == [
        *(Line("a.ndjson", number, record) for number, record in enumerate(records, 1)),
        Line("a.ndjson", len(records) + 1, None, "the line breaks off", "torn"),
        Line("b.ndjson", 1, stores.header()),
        Line("b.ndjson", 2, note(1)),
    ]
    assert follower.poll() == []
    # Neither was the last word: what is whole now is handed out, what was handed out is not again.
    torn.write_bytes(torn.read_bytes() + (stores.encode(last) + b"\n")[-9:])
    whole.write_bytes(whole.read_bytes() + b"\n" + stores.encode(note(2)) + b"\n")
    assert given(follower.poll()) == [
        ("a.ndjson", len(records) + 1, last),
        ("b.ndjson", 3, note(2)),
    ]


def test_bad_lines_come_with_their_fault_and_never_stop_the_rest(tmp_path: Path) -> None:
    lines = [stores.header(), b"{}", b'{"type":"round"', b"", b"[" * 100_000, b"\xff", note(1)]
    stores.write_lines(tmp_path, lines)
    found = Follower(tmp_path / FOLDER).poll()
    assert [line.kind for line in found] == [None, "invalid", "torn", "torn", "invalid", "invalid", None]
    assert all((line.record is None) == (line.fault is not None) for line in found)
    assert found[1].fault == "Object missing required field `type`"
    assert found[6].record == note(1)


def test_a_rewritten_journal_gives_only_what_is_beyond_and_another_ones_gives_all(tmp_path: Path) -> None:
    follower = Follower(tmp_path / FOLDER)
    stores.write_lines(tmp_path, [stores.header(), note(1), note(2)])
    follower.poll()
    stores.write_lines(tmp_path, [stores.header(), note(7), note(8), note(3)])
    assert given(follower.poll()) == [("a.ndjson", 4, note(3))]
    stores.write_lines(tmp_path, [stores.header(), note(1)])  # cut short
    assert follower.poll() == []
    other = [stores.header(pid=8), note(1), note(9)]
    stores.write_lines(tmp_path, other)
    assert given(follower.poll()) == numbered("a.ndjson", other)


def test_a_removed_journal_is_remembered_and_not_given_again_when_it_comes_back(tmp_path: Path) -> None:
    follower = Follower(tmp_path / FOLDER)
    stores.write_lines(tmp_path, [stores.header(), note(1)])
    path = stores.write_lines(tmp_path, [stores.header(), note(2)], "b")
    assert len(follower.poll()) == 4
    path.rename(tmp_path / "b")
    assert follower.poll() == []
    resumed = Follower(tmp_path / FOLDER, follower.state)
    assert resumed.poll() == []
    (tmp_path / "b").rename(path)
    assert resumed.poll() == []
    assert list(resumed.state) == ["a.ndjson", "b.ndjson"]


def test_it_resumes_from_its_state_as_json_holds_it(tmp_path: Path) -> None:
    follower = Follower(tmp_path / FOLDER)
    with Journal(tmp_path) as journal:
        journal.write(note(1))
        follower.poll()
        state = json.loads(json.dumps(follower.state))
        journal.write(note(2))
    stores.write_lines(tmp_path, [stores.header()], "z")
    expected = [*numbered(journal.path.name, [note(2)], 3), ("z.ndjson", 1, stores.header())]
    assert given(Follower(tmp_path / FOLDER, state).poll()) == expected
    assert given(follower.poll()) == expected


def test_many_journals_in_polls_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telemetry.following.POLL_LINES", 3)
    monkeypatch.setattr("telemetry.reading.BATCH_BYTES", 400)
    records = {f"{n}.ndjson": [stores.header(pid=n), *map(note, range(n))] for n in range(9)}
    for name, content in records.items():
        stores.write_lines(tmp_path, content, name.removesuffix(".ndjson"))
    follower, polls = Follower(tmp_path / FOLDER), []
    while lines := follower.poll():
        polls.append(lines)
    assert len(polls) > 3
    assert given([line for lines in polls for line in lines]) == [
        each for name, content in records.items() for each in numbered(name, content)
    ]


def test_only_the_journals_asked_for(tmp_path: Path) -> None:
    for name in "abc":
        stores.write_lines(tmp_path, [stores.header(), note(1)], name)
    (tmp_path / FOLDER / "b.txt").write_text("no journal")
    follower = Follower(tmp_path / FOLDER, journals=["b.ndjson", "later.ndjson"])
    assert {line.journal for line in follower.poll()} == {"b.ndjson"}


def test_a_journal_of_a_newer_version_is_left_out_once_with_its_reason(tmp_path: Path) -> None:
    newer = stores.header(schema_version=SCHEMA_VERSION + 1, roundscope_version="9")
    stores.write_lines(tmp_path, [newer, note(1)])
    follower = Follower(tmp_path / FOLDER)
    [line] = follower.poll()
    assert (line.number, line.record, line.kind) == (0, None, "too_new")
    assert line.fault is not None
    assert line.fault.startswith("a.ndjson was written by roundscope 9")
    assert follower.poll() == Follower(tmp_path / FOLDER, follower.state).poll() == []


def test_a_folder_that_vanishes_while_it_is_looked_into_has_no_journals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.write_lines(tmp_path, [stores.header(), note(1)])
    follower = Follower(tmp_path / FOLDER)
    assert len(follower.poll()) == 2
    list_names = os.listdir

    def remove_first(folder: Path) -> list[str]:
        shutil.rmtree(folder)
        return list_names(folder)

    monkeypatch.setattr(os, "listdir", remove_first)
    assert (follower.poll(), follower.writers) == ([], {"a.ndjson": "ended"})


def test_a_journal_that_cannot_be_read_is_said_once(tmp_path: Path) -> None:
    (tmp_path / FOLDER / "a.ndjson").mkdir(parents=True)
    follower = Follower(tmp_path / FOLDER)
    assert follower.poll() == [Line("a.ndjson", 0, None, "Is a directory", "unreadable")]
    assert follower.poll() == []
