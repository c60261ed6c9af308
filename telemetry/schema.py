"""The tables in DuckDB, made from the records.

A column exists because a record has a field: its type, NOT NULL, CHECK and COMMENT follow from the field's definition
in `telemetry.records`. Tables that only loading needs (`journals`, `rejected`, `waiting`) are defined here likewise.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import duckdb
import msgspec
from msgspec import Struct

from telemetry.fields import Count, about
from telemetry.records import SCHEMA_VERSION
from telemetry.tables import TABLES, Check, FieldInfo, Table, describe_fields

Writer: TypeAlias = Literal["running", "ended", "unknown"]

STATES = {"running": "running", "ended": "aborted", "unknown": "unknown"}
"""`finish_reason` of a generation or rank without an end record, by what is known of its journal's writer."""


class JournalRow(Struct, kw_only=True):
    """A journal as far as it was read."""

    journal: Annotated[str, about("file name of the journal")]
    schema_version: Annotated[Count | None, about("version of the records; NULL: first line unreadable")] = None
    host: Annotated[str | None, about("name of the writing machine")] = None
    pid: Annotated[Count | None, about("process id of the writer")] = None
    created_wall_ns: Annotated[Count | None, about("when the file was opened", "ns since epoch")] = None
    roundscope_version: Annotated[str | None, about("version of roundscope that wrote the file")] = None
    writer: Annotated[Writer, about("running: its lock is held; ended: it is free; unknown: another host's")]
    bytes_read: Annotated[Count, about("how far the file was read", "bytes")] = 0
    fingerprint: Annotated[Count, about("checksum over both ends of what was read")] = 0
    n_lines: Annotated[Count, about("lines read, torn and rejected ones included")] = 0
    n_torn: Annotated[Count, about("lines that break off: the writer was killed, or had no space")] = 0
    n_rejected: Annotated[Count, about("lines in `rejected`")] = 0
    n_lost: Annotated[Count, about("records not written, or torn, by the writer's own count")] = 0
    archived_in: Annotated[str | None, about("batch of the archive that has it; NULL: it is a journal still")] = None


class Rejected(Struct, kw_only=True):
    """A line that is in no table."""

    journal: Annotated[str, about("file name of the journal")]
    line: Annotated[Count, about("number of the line in that file, from 1")]
    reason: Annotated[str, about("what is wrong with it")]
    text: Annotated[str, about("the line's first 500 characters")]


class Waiting(Struct, kw_only=True):
    """An end or a comparison whose run or generation was not seen yet; it is taken up as soon as that is."""

    journal: Annotated[str, about("file name of the journal")]
    line: Annotated[Count, about("number of the line in that file, from 1")]
    type: Annotated[str, about("type of the record")]
    record: Annotated[str, about("the line")]


LOADING_TABLES = (
    Table("journals", ("journal",), JournalRow),
    Table("rejected", (), Rejected),
    Table("waiting", (), Waiting),
)


@dataclass(frozen=True)
class Column:
    """A column of a table. `required`: NOT NULL. `allowed`: the only values there are, if they are few.

    sql_type: the type as which values are read, from lines and from partitions; the table's is `stored_type`.
    """

    name: str
    sql_type: str
    meaning: str
    unit: str | None
    required: bool = False
    allowed: tuple[str, ...] = ()
    is_count: bool = False

    @property
    def stored_type(self) -> str:
        """The type that it has in the table. An ENUM's values are in the order of the alphabet, as texts sort."""
        # More than a quarter of the time of an insert into `rounds` went into the dictionaries of such texts.
        return f"ENUM ({', '.join(map(quote, sorted(self.allowed)))})" if self.allowed else self.sql_type


@dataclass(frozen=True)
class Layout:
    """A table as DuckDB has it."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    checks: tuple[Check, ...]
    indexed: bool


@cache
def describe_columns(record: type[Struct], *, opens: bool = True) -> tuple[Column, ...]:
    """The columns that records of this kind fill; those of a kind that does not open rows may be NULL."""
    counts = _find_counts(record)
    return tuple(_describe_column(field, opens and not field.optional, counts) for field in describe_fields(record))


@cache
def layouts() -> tuple[Layout, ...]:
    """All tables with their columns: those of records, then those of loading."""
    origin = Column("journal", "VARCHAR", "file name of the journal it was read from", None)
    return tuple(_lay_out(table, origin) for table in (*TABLES, *LOADING_TABLES))


def create_schema(con: duckdb.DuckDBPyConnection) -> None:
    """Make the empty tables, with their comments, in a database that has none. Moments will be shown in UTC."""
    con.execute(";\n".join(["SET TimeZone = 'UTC'", "BEGIN", *_write_statements(), "COMMIT"]))


def has_schema(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether the database has exactly the tables that `create_schema` makes."""
    try:
        rows = con.execute("SELECT version, digest FROM schema_version").fetchall()
    except (duckdb.CatalogException, duckdb.BinderException):
        return False
    return rows == [(SCHEMA_VERSION, _digest())]


