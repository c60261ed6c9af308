"""Damaged journals: every undamaged line is in the tables, every other is accounted for, and nothing raises."""

from __future__ import annotations

import fcntl
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.journal import FOLDER
from telemetry.loading import LoadReport, load_journals
from telemetry.records import JournalRecord, LossRecord, Record
from telemetry.schema import create_schema
from telemetry.store import connect, load
from tests.telemetry.stores import (
    TABLES,
    column,
    dump,
    encode,
    generation,
    generation_end,
    header,
    rounds,
    run,
    whole_run,
    write_lines,
)

LINES = [encode(record) for record in [*whole_run(), LossRecord(n_records=2, reason="No space left on device")]]
BYTES = b"".join(line + b"\n" for line in LINES)
KEYS = {"run": ("run_id",), "generation": ("generation_id",), "round": ("generation_id", "index")}

[ROUND] = rounds("g", 1)
VALID = encode(ROUND)
DEEP = b'{"type":"loss","n_records":1,"reason":"x","more":' + b"[" * 100_000 + b"}"


def change(old: str, new: str, line: bytes = VALID) -> bytes:
    assert old.encode() in line
    return line.replace(old.encode(), new.encode(), 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"rubbish", "JSON is malformed: invalid character (byte 0)"),
        (b"\xff\xfe\x00", "JSON is malformed: invalid character (byte 0)"),
        (VALID.replace(b'"g"', b'"\xff"'), "Invalid UTF-8 encoded string"),
        (VALID + VALID, f"JSON is malformed: trailing characters (byte {len(VALID) + 1})"),
        (b"[1, 2]", "Expected `object`, got `array`"),
        (b"7", "Expected `object`, got `int`"),
        (b"null", "Expected `object`, got `null`"),
        (b"{}", "Object missing required field `type`"),
        (b'{"type": "sonnet"}', "Invalid value 'sonnet' - at `$.type`"),
        (b'{"type": 7}', "Expected `str` - at `$.type`"),
        (change('"index":0,', ""), "Object missing required field `index`"),
        (change('"index":0', '"index":"0"'), "Expected `int`, got `str` - at `$.index`"),
        (change('"index":0', '"index":0.5'), "Expected `int`, got `float` - at `$.index`"),
        (change('"index":0', '"index":true'), "Expected `int`, got `bool` - at `$.index`"),
        (change('"index":0', '"index":null'), "Expected `int`, got `null` - at `$.index`"),
        (change('"index":0', '"index":-1'), "Expected `int` >= 0 - at `$.index`"),
        (change('"index":0', f'"index":{2**63}'), f"Expected `int` <= {2**63 - 1} - at `$.index`"),
        (change('"g"', "7"), "Expected `str`, got `int` - at `$.generation_id`"),
        (change('"correction"', '"victory"'), "Invalid enum value 'victory' - at `$.outcome`"),
        (change('"accepted":0', '"accepted":5'), "more tokens accepted and cut than proposed"),
        (change('"accepted":0', f'"accepted":{2**63 - 1}'), "more tokens accepted and cut than proposed"),
        (change('"proposed":4', '"proposed":9'), "more tokens proposed than requested"),
        (change('"committed":1', '"committed":2'), "committed tokens do not follow from accepted ones and the outcome"),
        (change('"verify_ns":30', '"verify_ns":31'), "stages last longer than the round"),
        (encode(run(seed=2**63)), "a value does not fit its column"),
        (encode(generation("h", cached_tokens=6)), "more cached tokens than the prompt has"),
        (encode(generation_end("good", n_committed=17)), "more output than the limit"),
        (encode(generation("good")), "a row of the same key is there already"),
        (DEEP, "maximum recursion depth exceeded while deserializing an object"),
    ],
)
def test_a_bad_line_is_rejected_with_its_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    """Its neighbours are rows all the same."""
    good = [encode(record) for record in (generation("good"), *rounds("good", 2))]
    write_lines(tmp_path, [header(), *good[:2], line, good[2]])
    assert load(tmp_path).n_rejected == 1
    with connect(tmp_path) as connected:
        assert connected.con.execute("SELECT line, reason, text FROM rejected").fetchall() == [
            (4, reason, line.decode("utf-8", "replace")[:500])
        ]
        assert column(connected.con, "SELECT generation_id FROM generations") == ["good"]
        assert column(connected.con, "SELECT index FROM rounds ORDER BY 1") == [0, 1]
        assert column(connected.con, "SELECT n_lines - n_torn - n_rejected FROM journals") == [4]


