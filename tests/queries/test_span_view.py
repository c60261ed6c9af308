"""The view `spans` has the rows that `telemetry.spans` makes of the same records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from queries import install_views
from telemetry.records import Record
from telemetry.spans import SpanData, build_spans
from telemetry.store import connect
from tests.telemetry.coarse import whole_ncm
from tests.telemetry.stores import generation, rounds, whole_generation
from tests.telemetry.traces import every_kind, write_store

COLUMNS = (
    "trace_id, span_id, parent_id, name, kind, start_unix_ns, end_unix_ns, attributes, links, status, error_type, flags"
)


def _rows(con: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    cursor = con.execute(f"SELECT {COLUMNS} FROM spans ORDER BY span_id")
    names = [name for name, *_ in cursor.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [{**row, "attributes": json.loads(row["attributes"])} for row in rows]


def _as_row(span: SpanData) -> dict[str, Any]:
    names = COLUMNS.split(", ")
    links = [{"trace_id": link.trace_id, "span_id": link.span_id} for link in span.links]
    return {name: getattr(span, name) for name in names} | {"links": links, "attributes": dict(span.attributes)}


@pytest.mark.parametrize(
    "records",
    [every_kind(), [*whole_generation("g1"), *whole_ncm("n1")], [generation("g", sampled=False, run_id=None)]],
    ids=["every kind", "ids that are no hexadecimal digits", "not sampled"],
)
def test_the_view_has_the_same_rows(tmp_path: Path, records: list[Record]) -> None:
    write_store(tmp_path, records)
    with connect(tmp_path, prepare=install_views) as connected:
        assert connected.con.execute("SELECT reason FROM rejected").fetchall() == []
        assert _rows(connected.con) == [_as_row(span) for span in sorted(build_spans(records), key=lambda s: s.span_id)]


def test_numbers_in_attributes_keep_their_kind(tmp_path: Path) -> None:
    write_store(tmp_path)
    with connect(tmp_path, prepare=install_views) as connected:
        kinds = connected.con.execute(
            "SELECT json_type(attributes, '$.\"gen_ai.usage.output_tokens\"'), "
            "json_type(attributes, '$.\"gen_ai.response.time_to_first_chunk\"') "
            "FROM spans WHERE attributes->>'gen_ai.usage.output_tokens' = '6' LIMIT 1"
        ).fetchall()
    assert kinds == [("UBIGINT", "DOUBLE")]


def test_what_goes_on_has_no_end_and_no_error_yet(tmp_path: Path) -> None:
    write_store(tmp_path, [generation("1" * 32), *rounds("1" * 32, 1)])
    with connect(tmp_path, prepare=install_views) as connected:
        pass
    with duckdb.connect(tmp_path / "roundscope.duckdb") as con:
        con.execute("UPDATE generations SET finish_reason = 'running'")
        roots = con.execute("SELECT end_unix_ns, status, error_type FROM spans WHERE parent_id IS NULL").fetchall()
    assert roots == [(None, "unset", None)]
    assert connected.source == "database"
