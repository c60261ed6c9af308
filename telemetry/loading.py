"""Fills the tables from journals: what is new in them, each line once, whatever the order in which they come.

Lines of a kind go to DuckDB as a file of NDJSON, in bulk; the tables' constraints are the check. If they refuse one row of a
batch, the batch is done again with the checks in the query, so that only bad rows stay out. Ends and comparisons wait in a
table of their own until all journals are read and are then written into the rows they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import msgspec
from msgspec import Struct

from telemetry import completion
from telemetry.reading import Batch, Replaced, TooNew, read_journal, reject
from telemetry.records import TABLES, Table
from telemetry.schema import JournalRow, Rejected, Waiting, describe_columns, kind_name, layouts, quote, quote_name

_REFUSALS = (duckdb.ConstraintException, duckdb.InvalidInputException, duckdb.OutOfRangeException, duckdb.ConversionException)
_TABLE_OF = {table.opens: table for table in TABLES}
_TYPE_OF_ADDED = {kind: kind_name(kind) for table in TABLES for kind in table.adds}
_LEAST_OBJECT_SIZE = 1 << 20

_encode_lines = msgspec.json.Encoder().encode_lines


@dataclass
class LoadReport:
    """What a load found that was new, and what a user should know of it."""

    n_lines: int = 0
    n_rejected: int = 0
    n_torn: int = 0
    n_lost: int = 0
    notes: list[str] = field(default_factory=list)


def load_journals(con: duckdb.DuckDBPyConnection, folder: Path) -> LoadReport:
    """Bring the tables up to date with the journals in `folder`. Each batch is a transaction of its own."""
    with TemporaryDirectory(prefix="roundscope-") as spool:
        loader = _Loader(con, Path(spool))
        try:
            return loader.load(folder)
        except Replaced:
            loader.clear()
            report = _Loader(con, Path(spool)).load(folder)
            report.notes.append("a journal had been replaced; all tables were made anew from the journals")
            return report