def _write_statements() -> list[str]:
    statements = []
    for layout in layouts():
        statements += [_create_table(layout), *_comment(layout)]
    return [
        *statements,
        "CREATE TABLE schema_version (version BIGINT NOT NULL, digest VARCHAR NOT NULL)",
        "COMMENT ON TABLE schema_version IS 'Which tables these are. If others are wanted, all are made anew.'",
        "COMMENT ON COLUMN schema_version.version IS 'version of the records'",
        "COMMENT ON COLUMN schema_version.digest IS 'checksum over the definitions of the tables'",
        f"INSERT INTO schema_version VALUES ({SCHEMA_VERSION}, {quote(_digest())})",
    ]


def _digest() -> str:
    return sha256("\n".join(_create_table(layout) for layout in layouts()).encode()).hexdigest()


def quote(text: str) -> str:
    """`text` as a SQL string."""
    return "'" + text.replace("'", "''") + "'"


def _lay_out(table: Table, origin: Column) -> Layout:
    columns = {column.name: column for column in describe_columns(table.opens)}
    for kind in table.adds:
        for column in describe_columns(kind, opens=False):
            columns.setdefault(column.name, column)
    columns.setdefault(origin.name, origin)
    keyed = [columns.pop(name) for name in table.key]
    return Layout(table.name, _explain(table), (*keyed, *columns.values()), table.key, table.checks, table.indexed)


def _explain(table: Table) -> str:
    kinds = (table.opens, *table.adds)
    if not table.opens.__struct_config__.tag:
        return summarize(table.opens)
    return "From journal lines " + ", ".join(f"`{kind_name(kind)}` ({summarize(kind)})" for kind in kinds)


def kind_name(kind: type[Struct]) -> str:
    """The `type` of a kind's lines."""
    return str(kind.__struct_config__.tag)


def summarize(kind: type[Struct]) -> str:
    """What a kind of record means, in a sentence."""
    return (kind.__doc__ or "").splitlines()[0]


def _find_counts(record: type[Struct]) -> set[str]:
    """Names of the fields that cannot be negative."""
    described = msgspec.inspect.type_info(record)
    assert isinstance(described, msgspec.inspect.StructType)
    return {field.encode_name for field in described.fields if any(_is_count(part) for part in _unwrap(field.type))}


def _unwrap(kind: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    if isinstance(kind, msgspec.inspect.Metadata):
        yield from _unwrap(kind.type)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for part in kind.types:
            yield from _unwrap(part)
    else:
        yield kind


def _is_count(kind: msgspec.inspect.Type) -> bool:
    return isinstance(kind, msgspec.inspect.IntType) and kind.ge == 0


def _describe_column(field: FieldInfo, required: bool, counts: set[str]) -> Column:
    allowed = tuple(get_args(field.type)) if get_origin(field.type) is Literal else ()
    if field.name == "finish_reason":
        allowed += tuple(STATES.values())
    sql_type = "VARCHAR" if allowed else _translate(field.type)
    return Column(field.name, sql_type, field.meaning, field.unit, required, allowed, field.name in counts)


def _translate(python_type: Any) -> str:
    if get_origin(python_type) is list:
        return f"{_translate(get_args(python_type)[0])}[]"
    if get_origin(python_type) is dict:
        return f"MAP({', '.join(_translate(part) for part in get_args(python_type))})"
    return {int: "BIGINT", float: "DOUBLE", str: "VARCHAR", bool: "BOOLEAN"}[python_type]


def _create_table(layout: Layout) -> str:
    parts = [_define(column) for column in layout.columns]
    if layout.key and layout.indexed:
        parts.append(f"PRIMARY KEY ({', '.join(quote_name(name) for name in layout.key)})")
    parts += [f"CHECK ({check.condition})" for check in layout.checks]
    return f"CREATE TABLE {layout.name} (\n  " + ",\n  ".join(parts) + "\n)"


def _define(column: Column) -> str:
    name = quote_name(column.name)
    parts = [name, column.stored_type]
    if column.required:
        parts.append("NOT NULL")
    if column.is_count:
        parts.append(f"CHECK ({name} >= 0)")
    return " ".join(parts)


def quote_name(name: str) -> str:
    """`name` as a SQL identifier, whatever keyword it may be."""
    return f'"{name}"'


def _comment(layout: Layout) -> Iterator[str]:
    yield f"COMMENT ON TABLE {layout.name} IS {quote(layout.meaning)}"
    for column in layout.columns:
        text = f"{column.meaning} [{column.unit}]" if column.unit else column.meaning
        yield f"COMMENT ON COLUMN {layout.name}.{quote_name(column.name)} IS {quote(text)}"
