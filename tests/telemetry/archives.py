"""A store to be archived, and looks at what it holds."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from telemetry import archive
from telemetry.journal import FOLDER
from telemetry.records import LossRecord
from telemetry.store import DATABASE, connect
from tests.telemetry.stores import comparison, dump, generation, generation_end, header, rounds, whole_run, write_lines

DAY = date(2023, 11, 16)
NS_PER_DAY = 86_400_000_000_000
STARTED = 1_700_000_000_000_000_000  # 2023-11-14 22:13:20 UTC
Tables = dict[str, list[tuple[Any, ...]]]


def look(store: Path) -> Tables:
    """All tables of a store, whether they are archived or not; which batch a journal is in is left out."""
    with connect(store) as connected:
        assert connected.source == "database"
        tables = dump(connected.con)
        tables["journals"] = connected.con.execute(
            "SELECT * EXCLUDE (archived_in) FROM journals ORDER BY ALL"
        ).fetchall()
    return tables


def rebuild(store: Path) -> Tables:
    """The same from archive and journals alone."""
    (store / DATABASE).unlink(missing_ok=True)
    return look(store)


def journals(store: Path) -> list[str]:
    """The names of its journals."""
    return sorted(path.stem for path in (store / FOLDER).iterdir())


def partitions(store: Path) -> list[str]:
    """The folders that have files."""
    folder = store / archive.FOLDER
    return sorted({path.parent.relative_to(folder).as_posix() for path in folder.glob("**/*.parquet")})


def fill_store(folder: Path) -> Path:
    """A run, generations outside a run, and a journal with all kinds of damage."""
    write_lines(folder, whole_run())
    outside = [
        each
        for n in (0, 1)
        for each in (
            generation(f"o{n}", run_id=None, started_wall_ns=STARTED + n * NS_PER_DAY),
            *rounds(f"o{n}", 2, tokens=[1, 2], proposal=[]),
            generation_end(f"o{n}", n_rounds=2, text='caf\u00e9 "\u4f60\n\x00\\'),
        )
    ]
    write_lines(folder, [header(created_wall_ns=STARTED), *outside], "b")
    damage = [LossRecord(n_records=3, reason="No space left on device"), b'{"type":', b"rubbish", comparison("nobody")]
    write_lines(folder, [header(created_wall_ns=STARTED), generation("g3", run_id="run-2"), *damage], "c")
    return folder
