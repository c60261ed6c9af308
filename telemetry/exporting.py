"""Exports generations of a store, as spans or as Parquet files, and keeps count.

Every destination has a `Ledger`: a generation that it has is not exported again, one that could not be delivered is as
soon as somebody tries again. Generations whose caller's trace is not sampled are left out of what is sent; rows keep
them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import duckdb

from telemetry.archive import NO_RUN
from telemetry.errors import RoundscopeError
from telemetry.grouping import Recorded
from telemetry.ledger import Ledger
from telemetry.otlp import Sent, write_otlp_json
from telemetry.schema import quote
from telemetry.span_data import SpanData
from telemetry.spans import spans_of

PARQUET_TABLES = ("runs", "ranks", "generations", "rounds", "ncm_generations", "levels", "spans")


class Taker(Protocol):
    """Takes the spans of one generation and says what became of them."""

    def send(self, spans: list[SpanData]) -> Sent:
        """Deliver them."""


@dataclass
class Counts:
    """What an export did. Spans, but for `already` and `unsampled`: generations.

    for_good: of the refused, those that the receiver refused of what it took otherwise (partial success); by OTLP they
    are not sent to it again.
    """

    sent: int = 0
    refused: int = 0
    for_good: int = 0
    failed: int = 0
    already: int = 0
    unsampled: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, sent: Sent) -> None:
        """Count what became of a generation's spans."""
        self.sent += sent.sent
        self.refused += sent.refused
        self.for_good += 0 if sent.again else sent.refused
        self.failed += sent.failed
        if sent.reason is not None:
            self.reasons[sent.reason] += sent.refused + sent.failed


def export(generations: Iterable[Recorded], taker: Taker, ledger: Ledger) -> Counts:
    """Give every generation that the ledger does not have to `taker`.

    When one cannot be delivered, the others are not tried, but counted as failed.
    """
    counts = Counts()
    for recorded in generations:
        if ledger.has(recorded.id):
            counts.already += 1
            continue
        spans = list(spans_of(recorded))
        if not spans[0].sampled:
            counts.unsampled += 1
        elif counts.failed:
            counts.failed += len(spans)
        else:
            counts.add(deliver(recorded.id, spans, taker, ledger))
    return counts


def deliver(generation_id: str, spans: list[SpanData], taker: Taker, ledger: Ledger) -> Sent:
    """Give one generation's spans to `taker`, and note them unless they should be tried again."""
    sent = taker.send(spans)
    if not sent.again:
        ledger.note(generation_id, sent=sent.sent, refused=sent.refused)
    return sent


class JsonFile:
    """A file of OTLP-JSON, a generation a line. It is appended to."""

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise RoundscopeError(f"cannot write {path}: {error.strerror}; name another file") from error
        self._path = path

    def send(self, spans: list[SpanData]) -> Sent:
        """Append them."""
        line = write_otlp_json(spans).encode() + b"\n"
        before = os.fstat(self._fd).st_size
        try:
            if os.write(self._fd, line) == len(line):
                return Sent(sent=len(spans))
            reason = "only part of a line was written: the disk is probably full"
        except OSError as error:
            reason = error.strerror or str(error)
        os.ftruncate(self._fd, before)
        return Sent(failed=len(spans), reason=f"cannot write {self._path}: {reason}", again=True)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def export_parquet(
    con: duckdb.DuckDBPyConnection, folder: Path, generations: Iterable[Recorded], ledger: Ledger
) -> Counts:
    """Write the tables and the view `spans` to DIR/run=ID/TABLE.parquet, whole, for every run that has something new.

    `con` needs the view. Raises RoundscopeError if a file cannot be written.
    """
    counts = Counts()
    new: dict[str | None, list[Recorded]] = {}
    for recorded in generations:
        if ledger.has(recorded.id):
            counts.already += 1
        else:
            new.setdefault(recorded.start.run_id, []).append(recorded)
    for run_id, some in new.items():
        for table in PARQUET_TABLES:
            _copy(con, table, run_id, folder / f"run={run_id or NO_RUN}" / f"{table}.parquet")
        for recorded in some:
            n = len(list(spans_of(recorded)))
            ledger.note(recorded.id, sent=n, refused=0)
            counts.sent += n
    return counts


def _copy(con: duckdb.DuckDBPyConnection, table: str, run_id: str | None, path: Path) -> None:
    of_run = f"run_id IS NOT DISTINCT FROM {'NULL' if run_id is None else quote(run_id)}"
    if table in ("rounds", "levels"):
        whole = "generations" if table == "rounds" else "ncm_generations"
        of_run = f"generation_id IN (SELECT generation_id FROM {whole} WHERE {of_run})"
    unfinished = path.with_suffix(".unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        con.execute(f"COPY (FROM {table} WHERE {of_run}) TO {quote(str(unfinished))} (FORMAT parquet)")
        unfinished.replace(path)
    except (OSError, duckdb.IOException) as error:
        reason = str(error).splitlines()[0]
        raise RoundscopeError(f"cannot write {path}: {reason}; free space, or name another folder") from error
