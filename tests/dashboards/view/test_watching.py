"""Whether anything is new is seen by a journal's growth, its replacement, its writer's end and what exports note."""

from __future__ import annotations

from pathlib import Path

from dashboards.view.watching import Watch
from telemetry.journal import FOLDER, SUFFIX, Journal
from telemetry.ledger import Ledger
from tests.telemetry import stores


def test_a_version_changes_when_its_journals_do(tmp_path: Path) -> None:
    watch = Watch(tmp_path)

    def see() -> tuple[str, str]:
        watch.look()
        return watch.version(), watch.version([journal.path.name])

    watch.look()
    empty = watch.version()
    with Journal(tmp_path) as journal, Journal(tmp_path) as other:
        seen = [see()]
        assert seen[0][0] != empty
        assert see() == seen[0]
        journal.write(stores.run())
        seen.append(see())
        assert see() == seen[1]
        other.write(stores.generation("g"))
        seen.append(see())
        assert (seen[2][0] != seen[1][0], seen[2][1] == seen[1][1]) == (True, True)
    seen.append(see())
    assert len({own for _, own in seen}) == 3
    assert len({whole for whole, _ in seen}) == 4
    assert see() == seen[3]
    (tmp_path / FOLDER / "nothing.txt").write_text("x")
    assert see() == seen[3]
    (tmp_path / FOLDER / f"new{SUFFIX}").write_text("x")
    assert (see()[0] != seen[3][0], see()[1] == seen[3][1]) == (True, True)


def test_what_an_export_notes_is_seen_too(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.look()
    before = watch.version([])
    with Ledger(tmp_path, "http://127.0.0.1:4318/v1/traces") as ledger:
        ledger.note_failed(1)
    watch.look()
    assert watch.version([]) != before


def test_a_store_without_journals_has_a_version(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "none")
    watch.look()
    assert watch.version() == watch.version([])
