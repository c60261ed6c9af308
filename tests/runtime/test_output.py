"""Rows as tables, JSON and CSV."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import click
import pytest
from click.testing import CliRunner

from runtime.cli.output import Form, output_options, write_rows

MOMENT = dt.datetime(2025, 1, 2, 3, 4, 5, 678000, tzinfo=dt.UTC)
VALUES: list[tuple[Any, Any, str, str]] = [
    # value, in JSON, in CSV, in a table
    (None, None, "", "-"),
    (True, True, "true", "true"),
    (0, 0, "0", "0"),
    (2**63 - 1, 2**63 - 1, str(2**63 - 1), str(2**63 - 1)),
    (10**30, 10**30, str(10**30), str(10**30)),
    (0.1 + 0.2, 0.30000000000000004, "0.30000000000000004", "0.3"),
    (float("nan"), None, "nan", "nan"),
    (float("-inf"), None, "-inf", "-inf"),
    (Decimal("1.50"), 1.5, "1.50", "1.50"),
    ('größe, "x"\n', 'größe, "x"\n', 'größe, "x"\n', 'größe, "x"\n'),
    ("[red]", "[red]", "[red]", "[red]"),
    ([1, None, "a"], [1, None, "a"], '[1, null, "a"]', '[1, null, "a"]'),
    ({"a": {1: 0.5}}, {"a": {"1": 0.5}}, '{"a": {"1": 0.5}}', '{"a": {"1": 0.5}}'),
    (MOMENT, "2025-01-02T03:04:05.678000+00:00", MOMENT.isoformat(), MOMENT.isoformat()),
    (dt.date(2025, 1, 2), "2025-01-02", "2025-01-02", "2025-01-02"),
    (dt.timedelta(hours=3), "3:00:00", "3:00:00", "3:00:00"),
    (UUID(int=1), str(UUID(int=1)), str(UUID(int=1)), str(UUID(int=1))),
    (b"\x00\xff", "00ff", "00ff", "00ff"),
]


def render(columns: list[str], rows: list[list[Any]], form: Form) -> str:
    stream = io.StringIO()
    write_rows(columns, rows, form, stream)
    return stream.getvalue()


@pytest.mark.parametrize(("value", "in_json", "in_csv", "in_table"), VALUES)
def test_every_kind_of_value(value: Any, in_json: Any, in_csv: str, in_table: str) -> None:
    assert json.loads(render(["x", "y"], [[value, 1]], "json")) == [{"x": in_json, "y": 1}]
    text = render(["x", "y"], [[value, 1]], "csv")
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["x", "y"], [in_csv, "1"]]
    shown = render(["x", "y"], [[value, 1]], "table")
    assert all(part in shown for part in in_table.split("\n"))


def test_a_table_lines_numbers_up_and_folds_nothing_that_is_no_terminal() -> None:
    text = render(["name", "n"], [["a" * 300, 7], ["b", None], ["c", 1234]], "table")
    lines = [line.rstrip() for line in text.splitlines() if line.strip(" ─")]
    assert [line.split() for line in lines] == [["name", "n"], ["a" * 300, "7"], ["b", "-"], ["c", "1234"]]
    assert len({len(line) for line in lines}) == 1  # numbers end where their heading does
    assert {line.index(line.strip()) for line in lines} == {2}


def test_json_has_a_row_a_line() -> None:
    assert render(["a"], [[1], [2]], "json") == '[\n{"a": 1},\n{"a": 2}\n]\n'


def test_columns_of_one_name_are_told_apart_in_json() -> None:
    assert json.loads(render(["a", "a", "a_2", "a"], [[1, 2, 3, 4]], "json")) == [
        {"a": 1, "a_2": 2, "a_2_2": 3, "a_3": 4}
    ]


@pytest.mark.parametrize(("form", "expected"), [("json", "[]\n"), ("csv", "a,b\n")])
def test_no_rows(form: Form, expected: str) -> None:
    assert render(["a", "b"], [], form) == expected
    assert "a" in render(["a", "b"], [], "table")


@pytest.mark.parametrize(
    ("arguments", "form"),
    [([], "table"), (["--table"], "table"), (["--json"], "json"), (["--csv"], "csv")],
)
def test_the_options(arguments: list[str], form: str) -> None:
    @click.command()
    @output_options
    def show(form: str) -> None:
        click.echo(form)

    result = CliRunner().invoke(show, arguments)
    assert (result.exit_code, result.output) == (0, f"{form}\n")


def test_a_table_too_wide_for_the_terminal_is_written_as_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    rows = [("run-1", "x" * 30, 1), ("run-1", "y" * 30, 2)]
    write_rows(("run_id", "a_name", "n"), rows, "table", out)
    expected = f"run_id  run-1\n\na_name  {'x' * 30}\nn       1\n\na_name  {'y' * 30}\nn       2\n\n"
    assert out.getvalue() == expected
