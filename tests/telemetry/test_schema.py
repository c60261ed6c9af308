"""The tables follow from the records, and the documentation from both."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from telemetry.docs import render
from telemetry.records import SCHEMA_VERSION, Environment, GenerationEnd, GenerationRecord
from telemetry.schema import create_schema, describe_columns, has_schema, layouts
from telemetry.tables import TABLES, describe_fields
from tests.conftest import ROOT


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    create_schema(con)
    return con


def test_tables_have_the_fields_of_their_records_as_columns(con: duckdb.DuckDBPyConnection) -> None:
    for table in TABLES:
        found = {row[0] for row in con.execute(f"DESCRIBE {table.name}").fetchall()}
        kinds = (table.opens, *table.adds)
        assert found == {field.name for kind in kinds for field in describe_fields(kind)} | {"journal"}


def test_every_type_has_its_column_type(con: duckdb.DuckDBPyConnection) -> None:
    found = {row[0]: (row[1], row[2]) for row in con.execute("DESCRIBE runs").fetchall()}
    wanted = {
        "run_id": ("VARCHAR", "NO"),
        "cores": ("BIGINT", "NO"),
        "record_text": ("BOOLEAN", "NO"),
        "load1": ("DOUBLE", "YES"),
        "arms": ("VARCHAR[]", "NO"),
        "precision": ("MAP(VARCHAR, VARCHAR)", "NO"),
        "power": ("ENUM('battery', 'mains')", "YES"),
        "outcome": ("ENUM('complete', 'error', 'incomplete', 'interrupted')", "YES"),
    }
    assert {name: found[name] for name in wanted} == wanted
    lists = {row[0]: row[1] for row in con.execute("DESCRIBE rounds").fetchall()}
    assert (lists["proposal"], lists["tokens"]) == ("BIGINT[]", "BIGINT[]")


def test_columns_with_few_values_sort_as_texts_do_and_compare_with_any(con: duckdb.DuckDBPyConnection) -> None:
    found = con.execute("SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE data_type LIKE 'ENUM%'")
    columns = found.fetchall()
    assert ("rounds", "verify_basis") in [column[:2] for column in columns]
    for table, name, kind in columns:
        [values] = con.execute(f"SELECT enum_range(NULL::{kind})").fetchone() or [[]]
        assert values == sorted(values), (table, name)
        assert con.execute(f"SELECT count(*) FROM {table} WHERE {name} = 'no such value'").fetchone() == (0,)


def test_the_field_class_keeps_its_name_in_sql() -> None:
    assert "class" in [column.name for column in describe_columns(GenerationRecord)]


def test_every_table_and_column_is_explained(con: duckdb.DuckDBPyConnection) -> None:
    assert con.execute("SELECT table_name FROM duckdb_tables() WHERE comment IS NULL").fetchall() == []
    assert (
        con.execute("SELECT column_name FROM duckdb_columns() WHERE NOT internal AND comment IS NULL").fetchall() == []
    )
    [(comment,)] = con.execute(
        "SELECT comment FROM duckdb_columns() WHERE table_name = 'generations' AND column_name = 'prefill_ns'"
    ).fetchall()
    [field] = [field for field in describe_fields(GenerationEnd) if field.name == "prefill_ns"]
    assert comment == f"{field.meaning} [ns]"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("t_round_ns", "-1"),
        ("t_round_ns", "NULL"),
        ("drafter_length", "-1"),
        ("outcome", "'won'"),
        ("draft_basis", "'guess'"),
        ("accepted", "5"),
        ("committed", "3"),
        ("requested", "2"),
        ("verify_ns", "100"),
    ],
)
def test_constraints_refuse_what_cannot_be(con: duckdb.DuckDBPyConnection, column: str, value: str) -> None:
    row = {
        "generation_id": "'g'",
        "index": "0",
        "start_ns": "0",
        "t_round_ns": "100",
        "requested": "4",
        "proposed": "4",
        "accepted": "1",
        "committed": "2",
        "cut": "0",
        "outcome": "'correction'",
        "width": "5",
        "processed": "0",
        "syncs": "1",
        "cache_length": "9",
        "drafter_length": "NULL",
        "replayed": "0",
        "trim_way": "'trim'",
        "rewind_way": "'none'",
        "draft_ns": "1",
        "draft_basis": "NULL",
        "verify_ns": "1",
        "synchronize_ns": "1",
        "trim_ns": "1",
        "rewind_ns": "1",
    }
    insert = "INSERT INTO rounds ({}) VALUES ({})".format
    names = ", ".join(f'"{name}"' for name in row)
    with pytest.raises((duckdb.ConstraintException, duckdb.ConversionException)):
        con.execute(insert(names, ", ".join({**row, column: value}.values())))
    con.execute(insert(names, ", ".join(row.values())))


def test_keys_are_constraints_wherever_nothing_else_holds_them(con: duckdb.DuckDBPyConnection) -> None:
    found = con.execute(
        "SELECT table_name, constraint_column_names FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY'"
    ).fetchall()
    keys = {layout.name: list(layout.key) for layout in layouts() if layout.key}
    assert keys.pop("rounds") == ["generation_id", "index"]  # tests/telemetry/test_unique.py
    assert dict(found) == keys


def test_seeds_and_offsets_may_be_negative_and_nothing_else_is_unchecked() -> None:
    unchecked = [
        (layout.name, column.name)
        for layout in layouts()
        for column in layout.columns
        if column.sql_type == "BIGINT" and not column.is_count
    ]
    assert unchecked == [("runs", "seed"), ("ranks", "offset_ns"), ("ncm_generations", "seed")]


def test_finish_reason_also_says_what_became_of_open_generations() -> None:
    [layout] = [layout for layout in layouts() if layout.name == "generations"]
    [allowed] = [column.allowed for column in layout.columns if column.name == "finish_reason"]
    assert allowed == ("stop", "length", "cancelled", "error", "running", "aborted", "unknown")


def test_moments_are_shown_in_utc(con: duckdb.DuckDBPyConnection) -> None:
    assert con.execute("SELECT make_timestamptz(0)::varchar").fetchall() == [("1970-01-01 00:00:00+00",)]


def test_a_schema_is_known_again_and_no_other_is(con: duckdb.DuckDBPyConnection) -> None:
    assert has_schema(con)
    con.execute(f"UPDATE schema_version SET version = {SCHEMA_VERSION + 1}")
    assert not has_schema(con)
    con.execute(f"UPDATE schema_version SET version = {SCHEMA_VERSION}, digest = 'other columns'")
    assert not has_schema(con)
    con.execute("ALTER TABLE schema_version DROP digest")
    assert not has_schema(con)
    con.execute("DROP TABLE schema_version")
    assert not has_schema(con)


def test_the_environment_is_part_of_the_run() -> None:
    runs = {column.name for column in layouts()[0].columns}
    assert {field.name for field in describe_fields(Environment)} <= runs


def test_the_documentation_is_generated() -> None:
    path: Path = ROOT / "docs" / "records.md"
    assert path.read_text(encoding="utf-8") == render(), "run: python -m telemetry.docs > docs/records.md"