@pytest.mark.parametrize("line", [b"", b"  ", VALID[:1], VALID[:-1], VALID[:200]])
def test_a_line_that_breaks_off_is_torn(tmp_path: Path, line: bytes) -> None:
    write_lines(tmp_path, [header(), line, VALID])
    assert load(tmp_path).n_torn == 1
    with connect(tmp_path) as connected:
        assert connected.con.execute("SELECT n_lines, n_torn, n_rejected FROM journals").fetchall() == [(3, 1, 0)]
        assert column(connected.con, "SELECT count(*) FROM rounds") == [1]


@pytest.mark.parametrize("kept", [1, 100, len(VALID) - 1])
def test_a_torn_end_is_left_alone_while_the_writer_lives_and_counted_once_it_has_gone(
    tmp_path: Path, kept: int
) -> None:
    path = write_lines(tmp_path, [header(), *rounds("h", 1)])
    path.write_bytes(path.read_bytes() + VALID[:kept])
    with path.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert (load(tmp_path).n_torn, load(tmp_path).n_torn) == (0, 0)
    assert (load(tmp_path).n_torn, load(tmp_path).n_torn) == (1, 0)
    with connect(tmp_path) as connected:
        assert connected.con.execute("SELECT n_lines, n_torn FROM journals").fetchall() == [(3, 1)]


def test_a_torn_end_of_another_machines_is_left_alone(tmp_path: Path) -> None:
    path = write_lines(tmp_path, [header(host="elsewhere")])
    path.write_bytes(path.read_bytes() + VALID[:100])
    assert load(tmp_path).n_torn == 0


def test_a_record_that_lacks_only_its_lines_end_is_a_row(tmp_path: Path) -> None:
    path = write_lines(tmp_path, [header()])
    path.write_bytes(path.read_bytes() + VALID)
    load(tmp_path)
    with connect(tmp_path) as connected:
        assert column(connected.con, "SELECT generation_id FROM rounds") == ["g"]


