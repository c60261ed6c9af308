"""Keeps keys unique in tables without an index, by one question about all new rows before they are committed.

An index is asked, and grows, row by row: of a million rounds it took a seventh of the whole load and half the file.
"""

from __future__ import annotations

from collections.abc import Collection

import duckdb

from telemetry.schema import Layout, layouts, quote, quote_name


class Repeated(duckdb.ConstraintException):
    """Rows of the same key are in a table; what inserted them is to be rolled back."""


def check_unique(con: duckdb.DuckDBPyConnection, journals: Collection[str]) -> None:
    """Raise Repeated if a row of one of these journals has the key of another row, whichever journal that is from."""
    for layout in layouts():
        if not layout.indexed and journals and con.execute(_find_repeated(layout, journals)).fetchone():
            raise Repeated(f"rows of the same key in {layout.name}")


def _find_repeated(layout: Layout, journals: Collection[str]) -> str:
    """A statement with a row if a key is repeated.

    A key ends in a count. Of 64 counts in a row each sets its bit; where there are fewer bits than rows, two are equal.
    """
    *leading, last = (quote_name(name) for name in layout.key)
    group, named = ", ".join(leading), ", ".join(map(quote, sorted(journals)))
    return f"""
        SELECT 1 FROM {layout.name}
        WHERE ({group}) IN (SELECT DISTINCT ({group}) FROM {layout.name} WHERE journal IN ({named}))
        GROUP BY {group}, {last} // 64
        HAVING count(*) > bit_count(bit_or(1::UBIGINT << ({last} % 64)::UBIGINT))
        LIMIT 1
    """
