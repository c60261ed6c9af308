"""Takes an OTLP-JSON file into a store: spans to records, records to a journal.

The journal is written in a folder of its own and tried on tables of its own; only when nothing of it was lost and no
line rejected is it put into its place, so a store has all of what an import took, or nothing. Imports into a store wait
for each other, so that none takes what another is about to put there; what one left that was killed the next deletes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from telemetry.errors import RoundscopeError, UsageError
from telemetry.grouping import Recorded
from telemetry.journal import FOLDER, Journal, check_writable
from telemetry.logs import get_logger
from telemetry.otlp_json import read_otlp_json
from telemetry.reading import is_locked
from telemetry.span_import import rebuild, records_of
from telemetry.spans import spans_of
from telemetry.store import connect

WORK = "importing"
"""Folder of the store in which an import works; whatever is in it may be deleted by who holds the lock."""

LOCK = "import.lock"


@dataclass(frozen=True)
class Result:
    """Generations that were taken, those that the store had already, and how much was refused, by reason."""

    n_taken: int
    n_known: int
    refused: Counter[str]


def import_file(path: Path, store: Path) -> Result:
    """Write the generations of `path` into a journal of `store`, which is made if there is none.

    Raises UsageError if the file cannot be read, RoundscopeError if the journal cannot be written.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {path}: {error}; name a file that `roundscope export --otlp-json` wrote"
        ) from error
    malformed: Counter[str] = Counter()

    def refuse(reason: str) -> None:
        malformed[reason] += 1

    imported = rebuild(read_otlp_json(text, refuse))
    refused = malformed + imported.refused
    if not imported.generations:
        return Result(0, 0, refused)
    with _working(store) as folder:
        known = _find_known(store)
        new = [recorded for recorded in imported.generations if recorded.id not in known]
        n_known = len(imported.generations) - len(new)
        if new:
            new = _put_into(store, folder, new, refused)
    return Result(len(new), n_known, refused)


def find_leftover(store: Path) -> Path | None:
    """What an import left in `store` that was broken off; None: nothing, or an import that is going on has it."""
    folder = store / WORK
    try:
        fd = os.open(store / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        return folder if folder.is_dir() and is_locked(fd) is False else None
    finally:
        os.close(fd)


@contextmanager
def _working(store: Path) -> Iterator[Path]:
    """An empty folder on the store's disk, for what is not to be seen there yet. Nobody else imports meanwhile."""
    check_writable(store)
    folder = store / WORK
    try:
        store.mkdir(parents=True, exist_ok=True)
        with open(store / LOCK, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                get_logger().info("import.waiting", store=str(store))
                fcntl.flock(file, fcntl.LOCK_EX)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise RoundscopeError(
            f"cannot import into {store}: {error.strerror}; nothing was imported: free space, or choose another place "
            "with --store DIR"
        ) from error


def _put_into(store: Path, folder: Path, new: list[Recorded], refused: Counter[str]) -> list[Recorded]:
    """Give the store a journal with those of these generations that its tables take; `refused` counts the others."""
    for attempt in ("first", "second"):
        path, lines = _write(folder / attempt, new)
        reasons = _find_reasons(folder / attempt, lines)
        if not reasons:
            break
        for recorded in new:
            if recorded.id in reasons:
                refused[f"malformed: {reasons[recorded.id]}"] += len(list(spans_of(recorded)))
        new = [recorded for recorded in new if recorded.id not in reasons]
        if not new:
            return new
    place = store / FOLDER / path.name
    place.parent.mkdir(exist_ok=True)
    path.rename(place)
    return new


def _write(folder: Path, generations: list[Recorded]) -> tuple[Path, list[str]]:
    """A journal of these generations, and of each of its lines which one it is about (the first: none)."""
    lines = [""]
    with Journal(folder) as journal:
        for recorded in generations:
            for record in records_of(recorded):
                journal.write(record)
                lines.append(recorded.id)
    if journal.n_lost:
        raise RoundscopeError(
            f"{journal.n_lost} records could not be written; nothing was imported: free space, or choose another place "
            "with --store DIR"
        )
    return journal.path, lines


def _find_reasons(folder: Path, lines: list[str]) -> dict[str, str]:
    """Why tables take generations of the journal in `folder` not as they are, by id."""
    with connect(folder) as connected:
        rows = connected.con.execute("SELECT line, reason FROM rejected ORDER BY line DESC").fetchall()
    return {lines[line - 1]: reason for line, reason in rows}


def _find_known(store: Path) -> set[str]:
    with connect(store) as connected:
        sql = "SELECT generation_id FROM generations UNION ALL SELECT generation_id FROM ncm_generations"
        return {generation_id for (generation_id,) in connected.con.execute(sql).fetchall()}
