"""Anybody's own questions to the tables: SQL that can only read, whoever wrote it.

What a connection may reach is `telemetry.store.restrict`'s business; here only questions are let through.
"""

from __future__ import annotations

import duckdb

from queries.running import Result
from telemetry.errors import UsageError


def ask(con: duckdb.DuckDBPyConnection, text: str, most: int | None = None) -> Result:
    """What the last statement of `text` gives, at most `most` rows of it (None: all).

    Questions are SELECT in all its forms, EXPLAIN and, before another, SET VARIABLE; anything else is a UsageError.
    What DuckDB cannot run is a UsageError with its own words, raised from DuckDB's error.
    """
    types = duckdb.StatementType
    questions = {types.SELECT, types.MULTI, types.EXPLAIN, types.SET}  # MULTI: a PIVOT
    try:
        statements = con.extract_statements(text)
        if not statements:
            raise UsageError("there is no SQL statement to run")
        for statement in statements:
            if statement.type not in questions:
                raise UsageError(f"{statement.type.name} is no question, and the store can only be read")
            found = con.sql(statement)  # a question is computed only as far as its rows are taken
        if statements[-1].type == types.SET:
            raise UsageError("the last statement sets a variable and gives no rows; put a question after it")
        rows = found if most is None else found.limit(most)
        return Result(tuple(found.columns), rows.fetchall())
    except duckdb.Error as error:
        words = (line for line in str(error).splitlines() if line.strip(" ^"))
        raise UsageError(f"DuckDB says: {' '.join(words)}") from error
