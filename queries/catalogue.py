"""The queries as they stand in this folder: one statement a file, whose header says what it answers.

A header is the comment at the top of the file, in this order: `name`, `summary`, `question`, `runs` (the kinds of run
it suits), then `variables` and `columns` with one indented line each. Further lines of an entry are indented deeper.
Names, documentation and checks all come from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from telemetry.errors import UsageError

VIEWS = ("intervals.sql", "views.sql", "machine_views.sql", "ncm_views.sql")
"""The shared views, in the order in which they are made."""
_ENTRY = re.compile(r"(?P<name>\w+): (?P<meaning>.*)")
_UNIT = re.compile(r"(?P<meaning>.*) \[(?P<unit>[^]]+)\]")


@dataclass(frozen=True)
class Variable:
    """A DuckDB variable that a query reads with getvariable(), and what holds while it is not set."""

    name: str
    meaning: str
    default: str


@dataclass(frozen=True)
class Column:
    """A column of a query's rows; `unit` is None for counts, ratios and words."""

    name: str
    meaning: str
    unit: str | None


@dataclass(frozen=True)
class Query:
    """One statement with what its header says. `runs`: kinds of run it is about; `sql`: the whole file."""

    name: str
    summary: str
    question: str
    runs: tuple[str, ...]
    variables: tuple[Variable, ...]
    columns: tuple[Column, ...]
    sql: str


@cache
def catalogue() -> dict[str, Query]:
    """Every query by its name, in alphabetical order."""
    sources = sorted(file.name for file in files("queries").iterdir() if file.name.endswith(".sql"))
    return {source.removesuffix(".sql"): parse_query(read_source(source)) for source in sources if source not in VIEWS}


def names(kind: str | None = None) -> tuple[str, ...]:
    """The names of the queries; with `kind`, of those that suit runs of that kind."""
    return tuple(name for name, query in catalogue().items() if kind is None or kind in query.runs)


def find(name: str) -> Query:
    """The query of this name; UsageError, naming the known ones, if there is none."""
    try:
        return catalogue()[name]
    except KeyError:
        raise UsageError(f"there is no query {name!r}; known are: {', '.join(names())}") from None


def read_source(name: str) -> str:
    """The text of a file of this folder."""
    return files("queries").joinpath(name).read_text(encoding="utf-8")


def parse_query(sql: str) -> Query:
    """Reads a file's header; ValueError if a part is missing."""
    parts = dict(_split_header(sql))
    try:
        name, summary, question, runs = (" ".join(parts[part]) for part in ("name", "summary", "question", "runs"))
        variables, columns = parts["variables"], parts["columns"]
    except KeyError as error:
        raise ValueError(f"a query's header lacks {error}:\n{sql[:200]}") from None
    return Query(
        name,
        summary,
        question,
        tuple(runs.split(", ")),
        tuple(Variable(key, *meaning.split("; default: ", 1)) for key, meaning in _read_entries(variables)),
        tuple(_read_column(key, meaning) for key, meaning in _read_entries(columns)),
        sql,
    )


def _split_header(sql: str) -> Iterator[tuple[str, list[str]]]:
    """The header's parts, each with its lines less the comment mark and the indentation of an entry."""
    part: tuple[str, list[str]] | None = None
    for line in sql.splitlines():
        if not line.startswith("-- "):
            break
        text = line[3:]
        if not text.startswith(" "):
            if part:
                yield part
            name, _, rest = text.partition(":")
            part = (name, [rest.strip()] if rest.strip() else [])
        elif part:
            part[1].append(text.removeprefix("  "))
    if part:
        yield part


def _read_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Name and meaning of every entry, its further lines joined."""
    joined: list[str] = []
    for line in lines:
        if line.startswith(" "):
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    for entry in joined:
        if not (match := _ENTRY.fullmatch(entry)):
            raise ValueError(f"not `name: meaning` in a query's header: {entry!r}")
        yield match["name"], match["meaning"]


def _read_column(name: str, text: str) -> Column:
    if match := _UNIT.fullmatch(text):
        return Column(name, match["meaning"], match["unit"])
    return Column(name, text, None)
