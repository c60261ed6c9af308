"""What a page is made of: sections of sentences, charts and tables, all of plain text but for the charts' SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dashboards.report.rows import Row

Show: TypeAlias = Callable[[Any], str]
NOTHING = "-"
N_SHOWN = 12
"""Classes that have a chart of their own; tables have all of them."""


@dataclass(frozen=True)
class Table:
    """A table: a caption, the names of its columns, and rows of text as long as these."""

    caption: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class Figure:
    """A chart as SVG (empty where there is nothing to draw), what to see in it, and the same as a table."""

    title: str
    explanation: str
    svg: str
    table: Table


@dataclass(frozen=True)
class Section:
    """A heading with what is below it. `warnings`: sentences that a reader has to see."""

    id: str
    heading: str
    sentences: Sequence[str] = ()
    warnings: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, the row's field, and how a value becomes text."""

    head: str
    field: str
    show: Show = str


def make_table(caption: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """The rows as text; what is not known is a dash."""
    cells = [tuple(NOTHING if row[one.field] is None else one.show(row[one.field]) for one in columns) for row in rows]
    return Table(caption, tuple(one.head for one in columns), cells)


def ratio(value: float) -> str:
    """Two digits behind the point."""
    return f"{value:.2f}"


def share(value: float) -> str:
    """A percentage."""
    return f"{value:.1%}"


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds."""
    return f"{seconds * 1e3:.3g}"


def whole(value: float) -> str:
    """A number of things."""
    return f"{value:,.0f}"
