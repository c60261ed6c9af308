"""Large journals, loaded whole: the tables are those that loading line by line makes, whatever the journals hold."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry import large, loading, reading
from telemetry.journal import FOLDER
from telemetry.loading import load_journals
from telemetry.reading import read_journal
from telemetry.records import SCHEMA_VERSION, LossRecord, RoundRecord
from telemetry.schema import create_schema
from telemetry.store import load
from tests.queries.simulate_ncm import NcmSimulation
from tests.telemetry.stores import (
    TABLES,
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
    write_lines,
)
from tests.telemetry.test_store_damage import VALID, change

RECORDS = [header(), run(), *whole_generation("g1", 30), *whole_generation("g2", 30), run_end()]
BYTES = b"".join(encode(record) + b"\n" for record in RECORDS)
Tables = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory, whose tables the tests empty before use."""
    with duckdb.connect() as con:
        create_schema(con)
        yield con


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "LARGE_BYTES", 1)


def load_both(con: duckdb.DuckDBPyConnection, store: Path, *, whole: bool | None = True) -> Tables:
    """The tables by either way, which must be equal. whole: whether all was loaded whole, or (None) may have been."""
    found = []
    for least in (1, 1 << 60):
        for table in TABLES:
            con.execute(f"DELETE FROM {table}")
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(large, "LARGE_BYTES", least)
            read = spy(patches, loading, "insert_batches")
            taken = spy(patches, large, "check_unique")
            load_journals(con, store / FOLDER)
            if whole is not None and least == 1:
                assert (len(read) == 0, len(taken) > 0) == (whole, whole)
        found.append(dump(con))
    assert found[0] == found[1]
    return found[0]


def spy(patches: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """The calls of a function that came back."""
    calls: list[Any] = []
    really = getattr(module, name)

    def call(*arguments: Any, **options: Any) -> Any:
        result = really(*arguments, **options)
        calls.append(result)
        return result

    patches.setattr(module, name, call)
    return calls


@pytest.mark.parametrize("batch_bytes", [1, 700, 5000, 1 << 24])
def test_whole_journals_of_any_number_and_batch_size(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    monkeypatch.setattr(reading, "_PIECE_BYTES", batch_bytes)
    write_lines(tmp_path / "[s]*", RECORDS)
    text = {"proposal": [1, 2, 3, 4], "tokens": list(range(500))}
    write_lines(tmp_path / "[s]*", [header(), generation("h"), *rounds("h", 40, **text), generation_end("h")], "b'c")
    tables = load_both(con, tmp_path / "[s]*")
    assert len(tables["rounds"]) == 100
    assert [row[0] for row in tables["journals"]] == ["a.ndjson", "b'c.ndjson"]


def test_levels_are_as_good_a_kind(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    from tests.dashboards.test_command import record, record_ncm
    from tests.queries.simulate import Simulation

    record_ncm(tmp_path, NcmSimulation(lengths=(1,) * 12))
    record(tmp_path, Simulation(classes=("copy",), run_id="run-2"))
    tables = load_both(con, tmp_path)
    assert len(tables["levels"]) > 100
    assert len(tables["rounds"]) > 100


BEGINNING = [header(), *rounds("h", 9)]


@pytest.mark.parametrize(
    ("lines", "whole"),
    [
        ([*BEGINNING, b"", *rounds("g", 9)], True),
        ([*BEGINNING, b""], True),
        ([*BEGINNING, VALID[:100], VALID], True),
        ([*BEGINNING, LossRecord(n_records=3, reason="No space left on device"), VALID], True),
        ([*BEGINNING, comparison("nobody"), generation_end("nobody")], True),
        ([*BEGINNING, VALID + b"  ", b" " + VALID.replace(b'"index":0', b'"index":1')], True),
        ([*BEGINNING, b"rubbish"], False),
        ([*BEGINNING, VALID + VALID], False),
        ([*BEGINNING, VALID + b"\n" + VALID[:50] + b"\n" + VALID[50:]], False),
        ([*BEGINNING, change('"index":0', '"index":"0"')], False),
        ([*BEGINNING, change('"index":0', '"index":0.5')], False),
        ([*BEGINNING, change('"index":0', '"index":true')], False),
        ([*BEGINNING, change('"index":0', '"index":1e0')], False),
        ([*BEGINNING, change('"g"', "7")], False),
        ([*BEGINNING, change('"accepted":0', '"accepted":5')], False),
        ([*BEGINNING, *rounds("h", 1)], False),
        ([*BEGINNING, generation("i", cached_tokens=6)], False),
        ([header(schema_version=SCHEMA_VERSION + 1), *rounds("h", 9)], False),
        ([*BEGINNING, header(schema_version=SCHEMA_VERSION + 1), *rounds("i", 9)], None),
        ([header(host="elsewhere"), *rounds("h", 9)], True),
        ([*rounds("h", 9)], True),
    ],
)
def test_what_is_odd_is_loaded_line_by_line(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, lines: list[Any], whole: bool | None
) -> None:
    write_lines(tmp_path, lines)
    path = write_lines(tmp_path, [header(), *rounds("neighbour", 9)], "b")
    path.write_bytes(path.read_bytes() + VALID[:77])  # its writer was killed
    if len(lines) > 9 and lines[0] == header(schema_version=SCHEMA_VERSION + 1):
        whole = None  # it is left out, the other one is whole
    tables = load_both(con, tmp_path, whole=whole)
    assert {row[:2] for row in tables["rounds"]} >= {("neighbour", i) for i in range(9)}


def test_lines_are_numbered_alike_however_many_are_decoded_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blank = [b"", b""]
    lines = [*BEGINNING, *blank, *rounds("g", 3), b"", comparison("nobody"), *blank, *rounds("i", 3), *blank]
    path = write_lines(tmp_path, lines)
    [wanted] = read_journal(path, None)
    del wanted.lines[RoundRecord], wanted.numbers[RoundRecord]
    for n_bytes in range(1, path.stat().st_size, 17):
        monkeypatch.setattr(reading, "_PIECE_BYTES", n_bytes)
        found = list(read_journal(path, None, counted=RoundRecord))
        assert found[-1].row == wanted.row
        for kind, numbers in wanted.numbers.items():
            assert [number for batch in found for number in batch.numbers.get(kind, ())] == numbers
            assert [line for batch in found for line in batch.lines.get(kind, ())] == wanted.lines[kind]


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "insert", "delete", "repeat", "blank"]),
        st.integers(0, len(BYTES) - 1),
        st.integers(0, 255) | st.sampled_from(b'\n"{}[],:.-+eE0123456789 \\'),
    ),
    max_size=3,
)


