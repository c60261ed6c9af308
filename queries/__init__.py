"""The analysis: SQL statements over the recorded tables, each with a header that says what it answers."""

from __future__ import annotations

from queries.asking import ask
from queries.catalogue import Column, Query, Variable, find, names
from queries.partitions import install_tables_over
from queries.running import Result, install_views, run

__all__ = [
    "Column",
    "Query",
    "Result",
    "Variable",
    "ask",
    "find",
    "install_tables_over",
    "install_views",
    "names",
    "run",
]
