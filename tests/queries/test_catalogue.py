"""Headers say what statements give, the documentation says what headers say, and nothing fails over no rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import duckdb
import pytest

import queries
from queries.catalogue import parse_query
from queries.docs import render
from telemetry.errors import UsageError
from telemetry.fields import RunKind
from telemetry.schema import create_schema
from tests.queries.simulate import Simulation

NAMES = (
    "baseline_drift",
    "break_even",
    "break_even_surface",
    "compare",
    "completeness",
    "context_growth",
    "controller",
    "decisions",
    "draft_length",
    "drafters",
    "history",
    "memory",
    "ncm_cache",
    "ncm_exit",
    "overlap",
    "ranks",
    "seconds_per_token",
    "slowest_rounds",
    "stages",
    "survival",
    "trim_and_rewind",
    "verdict",
    "verify_cost",
    "where_time_goes",
)
DOCUMENT = Path(__file__).parents[2] / "docs" / "queries.md"
RUN_KINDS = get_args(RunKind)
DURATIONS = (
    "_seconds",
    "_seconds_dearest",
    "_seconds_per_token",
    "seconds_per_token",
    "seconds_per_token_a",
    "seconds_per_token_b",
    "seconds_per_round",
)


def test_names() -> None:
    assert queries.names() == NAMES
    assert queries.names("ncm") == ("completeness", "ncm_cache", "ncm_exit")
    assert queries.names("speculation") == tuple(name for name in NAMES if not name.startswith("ncm"))


def test_what_each_costs_at_scale_is_documented() -> None:
    page = (DOCUMENT.parent / "scale.md").read_text(encoding="utf-8")
    assert tuple(sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_header_is_the_statements(con: duckdb.DuckDBPyConnection, name: str) -> None:
    query = queries.find(name)
    described = con.execute(f"describe {query.sql}").fetchall()
    assert [column.name for column in query.columns] == [column for column, *_ in described]
    assert query.name == name
    assert query.question.endswith("?")
    assert set(query.runs) <= set(RUN_KINDS)
    assert query.variables[0].name == ("run_id" if name != "compare" else "run_a")
    assert all(variable.meaning and variable.default for variable in query.variables)
    types = {type_.partition("(")[0] for _, type_, *_ in described}
    assert types <= {"VARCHAR", "ENUM", "BIGINT", "DOUBLE", "BOOLEAN"}
    timed = {column.name for column in query.columns if column.name.endswith(DURATIONS)}
    assert {column.name for column in query.columns if column.unit == "s"} == timed


@pytest.mark.parametrize("name", NAMES)
def test_variables_are_those_that_the_header_names(name: str) -> None:
    query = queries.find(name)
    for variable in query.variables:
        used = f"getvariable('{variable.name}')"
        assert used in query.sql or (variable.name == "run_id" and used in queries.catalogue.read_source("views.sql"))
    read = set(re.findall(r"getvariable\('(\w+)'\)", query.sql))
    assert read == {variable.name for variable in query.variables} - {"run_id"}


@pytest.mark.parametrize("name", NAMES)
def test_empty_store_gives_no_figures(con: duckdb.DuckDBPyConnection, name: str) -> None:
    result = queries.run(con, name)
    assert result.columns == tuple(column.name for column in queries.find(name).columns)
    assert [row for row in result.rows if name != "completeness"] == []


def test_latest_run_is_the_default_and_variables_do_not_stay(con: duckdb.DuckDBPyConnection) -> None:
    Simulation(run_id="run-1", seed=1).fill(con)
    Simulation(run_id="run-2", seed=2).fill(con)
    latest = queries.run(con, "verdict")
    assert {row[0] for row in latest.rows} == {"run-2"}
    first = queries.run(con, "verdict", run_id="run-1")
    assert {row[0] for row in first.rows} == {"run-1"}
    assert queries.run(con, "verdict", run_id=None) == latest
    assert queries.run(con, "verdict", run_id="no such run").rows == []


def test_unknown_names_are_refused_by_name(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(UsageError, match=r"no query 'verdicts'; known are: baseline_drift, break_even, .*, verdict"):
        queries.find("verdicts")
    with pytest.raises(UsageError, match="'survival' has no variable seed; it has: run_id"):
        queries.run(con, "survival", seed=1)


def test_header_parts_must_be_there() -> None:
    with pytest.raises(ValueError, match="lacks 'question'"):
        parse_query("-- name: x\n-- summary: y\nselect 1")
    with pytest.raises(ValueError, match="not `name: meaning`"):
        parse_query(
            "-- name: x\n-- summary: y\n-- question: z?\n-- runs: ncm\n"
            "-- variables:\n-- columns:\n--   nothing\nselect 1"
        )


def test_documentation_is_the_headers() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render(), "run: python -m queries.docs > docs/queries.md"


def test_views_are_kept_where_the_database_can_be_written_and_temporary_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    with duckdb.connect(path) as con:
        create_schema(con)
        Simulation().fill(con)
    with duckdb.connect(path, read_only=True, config={"threads": 1}) as con:
        queries.install_views(con)
        temporary = queries.run(con, "verdict")
    with duckdb.connect(path) as con:
        queries.install_views(con)
    with duckdb.connect(path, read_only=True, config={"threads": 1}) as con:
        assert queries.run(con, "verdict") == temporary
        queries.install_views(con)
        assert queries.run(con, "verdict") == temporary
