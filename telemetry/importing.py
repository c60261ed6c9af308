"""Takes an OTLP-JSON file into a store: spans to records, records to a journal.

The journal is written in a folder of its own and tried on tables of its own; only when nothing of it was lost and no
line rejected is it put into its place, so a store has all of what an import took, or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from telemetry.errors import RoundscopeError, UsageError
from telemetry.grouping import Recorded
from telemetry.journal import FOLDER, Journal, check_writable
from telemetry.otlp_json import read_otlp_json
from telemetry.span_import import rebuild, records_of
from telemetry.spans import spans_of
from telemetry.store import connect


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
        raise UsageError(f"cannot read {path}: {error}") from error
    malformed: Counter[str] = Counter()

    def refuse(reason: str) -> None:
        malformed[reason] += 1

    imported = rebuild(read_otlp_json(text, refuse))
    known = _find_known(store) if store.is_dir() else set()
    new = [recorded for recorded in imported.generations if recorded.id not in known]
    n_known = len(imported.generations) - len(new)
    refused = malformed + imported.refused
    if new:
        with _making_folder(store) as folder:
            new = _put_into(store, folder, new, refused)
    return Result(len(new), n_known, refused)


@contextmanager
def _making_folder(store: Path) -> Iterator[Path]:
    """A folder on the store's disk for what is not to be seen there yet."""
    check_writable(store)
    try:
        store.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="importing-", dir=store) as folder:
            yield Path(folder)
    except OSError as error:
        raise RoundscopeError(f"cannot import into {store}: {error.strerror}; nothing was imported") from error


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
