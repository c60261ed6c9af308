"""Takes an OTLP-JSON file into a store: spans to records, records to a journal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from telemetry.errors import UsageError
from telemetry.journal import Journal
from telemetry.otlp_json import read_otlp_json
from telemetry.span_import import rebuild, records_of
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
    if new:
        with Journal(store) as journal:
            for recorded in new:
                for record in records_of(recorded):
                    journal.write(record)
    return Result(len(new), len(imported.generations) - len(new), malformed + imported.refused)


def _find_known(store: Path) -> set[str]:
    with connect(store) as connected:
        sql = "SELECT generation_id FROM generations UNION ALL SELECT generation_id FROM ncm_generations"
        return {generation_id for (generation_id,) in connected.con.execute(sql).fetchall()}
