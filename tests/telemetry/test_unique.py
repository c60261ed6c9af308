"""Keys of tables without an index are unique: what is asked of all new rows at once, against a set in Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from telemetry.bulk import DUPLICATE
from telemetry.store import connect, load
from telemetry.unique import Repeated, check_unique
from tests.telemetry.stores import generation, header, rounds, write_lines

GREATEST = 2**63 - 1
ROWS = st.lists(
    st.tuples(
        st.sampled_from("gh"),
        st.integers(0, 5) | st.integers(62, 66) | st.integers(GREATEST - 2, GREATEST),
        st.sampled_from("xyz"),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A table of the name, with the key and without all constraints."""
    with duckdb.connect() as con:
        con.execute('CREATE TABLE rounds (generation_id VARCHAR, "index" BIGINT, journal VARCHAR)')
        yield con


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sets(st.sampled_from("xyz")))
@example([("g", 0, "x"), ("g", 64, "x"), ("h", 0, "x")], {"x"})
@example([("g", GREATEST, "x"), ("g", GREATEST, "y")], {"y"})
@example([("g", 1, "x"), ("g", 1, "x"), ("g", 2, "y")], {"y"})
@example([("g", 1, "x"), ("g", 1, "x"), ("h", 2, "y")], {"y"})
def test_a_key_that_is_repeated_in_a_generation_of_these_journals_is_found(
    con: duckdb.DuckDBPyConnection, rows: list[tuple[str, int, str]], journals: set[str]
) -> None:
    con.execute("DELETE FROM rounds")
    if rows:
        con.execute(f"INSERT INTO rounds VALUES {', '.join(map(str, rows))}")
    named = {generation_id for generation_id, _, journal in rows if journal in journals}
    counted = Counter((generation_id, index) for generation_id, index, _ in rows if generation_id in named)
    found = False
    try:
        check_unique(con, journals)
    except Repeated:
        found = True
    assert found == any(n > 1 for n in counted.values())


@pytest.mark.parametrize("between", [False, True])
def test_a_journal_of_another_name_gives_no_round_twice(tmp_path: Path, *, between: bool) -> None:
    """Whether it is loaded later or along with the first; what only it has is taken."""
    write_lines(tmp_path, [header(), generation("g"), *rounds("g", 3)], "a")
    if between:
        load(tmp_path)
    write_lines(tmp_path, [header(), *rounds("g", 5)], "b")
    load(tmp_path)
    with connect(tmp_path) as connected:
        found = connected.con.execute("SELECT journal, index FROM rounds ORDER BY index").fetchall()
        refused = connected.con.execute("SELECT journal, line, reason FROM rejected ORDER BY line").fetchall()
    assert found == [("a.ndjson", 0), ("a.ndjson", 1), ("a.ndjson", 2), ("b.ndjson", 3), ("b.ndjson", 4)]
    assert refused == [("b.ndjson", line, DUPLICATE) for line in (2, 3, 4)]
