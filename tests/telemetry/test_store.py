"""From journals to tables: every line once, in whatever order the lines and the loads come."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import duckdb
import pytest

from telemetry import inserting, loading, reading
from telemetry.errors import UsageError
from telemetry.journal import Journal
from telemetry.records import SCHEMA_VERSION, LossRecord, Record, RoundRecord
from telemetry.store import DATABASE, connect, load
from tests.telemetry.stores import (
    column,
    comparison,
    dump,
    dump_file,
    encode,
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


def test_a_store_without_news_is_only_read(tmp_path: Path) -> None:
    """Whatever has grown, come or gone since the last load is noticed; else the file stays as it is."""

    def count() -> Any:
        with connect(tmp_path) as connected:
            return column(connected.con, "SELECT count(*) FROM rounds")[0]

    path = write_lines(tmp_path, whole_run())
    counts = [count()]
    before = (tmp_path / DATABASE).stat()
    counts.append(count())
    after = (tmp_path / DATABASE).stat()
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    with open(path, "ab") as file:
        file.write(encode(list(rounds("g1", 4))[-1]) + b"\n")
    counts.append(count())
    write_lines(tmp_path, [header(), generation("h"), *rounds("h", 3)], "b")
    counts.append(count())
    assert counts == [6, 6, 7, 10]


def test_a_journal_becomes_rows(tmp_path: Path) -> None:
    write_lines(tmp_path, whole_run())
    report = load(tmp_path)
    assert (report.n_lines, report.n_rejected, report.n_torn, report.n_lost, report.notes) == (15, 0, 0, 0, [])
    with duckdb.connect(str(tmp_path / DATABASE), read_only=True) as con:
        assert con.execute(
            "SELECT run_id, seed, arms, precision, outcome, ended_wall_ns, journal FROM runs"
        ).fetchall() == [
            ("run-1", -3, ["ordinary", "prompt-lookup-8"], {"MLX_ENABLE_TF32": "0"}, "complete", 9, "a.ndjson")
        ]
        assert con.execute(
            "SELECT generation_id, class, finish_reason, n_rounds, equal, pair_id, near_tie, journal FROM generations"
        ).fetchall() == [(name, "copy", "length", 3, True, "ordinary-1", None, "a.ndjson") for name in ("g1", "g2")]
        assert con.execute(
            "SELECT generation_id, index, committed, outcome, draft_basis, rewind_basis, proposal, journal FROM rounds"
        ).fetchall() == [
            (name, index, index + 1, "correction", "host", None, None, "a.ndjson")
            for name in ("g1", "g2")
            for index in range(3)
        ]
        assert column(con, "SELECT count(*) FROM rejected UNION ALL SELECT count(*) FROM waiting") == [0, 0]
        assert con.execute("SELECT * EXCLUDE (fingerprint, bytes_read) FROM journals").fetchall() == [
            ("a.ndjson", SCHEMA_VERSION, header().host, 7, 5, "0.1", "ended", 15, 0, 0, 0, None)
        ]


def test_nanoseconds_are_exact(tmp_path: Path) -> None:
    write_lines(tmp_path, [header(), generation("g", started_wall_ns=1_764_425_538_123_456_789)])
    with connect(tmp_path) as connected:
        assert column(connected.con, "SELECT started_wall_ns FROM generations") == [1_764_425_538_123_456_789]


def test_a_zero_is_0_and_what_is_not_there_is_null(tmp_path: Path) -> None:
    zeros = {"n_rounds": 0, "n_committed": 0, "prefill_ns": 0, "ttft_ns": 0, "cache_bytes": 0}
    write_lines(
        tmp_path, [header(), generation("g", repeat=0), generation_end("g", **zeros), comparison("g", top2_gap=0.0)]
    )
    with connect(tmp_path) as connected:
        assert connected.con.execute(
            f"SELECT {', '.join(zeros)}, top2_gap, repeat, warm_up, stop_kind, tolerance FROM generations"
        ).fetchall() == [(0, 0, 0, 0, 0, 0.0, 0, False, None, None)]


def test_token_ids_and_text_are_kept_where_they_were_recorded(tmp_path: Path) -> None:
    text = 'caf\u00e9 "\u4f60\n\x00\\'
    write_lines(
        tmp_path,
        [
            header(),
            generation("g", prompt_ids=[1, 2]),
            *rounds("g", 1, proposal=[3, 4, 5, 6], tokens=[]),
            generation_end("g", text=text),
        ],
    )
    with connect(tmp_path) as connected:
        assert connected.con.execute(
            "SELECT prompt_ids, text, proposal, tokens FROM generations JOIN rounds USING (generation_id)"
        ).fetchall() == [([1, 2], text, [3, 4, 5, 6], [])]


def test_loading_again_changes_nothing(tmp_path: Path) -> None:
    write_lines(tmp_path, [*whole_run(), *rounds("g1", 1), b"rubbish", comparison("nobody")])
    load(tmp_path)
    first = dump_file(tmp_path)
    report = load(tmp_path)
    assert (report.n_lines, report.n_rejected) == (0, 0)
    assert dump_file(tmp_path) == first
    (tmp_path / DATABASE).unlink()
    load(tmp_path)
    assert dump_file(tmp_path) == first


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path, [header(), *whole_generation("g1")])
    load(tmp_path)
    seen: list[bytes] = []
    really_decode = reading.decode_line
    monkeypatch.setattr(reading, "decode_line", lambda line: (seen.append(line), really_decode(line))[1])
    [new] = rounds("g2", 1)
    with path.open("ab") as file:
        file.write(encode(new) + b"\n")
    assert load(tmp_path).n_lines == 1
    assert seen == [encode(new)]


@pytest.mark.parametrize("batch_bytes", [1, 300, 1000, 5000])
def test_batches_of_any_size_give_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    """Also lines that are longer than a batch, and several journals in one group."""
    long = rounds("long", 1, proposal=list(range(4)), tokens=list(range(2000)))
    for name in ("a", "b", "c"):
        write_lines(tmp_path, [header(), *whole_generation(name), b"rubbish", *rounds(name, 1)], name)
    write_lines(tmp_path, [header(), *long, *whole_generation("d")], "d")
    load(tmp_path)
    expected = dump_file(tmp_path)
    assert len(expected["rounds"]) == 13
    assert [row[:3] for row in expected["rejected"]] == [
        (f"{name}.ndjson", line, reason)
        for name in "abc"
        for line, reason in (
            (8, "JSON is malformed: invalid character (byte 0)"),
            (9, "a row of the same key is there already"),
        )
    ]
    (tmp_path / DATABASE).unlink()
    monkeypatch.setattr(reading, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(loading, "BATCH_BYTES", batch_bytes)
    load(tmp_path)
    assert dump_file(tmp_path) == expected


JOURNALS: dict[str, list[Record]] = {
    "compares": [header(), comparison("g", equal=False, diverged_at=2, near_tie=True)],
    "ends": [header(), generation_end("g"), run_end()],
    "opens": [header(), run(), generation("g"), *rounds("g", 3)],
}


@pytest.mark.parametrize(
    "order", [["opens", "ends", "compares"], ["compares", "ends", "opens"], ["ends", "opens", "compares"]]
)
def test_ends_and_comparisons_wait_for_their_rows_across_journals(tmp_path: Path, order: list[str]) -> None:
    together = tmp_path / "together"
    for name, records in JOURNALS.items():
        write_lines(together, records, name)
    load(together)
    expected = dump_file(together)
    assert expected["waiting"] == []
    one_by_one = tmp_path / "one by one"
    for name in order:
        write_lines(one_by_one, JOURNALS[name], name)
        load(one_by_one)
    assert dump_file(one_by_one) == expected
    with connect(together) as connected:
        assert connected.con.execute(
            "SELECT finish_reason, equal, diverged_at, near_tie FROM generations"
        ).fetchall() == [("length", False, 2, True)]


def test_what_belongs_to_nothing_keeps_waiting(tmp_path: Path) -> None:
    write_lines(tmp_path, [header(), generation_end("nobody"), *rounds("nobody", 1)])
    load(tmp_path)
    with connect(tmp_path) as connected:
        assert connected.con.execute("SELECT journal, line, type FROM waiting").fetchall() == [
            ("a.ndjson", 2, "generation_end")
        ]
        assert column(connected.con, "SELECT generation_id FROM rounds") == ["nobody"]


def test_losses_are_counted_and_named_once(tmp_path: Path) -> None:
    losses = [LossRecord(n_records=n, reason="No space left on device") for n in (3, 2)]
    write_lines(tmp_path, [header(), losses[0], b'{"type":', b"rubbish", losses[1]])
    note = "new in the journals: 1 torn lines, 1 rejected ones (see the table `rejected`), 5 records that could not be "
    with connect(tmp_path) as connected:
        assert connected.notes == (f"{note}written",)
        counts = "SELECT n_lines, n_torn, n_rejected, n_lost FROM journals"
        assert connected.con.execute(counts).fetchall() == [(5, 1, 1, 5)]
    with connect(tmp_path) as connected:
        assert connected.notes == ()


def finish_reasons(store: Path) -> dict[str, str]:
    with connect(store) as connected:
        return dict(connected.con.execute("SELECT generation_id, finish_reason FROM generations").fetchall())


def test_an_open_generation_is_running_while_its_writer_lives_and_aborted_afterwards(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.write(generation("done"))
        journal.write(generation_end("done", finish_reason="stop"))
        journal.write(generation("open"))
        assert finish_reasons(tmp_path) == {"done": "stop", "open": "running"}
        journal.write(*rounds("open", 1))
        assert finish_reasons(tmp_path) == {"done": "stop", "open": "running"}
    assert finish_reasons(tmp_path) == {"done": "stop", "open": "aborted"}


def test_what_another_machine_left_open_is_unknown(tmp_path: Path) -> None:
    write_lines(tmp_path, [header(host="elsewhere"), generation("theirs")], "theirs")
    write_lines(tmp_path, [b"rubbish", generation("damaged")], "damaged")
    assert finish_reasons(tmp_path) == {"theirs": "unknown", "damaged": "unknown"}


def test_a_journal_that_is_gone_is_not_running(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.write(generation("open"))
        assert finish_reasons(tmp_path) == {"open": "running"}
        journal.path.unlink()
        assert finish_reasons(tmp_path) == {"open": "unknown"}


def test_looking_at_the_lock_does_not_take_it(tmp_path: Path) -> None:
    """A writer that begins right after it gets its lock at once, and several may look."""
    path = write_lines(tmp_path, [header()])
    with path.open("rb") as one, path.open("rb") as two, path.open("rb") as three:
        fcntl.flock(one, fcntl.LOCK_SH)
        assert reading.is_locked(two.fileno()) is False
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.flock(three, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert reading.is_locked(two.fileno()) is True


def test_an_interrupted_load_keeps_what_was_there_says_what_is_missing_and_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """duckdb "Garbage collection discards buffered rows": whole transactions stay, the rest is read again."""
    paths = [write_lines(tmp_path, [header(), *whole_generation(name)], name) for name in ("a", "b", "c")]
    load(tmp_path)
    (tmp_path / DATABASE).rename(tmp_path / "whole")
    monkeypatch.setattr(loading, "BATCH_BYTES", 1)
    monkeypatch.setattr(loading, "GROUPS_AT_ONCE", 1)
    really_insert, calls = inserting.insert, 0

    def insert(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return really_insert(*arguments)

    monkeypatch.setattr(inserting, "insert", insert)
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path)
    assert [row[0] for row in dump_file(tmp_path)["generations"]] == ["a"]
    [said] = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    with duckdb.connect(str(tmp_path / DATABASE), read_only=True) as con:
        read = dict(con.execute("select journal, bytes_read from journals").fetchall())
    unread = {path.name: n for path in paths if (n := path.stat().st_size - read.get(path.name, 0))}
    assert unread.keys() >= {"b.ndjson", "c.ndjson"}
    assert (said["event"], said["unread_bytes"]) == ("store.load_interrupted", unread)
    load(tmp_path)
    found = dump_file(tmp_path)
    os.replace(tmp_path / "whole", tmp_path / DATABASE)
    assert found == dump_file(tmp_path)


def test_what_prepares_the_tables_sees_them_filled_and_may_write(tmp_path: Path) -> None:
    write_lines(tmp_path, whole_run())

    def prepare(con: duckdb.DuckDBPyConnection) -> None:
        con.execute("CREATE OR REPLACE VIEW n AS SELECT count(*) AS n FROM rounds")
        assert column(con, "FROM n") == [6]

    for _ in range(2):
        with connect(tmp_path, prepare) as connected:
            assert column(connected.con, "FROM n") == [6]
            assert connected.source == "database"


def test_a_store_that_does_not_exist_says_what_to_do(tmp_path: Path) -> None:
    message = f"no store at {tmp_path / 'nowhere'}: run `roundscope run` first, or name another with --store DIR"
    for call in (load, lambda store: connect(store).__enter__()):
        with pytest.raises(UsageError) as caught:
            call(tmp_path / "nowhere")
        assert str(caught.value) == message
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_without_recordings_is_an_empty_store_and_stays_one(tmp_path: Path) -> None:
    with connect(tmp_path) as connected:
        assert (connected.source, connected.notes) == (
            "memory",
            (f"nothing is recorded in {tmp_path} yet; `roundscope run` does",),
        )
        assert {rows == [] for rows in dump(connected.con).values()} == {True}
    assert list(tmp_path.iterdir()) == []


def test_a_round_can_be_read_back_as_the_record_it_was(tmp_path: Path) -> None:
    [record] = rounds("g", 1)
    write_lines(tmp_path, [header(), record])
    with connect(tmp_path) as connected:
        cursor = connected.con.execute("SELECT * EXCLUDE (journal) FROM rounds")
        [row] = cursor.fetchall()
        names = [name for name, *_ in cursor.description or ()]
    assert RoundRecord(**dict(zip(names, row, strict=True))) == record
