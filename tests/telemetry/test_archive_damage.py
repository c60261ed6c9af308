"""An archive that is damaged, taken away, replaced, or of another version: what it says, and that nothing is lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import duckdb
import msgspec
import pytest

from telemetry import archive
from telemetry.archiving import archive_before
from telemetry.errors import RoundscopeError
from telemetry.journal import FOLDER
from telemetry.records import SCHEMA_VERSION
from telemetry.sizes import measure_store
from telemetry.store import DATABASE, connect, load
from tests.telemetry.archives import DAY, fill_store, journals, look, rebuild
from tests.telemetry.stores import column, encode, header, whole_generation, whole_run, write_lines


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A run, generations outside a run, and a journal with all kinds of damage."""
    return fill_store(tmp_path)


def damage(path: Path, how: str) -> bytes:
    """Change a bit of a file, cut its last byte off, or remove it; what it held is returned."""
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if how == "short" else content[:100] + bytes([content[100] ^ 1]) + content[101:])
    return content


def test_another_journal_under_an_archived_name_is_left_out_and_named(tmp_path: Path) -> None:
    write_lines(tmp_path, whole_run())
    expected = look(tmp_path)
    archive_before(tmp_path, DAY)
    path = write_lines(tmp_path, [header(), *whole_generation("other")])
    with connect(tmp_path) as connected:
        assert connected.notes == (
            f"{path} is not the journal of that name that was archived; it is left out: give it another name",
        )
    assert look(tmp_path) == expected
    archive_before(tmp_path, DAY)
    assert journals(tmp_path) == ["a"]


@pytest.mark.parametrize("how", ["bit", "short", "gone"])
def test_a_damaged_partition_is_refused_by_name_until_it_is_restored(store: Path, how: str) -> None:
    expected = look(store)
    archive_before(store, DAY)
    [path] = (store / archive.FOLDER).glob("rounds/run=run-1/*/*.parquet")
    content = damage(path, how)
    (store / DATABASE).unlink()
    with connect(store) as connected:
        note = connected.notes[0]
        assert note.startswith(f"{path} of the archive is missing or damaged (")
        assert note.endswith("what was archived with it is left out until that file is restored from a copy")
        assert column(connected.con, "SELECT DISTINCT generation_id FROM generations ORDER BY 1") == ["g3", "o0", "o1"]
        assert column(connected.con, "SELECT count(*) FROM runs") == [0]
    path.write_bytes(content)
    assert look(store) == expected


@pytest.mark.parametrize("how", ["bit", "short", "gone"])
def test_a_damaged_partition_whose_rows_the_database_has_is_named(store: Path, how: str) -> None:
    expected = look(store)
    archive_before(store, DAY)
    look(store)
    [path] = (store / archive.FOLDER).glob("rounds/run=run-1/*/*.parquet")
    content = damage(path, how)
    with connect(store) as connected:
        [note] = connected.notes
        assert connected.source == "database"
    assert note.startswith(f"{path} of the archive is missing or damaged (")
    assert note.endswith("restore that file from a copy before the database is deleted or made anew")
    assert look(store) == expected
    sizes = measure_store(store)
    assert sizes is not None
    assert [problem.partition(" of the archive")[0] for problem in sizes.problems] == [str(path)]
    path.write_bytes(content)
    with connect(store) as connected:
        assert connected.notes == ()


def test_a_fault_that_a_disk_made_is_found_by_reading_everything(store: Path) -> None:
    """Nobody changed the file, so sizes and moments tell nothing."""
    archive_before(store, DAY)
    [path] = (store / archive.FOLDER).glob("rounds/run=run-1/*/*.parquet")
    stat = path.stat()
    damage(path, "bit")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    found = [measure_store(store, thoroughly=thoroughly) for thoroughly in (False, True)]
    assert [len(sizes.problems) for sizes in found if sizes is not None] == [0, 1]


def test_what_a_newer_version_archived_is_refused_by_name(store: Path) -> None:
    expected = look(store)
    archive_before(store, DAY)
    path = sorted((store / archive.FOLDER / archive.MANIFESTS).iterdir())[0]
    manifest = msgspec.json.decode(path.read_bytes())
    path.write_bytes(encode(manifest | {"schema_version": SCHEMA_VERSION + 1, "files": "of another kind"}))
    (store / DATABASE).unlink()
    with connect(store) as connected:
        note = connected.notes[0]
        assert note.startswith(f"{path} was written by roundscope ")
        assert f"(records of version {SCHEMA_VERSION + 1}, known here: up to {SCHEMA_VERSION})" in note
    with pytest.raises(RoundscopeError, match="until roundscope is upgraded"):
        archive_before(store, DAY)
    path.write_bytes(encode(manifest))
    assert rebuild(store) == expected


def test_columns_that_an_older_partition_lacks_are_null(store: Path) -> None:
    """A record may get a further optional field without its version being raised."""
    archive_before(store, DAY)
    expected = rebuild(store)
    for path in (store / archive.FOLDER).glob("generations/*/*/*.parquet"):
        with duckdb.connect() as con:
            rows = f"SELECT * EXCLUDE (kv_bits, class) FROM read_parquet('{path}', hive_partitioning = false)"
            con.execute(f"COPY ({rows}) TO '{path}.new' (FORMAT parquet)")
        os.replace(f"{path}.new", path)
    for path in (store / archive.FOLDER / archive.MANIFESTS).iterdir():
        manifest = msgspec.json.decode(path.read_bytes(), type=archive.Manifest)
        for file in manifest.files:
            place = store / archive.FOLDER / file.path
            file.n_bytes, file.sha256 = place.stat().st_size, archive.digest_file(place)
        path.write_bytes(encode(manifest))
    assert rebuild(store)["rounds"] == expected["rounds"]
    with connect(store) as connected:
        assert connected.con.execute("SELECT DISTINCT class, kv_bits FROM generations").fetchall() == [(None, None)]


def test_a_database_that_knows_less_than_the_archive_is_made_anew(store: Path) -> None:
    """An older copy of the database comes back: it had read a journal that is archived now only half."""
    path = store / FOLDER / "a.ndjson"
    lines = path.read_bytes()
    path.write_bytes(lines[:2000].rpartition(b"\n")[0] + b"\n")
    load(store)
    shutil.copy(store / DATABASE, store / "old")
    path.write_bytes(lines)
    expected = look(store)
    archive_before(store, DAY)
    shutil.copy(store / "old", store / DATABASE)
    assert look(store) == expected


def test_an_archive_that_is_taken_away_takes_its_rows_along(store: Path) -> None:
    archive_before(store, DAY)
    shutil.rmtree(store / archive.FOLDER)
    with connect(store) as connected:
        assert "has no batch" in connected.notes[0]
        assert column(connected.con, "SELECT count(*) FROM generations") == [0]
