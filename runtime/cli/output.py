"""Rows on stdout, for people (--table) and for programs (--json, --csv)."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

import click

from telemetry.errors import UsageError
from telemetry.logs import get_logger
from telemetry.plain import are_numbers, encode, show, simplify, write_cell

if TYPE_CHECKING:
    from rich.console import Console

Form: TypeAlias = Literal["table", "json", "csv"]

_HELP: dict[Form, str] = {
    "table": "A table for reading (the default).",
    "json": "A JSON list with an object a row.",
    "csv": "Comma-separated values under a line of names.",
}
_PIPE_WIDTH = 100_000


def say_notes(notes: Iterable[str]) -> None:
    """What a person should know of the store that was read, on stderr; where that is no terminal, as events too."""
    for note in notes:
        if not sys.stderr.isatty():
            get_logger().warning("store.noted", note=note)
        click.echo(f"note: {note}", err=True)


def read_text(argument: str) -> str:
    """An argument, or standard input for `-`. UsageError if it is no text: bytes in another encoding."""
    text = sys.stdin.read() if argument == "-" else argument
    try:
        text.encode()
    except UnicodeEncodeError as error:
        source = "standard input" if argument == "-" else "the argument"
        raise UsageError(
            f"{source} is no text from character {error.start + 1} on: give UTF-8, in a UTF-8 locale (LC_ALL=C.UTF-8)"
        ) from error
    return text


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options --table, --json and --csv, of which one at most, as its parameter `form`."""

    @wraps(command)
    def decorated(**given: Any) -> Any:
        chosen = [form for form in _HELP if given.pop(f"as_{form}")]
        if len(chosen) > 1:
            raise click.UsageError(f"{' and '.join(f'--{form}' for form in chosen)} exclude each other")
        return command(form=chosen[0] if chosen else "table", **given)

    for form, text in reversed(_HELP.items()):
        decorated = click.option(f"--{form}", f"as_{form}", is_flag=True, help=text)(decorated)
    return decorated


def write_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], form: Form, stream: TextIO | None = None) -> None:
    """Write rows of plain Python values, as DuckDB gives them, to `stream` (default: stdout).

    Moments are ISO 8601 text. In JSON NULL is null, and so is a double that is no number, and columns of the same name
    are told apart as `name`, `name_2`, ... In CSV NULL is empty and lists are JSON. In a table NULL is `-` and doubles
    are cut to six digits, which is more than a measurement is good for.
    """
    write = {"table": _write_table, "json": _write_json, "csv": _write_csv}[form]
    write(columns, rows, sys.stdout if stream is None else stream)


def _write_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    kept = [tuple(row) for row in rows]
    table = Table(box=box.SIMPLE_HEAD)
    for name, values in zip(columns, zip(*kept, strict=True) if kept else [()] * len(columns), strict=True):
        table.add_column(Text(name), justify="right" if are_numbers(values) else "left", overflow="fold")
    for row in kept:
        table.add_row(*(Text(show(value)) for value in row))
    # What is no terminal has no width: nothing is folded there, so that a line stays a row.
    console = Console(file=out, width=None if out.isatty() else _PIPE_WIDTH)
    unfolded = console.options.update(width=_PIPE_WIDTH)
    if console.measure(table, options=unfolded).maximum > console.width:
        _write_blocks(columns, kept, console)
    else:
        console.print(table)


def _write_blocks(columns: Sequence[str], rows: Sequence[Sequence[Any]], console: Console) -> None:
    """Rows too wide for the terminal: a block each, a line a column, columns of one and the same value once, above."""
    from rich.text import Text

    width = max(map(len, columns))
    constant = [i for i in range(len(columns)) if len(rows) > 1 and len({show(row[i]) for row in rows}) == 1]
    blocks = [(rows[0], constant)] if constant else []
    blocks += [(row, [i for i in range(len(columns)) if i not in constant]) for row in rows]
    for row, shown in blocks:
        lines = [f"{columns[i]:<{width}}  {show(row[i])}" for i in shown]
        console.print(Text("\n".join(lines) + "\n"), soft_wrap=True)


def make_objects(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Rows as objects of what JSON knows; columns of the same name are told apart."""
    names = _tell_apart(columns)
    for row in rows:
        yield {name: simplify(value) for name, value in zip(names, row, strict=True)}


def write_document(document: dict[str, Any]) -> None:
    """Write one JSON document as one line on stdout."""
    click.echo(encode(simplify(document)))


def _write_json(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    separator = "[\n"
    for row in make_objects(columns, rows):
        out.write(separator + encode(row))
        separator = ",\n"
    out.write("[]\n" if separator == "[\n" else "\n]\n")


def _tell_apart(columns: Sequence[str]) -> list[str]:
    names: list[str] = []
    for column in columns:
        name, n = column, 1
        while name in names:
            n += 1
            name = f"{column}_{n}"
        names.append(name)
    return names


def _write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if value is None else write_cell(value) for value in row] for row in rows)
