"""An empty store in memory, with the views of the queries."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from queries import install_views
from telemetry.schema import create_schema


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to the tables, nothing in them, one thread so that sums come out the same every time."""
    with duckdb.connect(config={"threads": 1}) as connection:
        create_schema(connection)
        install_views(connection)
        yield connection