@settings(max_examples=40)
@given(edits=EDITS, batch_bytes=st.sampled_from([1, 100, 900, 1 << 24]))
def test_whatever_is_damaged_the_tables_are_the_same(
    con: duckdb.DuckDBPyConnection, edits: list[tuple[str, int, int]], batch_bytes: int
) -> None:
    data = BYTES
    for what, at, byte in edits:
        at %= len(data)
        if what == "blank":  # a line with nothing in it
            what, at, byte = "insert", data.find(b"\n", at) % len(data), ord("\n")
        changed = {"flip": bytes([byte]), "insert": bytes([byte, data[at]]), "delete": b"", "repeat": data[at : at + 9]}
        data = data[:at] + changed[what] + data[at + 1 :]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patches:
        patches.setattr(reading, "_PIECE_BYTES", batch_bytes)
        (Path(folder) / FOLDER).mkdir()
        (Path(folder) / FOLDER / "a.ndjson").write_bytes(data)
        load_both(con, Path(folder), whole=None)


def test_what_grows_is_loaded_as_far_as_it_is_and_then_the_rest(tmp_path: Path) -> None:
    """A living writer's journal, and one that was loaded before; in between lines break off."""
    lines = BYTES.splitlines(keepends=True)
    path = write_lines(tmp_path, [])
    with path.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        for n in (20, 22, 50):
            path.write_bytes(b"".join(lines[:n]) + lines[n][:30])
            load(tmp_path)
            assert dump_file(tmp_path)["journals"][0][6:8] == ("running", len(b"".join(lines[:n])))
    path.write_bytes(BYTES)
    load(tmp_path)
    found = dump_file(tmp_path)
    write_lines(tmp_path / "fresh", RECORDS)
    load(tmp_path / "fresh")
    assert found == dump_file(tmp_path / "fresh")


def test_a_group_that_is_refused_leaves_the_others_whole(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "GROUP_BYTES", 1)
    for name in "abc":
        write_lines(tmp_path, [header(), *rounds(name, 9), *([b"rubbish"] if name == "b" else [])], name)
    taken = spy(monkeypatch, large, "check_unique")
    tables = load_both(con, tmp_path, whole=None)
    assert len(taken) == 2
    assert (len(tables["rounds"]), len(tables["rejected"])) == (27, 1)


def test_an_interrupted_load_keeps_what_was_there_and_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted while another thread inserts: it is ended, and nothing of it stays."""
    write_lines(tmp_path, RECORDS)
    n_threads = threading.active_count()

    def interrupt(*_: Any, **__: Any) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    with monkeypatch.context() as patches:
        patches.setattr(large, "read_journal", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load(tmp_path)
    assert threading.active_count() == n_threads
    assert dump_file(tmp_path)["rounds"] == []
    load(tmp_path)
    found = dump_file(tmp_path)
    write_lines(tmp_path / "fresh", RECORDS)
    monkeypatch.setattr(large, "LARGE_BYTES", 1 << 60)
    load(tmp_path / "fresh")
    assert found == dump_file(tmp_path / "fresh")


def test_every_line_was_decoded_strictly(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only counted: DuckDB's reader alone would have taken a number in quotes."""
    path = write_lines(tmp_path, [*BEGINNING, change('"index":0', '"index":"0"')])
    source = large.select_kind([path], "round", large.describe_columns(RoundRecord))
    assert con.execute(f"SELECT count(*) FROM {source}").fetchall() == [(10,)]
    taken = spy(monkeypatch, large, "insert")
    tables = load_both(con, tmp_path, whole=False)
    assert len(tables["rounds"]) == 9
    assert taken in ([10], [])  # or it was interrupted before


def test_settings_are_as_they_were_after_what_was_refused(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    settings_of = "SELECT current_setting('threads'), current_setting('preserve_insertion_order')"
    before = con.execute(settings_of).fetchall()
    write_lines(tmp_path, [*BEGINNING, change('"accepted":0', '"accepted":5')])
    load_both(con, tmp_path, whole=False)
    assert con.execute(settings_of).fetchall() == before
