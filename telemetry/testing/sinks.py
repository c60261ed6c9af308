"""`assert_sinks_agree`: spans, rows, counters and what the caller received tell the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from telemetry.metric_names import PREFIX
from telemetry.ncm_records import LevelRecord, NcmRecord
from telemetry.records import GenerationRecord, Record, RoundRecord
from telemetry.testing.facts import attribute, is_kind, is_ours
from telemetry.testing.failure import TraceAssertionError, fail
from telemetry.testing.outputs import Output, read_tokens
from telemetry.testing.sources import convert_records, read_tables
from telemetry.testing.spans import Spans
from telemetry.testing.tree import Key, Span

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from prometheus_client import Metric
    from prometheus_client.registry import Collector

__tracebackhide__ = True

Totals: TypeAlias = dict[str, int]

KINDS: tuple[tuple[type[Struct], str, tuple[str, ...], tuple[str, ...]], ...] = (
    (GenerationRecord, "generations", (), ()),
    (
        RoundRecord,
        "rounds",
        ("proposed", "accepted", "committed", "cut", "overlap_positions"),
        ("reason", "proposer"),
    ),
    (NcmRecord, "ncm_generations", (), ()),
    (LevelRecord, "levels", ("prefix_processed", "prefix_reused"), ()),
)
"""What is counted: the kind of record, its table, the fields that are summed, and those that are counted where set."""

_ONLY_WITH = {"proposer": "proposed"}
"""A field that is counted only where this one is not 0 either: a part that was chosen may have had nothing."""

COUNTERS = {
    "generations": f"{PREFIX}generations_started_total",
    "rounds": f"{PREFIX}rounds_total",
    "proposed": f"{PREFIX}draft_tokens_total",
    "accepted": f"{PREFIX}accepted_tokens_total",
    "committed": f"{PREFIX}committed_tokens_total",
    "cut": f"{PREFIX}cut_tokens_total",
    "overlap_positions": f"{PREFIX}overlap_positions_total",
    "reason": f"{PREFIX}controlled_rounds_total",
    "proposer": f"{PREFIX}proposer_proposals_total",
    "ncm_generations": f"{PREFIX}ncm_generations_started_total",
    "levels": f"{PREFIX}ncm_level_seconds_count",
    "prefix_processed": f"{PREFIX}ncm_prefix_positions_computed_total",
    "prefix_reused": f"{PREFIX}ncm_prefix_positions_reused_total",
}
"""The series that counts the same."""

_COMPARED = ("name", "parent_id", "start_unix_ns", "end_unix_ns", "status")


def assert_sinks_agree(
    *,
    records: Iterable[Record] | None = None,
    spans: Spans | None = None,
    store: Path | str | DuckDBPyConnection | None = None,
    counters: Collector | str | None = None,
    outputs: Iterable[Output] | None = None,
) -> None:
    """What two or more sinks say of the same generations is the same: how many generations, rounds and levels there
    were, the sums of their tokens and positions, and how many rounds say a controller's reason or who proposed
    something (`KINDS`), as far as each sink knows them.

    records: a recorder's. spans: of any origin; beside records or a store they are also compared one by one: none may
    be missing, doubled, moved or changed. store: a store, or a connection to its tables. counters: a Prometheus
    registry that counted nothing else, or what its endpoint answers. outputs: the generations that the caller had, or
    their ids.
    """
    told: dict[str, Totals] = {}
    expected: list[Span] | None = None
    if records is not None:
        records = list(records)
        told["records"] = _total_records(records)
        expected = list(convert_records(records))
    if store is not None:
        with _open(store) as con:
            told["store"] = _total_tables(con)
            expected = list(read_tables(con)) if expected is None else expected
    if spans is not None:
        told["spans"] = _total_spans(spans)
    if counters is not None:
        told["counters"] = _total_counters(counters)
    if outputs is not None:
        tokens = [read_tokens(output) for output in outputs]
        told["outputs"] = {"generations": len(tokens), "committed": sum(map(len, tokens))}
    if len(told) < 2:
        raise TypeError("give two sinks or more, so that there is something to compare")
    if spans is not None and expected is not None:
        _compare_spans(spans, expected)
    _compare_totals(told)


@contextmanager
def _open(store: Path | str | DuckDBPyConnection) -> Iterator[DuckDBPyConnection]:
    if not isinstance(store, (str, Path)):
        yield store
        return
    from telemetry.store import connect

    with connect(Path(store)) as connected:
        yield connected.con


def _total_records(records: Sequence[Record]) -> Totals:
    totals: Totals = {}
    for kind, name, summed, counted in KINDS:
        found = [record for record in records if isinstance(record, kind)]
        rows = [{field: getattr(record, field) for field in (*summed, *counted)} for record in found]
        totals |= _total(rows, name, summed, counted)
    return totals


def _total_spans(spans: Spans) -> Totals:
    totals: Totals = {}
    for kind, name, summed, counted in KINDS:
        names = {field: attribute(kind, field) for field in (*summed, *counted)}
        found = [span for span in spans if is_kind(span, kind)]
        rows = [{field: span.attributes.get(names[field]) for field in names} for span in found]
        totals |= _total(rows, name, summed, counted)
    return totals


def _total(rows: Sequence[Mapping[str, Any]], name: str, summed: Sequence[str], counted: Sequence[str]) -> Totals:
    sums = {field: sum(row[field] or 0 for row in rows) for field in summed}
    numbers = {
        field: sum(row[field] is not None and bool(row[_ONLY_WITH.get(field, field)]) for row in rows)
        for field in counted
    }
    return {name: len(rows), **sums, **numbers}


def _total_tables(con: DuckDBPyConnection) -> Totals:
    totals: Totals = {}
    for _, name, summed, counted in KINDS:
        columns = ["count(*)", *(f"coalesce(sum({field}), 0)::BIGINT" for field in summed)]
        columns += [
            f"count({field})" + (f" FILTER ({_ONLY_WITH[field]} > 0)" if field in _ONLY_WITH else "")
            for field in counted
        ]
        [row] = con.execute(f"SELECT {', '.join(columns)} FROM {name}").fetchall()
        totals |= dict(zip((name, *summed, *counted), row, strict=True))
    return totals


def _total_counters(counters: Collector | str) -> Totals:
    families = _parse(counters) if isinstance(counters, str) else counters.collect()
    found: Counter[str] = Counter()
    for family in families:
        for sample in family.samples:
            found[sample.name] += int(sample.value)
    return {quantity: found[name] for quantity, name in COUNTERS.items()}


def _parse(text: str) -> Iterable[Metric]:
    if text.rstrip().endswith("# EOF"):
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

        families: Iterable[Metric] = read_openmetrics(text)  # type: ignore[no-untyped-call]
        return families
    from prometheus_client.parser import text_string_to_metric_families as read_text

    return read_text(text)


def _compare_totals(told: Mapping[str, Totals]) -> None:
    quantities = dict.fromkeys(quantity for totals in told.values() for quantity in totals)
    wrong = [
        quantity
        for quantity in quantities
        if len({totals[quantity] for totals in told.values() if quantity in totals}) > 1
    ]
    if not wrong:
        return
    rows = [("", *told)] + [
        (quantity, *(str(totals.get(quantity, "")) for totals in told.values())) for quantity in quantities
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    marked = [f"  {line}{'   <-- differ' if row[0] in wrong else ''}" for line, row in zip(lines, rows, strict=True)]
    raise TraceAssertionError(
        "\n".join([f"expected {', '.join(told)} to agree", f"found other {', '.join(wrong)}", *marked])
    )


def _compare_spans(spans: Spans, expected: Sequence[Span]) -> None:
    """One by one, by their ids; spans of others are let be."""
    wanted = {(span.trace_id, span.span_id): span for span in expected}
    notes: dict[Span, str] = {}
    seen: set[Key] = set()
    for span in spans:
        key = (span.trace_id, span.span_id)
        if key in seen and key in wanted:
            notes[span] = "is here twice"
        elif key in wanted:
            if fault := "; ".join(_find_differences(span, wanted[key])):
                notes[span] = fault
        elif is_ours(span):
            notes[span] = "was not recorded"
        seen.add(key)
    missing = [span for key, span in wanted.items() if key not in seen]
    if not notes and not missing:
        return
    lost = f"{len(missing)} missing, {len(notes)} other than recorded"
    nearest = f"{missing[0].name!r} ({missing[0].span_id}) is missing" if missing else next(iter(notes.values()))
    raise fail(spans.forest, f"the {len(wanted)} spans that were recorded", lost, nearest=nearest, notes=notes)


def _find_differences(span: Span, wanted: Span) -> Iterator[str]:
    for name in _COMPARED:
        found, recorded = getattr(span, name), getattr(wanted, name)
        if found != recorded:
            yield f"{name} is {found!r}, recorded {recorded!r}"
    for name in dict.fromkeys((*wanted.attributes, *span.attributes)):
        found, recorded = span.attributes.get(name), wanted.attributes.get(name)
        if found != recorded:
            yield f"{name} is {found!r}, recorded {recorded!r}"