def test_every_beginning_of_a_line_is_torn(tmp_path: Path) -> None:
    text = encode(generation_end("g", text='caf\u00e9 "\u4f60\\'))
    write_lines(tmp_path, [header(), *(text[:n] for n in range(len(text)))])
    report = load(tmp_path)
    assert (report.n_torn, report.n_rejected) == (len(text), 0)


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory, whose tables the tests empty before use."""
    with duckdb.connect() as con:
        create_schema(con)
        yield con


@contextmanager
def loaded(con: duckdb.DuckDBPyConnection, data: bytes) -> Iterator[LoadReport]:
    """Fills the tables from a journal of these bytes."""
    empty(con)
    with TemporaryDirectory() as folder:
        (Path(folder) / "a.ndjson").write_bytes(data)
        yield load_journals(con, Path(folder))


def empty(con: duckdb.DuckDBPyConnection) -> None:
    for table in TABLES:
        con.execute(f"DELETE FROM {table}")


def decode(line: bytes) -> Any:
    return msgspec.json.decode(line)


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "insert", "delete", "repeat", "swap"]),
        st.integers(0, len(BYTES) - 1),
        st.integers(0, 255) | st.sampled_from(b'\n"{}[],:.-+eE0123456789 \\'),
    ),
    min_size=1,
    max_size=8,
)


def damage(edits: list[tuple[str, int, int]], data: bytes = BYTES) -> bytes:
    for what, at, byte in edits:
        at %= len(data)
        if what == "flip":
            data = data[:at] + bytes([byte]) + data[at + 1 :]
        elif what == "insert":
            data = data[:at] + bytes([byte]) + data[at:]
        elif what == "delete":
            data = data[:at] + data[at + 1 + byte % 7 :]
        elif what == "repeat":
            data = data[:at] + data[max(0, at - 10 * byte) :]
        else:
            data = data[at:] + data[:at]
    return data or b"\n"


@settings(max_examples=60)
@given(edits=EDITS)
def test_whatever_is_damaged_the_rest_is_there_and_all_is_accounted_for(
    con: duckdb.DuckDBPyConnection, edits: list[tuple[str, int, int]]
) -> None:
    data = damage(edits)
    with loaded(con, data) as report:
        if any("until roundscope is upgraded" in note for note in report.notes):
            return
        for table, kind in (("runs", "run"), ("generations", "generation"), ("rounds", "round")):
            keys = set(con.execute(f"SELECT {', '.join(KEYS[kind])} FROM {table}").fetchall())
            undamaged = [decode(line) for line in data.split(b"\n") if line in LINES]
            assert {tuple(r[name] for name in KEYS[kind]) for r in undamaged if r["type"] == kind} <= keys
        [(writer, n_lines, n_torn, n_rejected)] = con.execute(
            "SELECT writer, n_lines, n_torn, n_rejected FROM journals"
        ).fetchall()
        *lines, tail = data.split(b"\n")
        assert n_lines == len(lines) + (bool(tail) and writer == "ended")
        assert n_rejected == column(con, "SELECT count(*) FROM rejected")[0]
        assert n_lines == n_torn + n_rejected + count_records(con, lines + [tail] * (writer == "ended"))


def count_records(con: duckdb.DuckDBPyConnection, lines: list[bytes]) -> int:
    """Records that are in a table or wait there, and those about the journal itself."""
    kinds = Counter(type(record) for line in lines if (record := try_decode(line)) is not None)
    tables = " + ".join(f"(SELECT count(*) FROM {name})" for name in ("runs", "generations", "rounds", "waiting"))
    added = "(SELECT count(outcome) FROM runs) + (SELECT count(cache_bytes) + count(equal) FROM generations)"
    [n] = column(con, f"SELECT {tables} + {added}")
    return int(n) + kinds[JournalRecord] + kinds[LossRecord]


def try_decode(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line, type=Record)
    except msgspec.DecodeError:
        return None


@settings(max_examples=25)
@given(
    edits=EDITS | st.just([]),
    cuts=st.lists(st.integers(0, len(BYTES)), max_size=4),
    held=st.booleans(),
)
def test_loading_as_it_grows_gives_what_loading_at_once_gives(
    con: duckdb.DuckDBPyConnection, edits: list[tuple[str, int, int]], cuts: list[int], held: bool
) -> None:
    """Whether the writer lives meanwhile, or seems to have gone in the middle of a line (a copy of a journal, say)."""
    data = damage(edits)
    with loaded(con, data):
        expected = dump(con)
    empty(con)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.ndjson"
        path.touch()
        with path.open("rb") as writer:
            if held:
                fcntl.flock(writer, fcntl.LOCK_EX)
            for cut in sorted(cuts):
                path.write_bytes(data[:cut])
                load_journals(con, Path(folder))
            path.write_bytes(data)
            load_journals(con, Path(folder))
        load_journals(con, Path(folder))
        assert dump(con) == expected


def test_a_journal_that_became_another_file_is_read_anew(tmp_path: Path) -> None:
    path = write_lines(tmp_path, [header(), *rounds("old", 3)])
    write_lines(tmp_path, [header(), *rounds("other", 1)], "b")
    load(tmp_path)
    for lines in ([header(), *rounds("new", 3)], [header(), *rounds("new", 1)], [header(), *rounds("new", 9)]):
        path.unlink()
        write_lines(tmp_path, lines)
        with connect(tmp_path) as connected:
            assert column(connected.con, "SELECT DISTINCT generation_id FROM rounds ORDER BY 1") == ["new", "other"]
            assert column(connected.con, "SELECT count(*) FROM rounds") == [len(lines)]
    assert (tmp_path / FOLDER).is_dir()
