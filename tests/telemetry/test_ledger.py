"""The cursor of exports: shared by several at once, whole after a killed writer, and begun afresh."""

from __future__ import annotations

from pathlib import Path

import pytest

from telemetry.errors import RoundscopeError
from telemetry.export_losses import ExportLosses
from telemetry.ledger import Ledger
from telemetry.metrics import Metrics

WHERE = "http://127.0.0.1:4318/v1/traces"


def _dropped(metrics: Metrics) -> dict[str, float]:
    numbers = metrics.state().values.numbers["telemetry_dropped"]
    return {"/".join(each.labels): each.value for each in numbers if each.labels[0] in ("otlp", "file")}


def test_two_exports_to_one_receiver_know_of_each_other(tmp_path: Path) -> None:
    with Ledger(tmp_path, WHERE) as one, Ledger(tmp_path, "http://user:word@127.0.0.1:4318/v1/traces?key=1") as two:
        one.note("g1", sent=3, refused=0)
        two.note("g2", sent=3, refused=0)
        one.note_failed(2)
        assert [(each.has("g1"), each.has("g2"), each.has("g3")) for each in (one, two)] == [(True, True, False)] * 2
        lines = one.path.read_bytes().splitlines()
    assert (len(lines), [path.name for path in (tmp_path / "exported").iterdir()]) == (4, [one.path.name])
    assert b"word" not in lines[0]


def test_one_that_must_be_alone_is(tmp_path: Path) -> None:
    with Ledger(tmp_path, "/f", alone=True) as ledger:
        ledger.note("g1", sent=1, refused=0)
        with pytest.raises(RoundscopeError, match="another export to /f is going on; wait until it has ended"):
            Ledger(tmp_path, "/f", alone=True)
    with Ledger(tmp_path, "/f", alone=True) as ledger:
        assert ledger.has("g1")


def test_a_line_that_breaks_off_spoils_no_other(tmp_path: Path) -> None:
    with Ledger(tmp_path, WHERE) as ledger:
        ledger.note("g1", sent=3, refused=0)
        with ledger.path.open("ab") as file:
            file.write(b'{"type":"exported","generation_id":"g')
        assert not ledger.has("g2")
        ledger.note("g2", sent=3, refused=0)
        assert (ledger.has("g1"), ledger.has("g2")) == (True, True)


def test_an_empty_destination_voids_what_was_noted_and_no_loss_counts_twice(tmp_path: Path) -> None:
    with Ledger(tmp_path, "/f") as ledger:
        ledger.note("g1", sent=3, refused=2)
    losses, metrics = ExportLosses(tmp_path), Metrics()
    losses.count(metrics)
    with Ledger(tmp_path, "/f", afresh=True) as ledger:
        assert not ledger.has("g1")
        ledger.note("g2", sent=3, refused=1)
    losses.count(metrics)
    assert _dropped(metrics) == {"file/refused": 3}


def test_a_cursor_that_was_deleted_and_begun_again_is_counted_from_its_beginning(tmp_path: Path) -> None:
    with Ledger(tmp_path, WHERE) as ledger:
        ledger.note_failed(5)
        ledger.note_failed(7, "refused")
    losses, metrics = ExportLosses(tmp_path), Metrics()
    losses.count(metrics)
    ledger.path.unlink()
    with Ledger(tmp_path, WHERE) as ledger:
        for n in range(20):  # longer than it was
            ledger.note_failed(n)
    ExportLosses(tmp_path, losses.state).count(metrics)
    assert _dropped(metrics) == {"otlp/failed": 5 + sum(range(20)), "otlp/refused": 7}


def test_a_cursor_that_cannot_be_read_is_named_once_and_the_others_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "exported" / "0.ndjson").mkdir(parents=True)
    with Ledger(tmp_path, WHERE) as ledger:
        losses, metrics = ExportLosses(tmp_path, from_now=True), Metrics()
        ledger.note_failed(5)
        losses.count(metrics)
        losses.count(metrics)
    assert _dropped(metrics) == {"otlp/failed": 5}
    assert capsys.readouterr().err.count("metrics.cursor_unreadable") == 1


def test_a_store_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "exported").write_text("")
    with pytest.raises(RoundscopeError, match=r"cannot write the cursor of exports .*; free space, or look at"):
        Ledger(tmp_path, WHERE)
