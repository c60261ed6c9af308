"""A store in memory, and a page of fixed width to print on."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import duckdb
import pytest
from rich.console import Console

from tests.queries.simulate import open_store


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to empty tables with the views."""
    with open_store() as connection:
        yield connection


@pytest.fixture
def show() -> Callable[[Callable[[Console], None]], str]:
    """What a function prints on a page 80 characters wide, without the blanks that end lines."""

    def render(print_on: Callable[[Console], None]) -> str:
        console = Console(file=io.StringIO(), width=80, color_system=None)
        print_on(console)
        assert isinstance(console.file, io.StringIO)
        return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())

    return render
