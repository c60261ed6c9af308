"""An empty store in memory, with the views of the queries."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from tests.queries.simulate import open_store


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to it."""
    with open_store() as connection:
        yield connection
