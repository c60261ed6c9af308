"""`roundscope calibrate`: the curve, what it says, and what it leaves in the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.cli.calibrate import SHOWN
from telemetry.journal import FOLDER
from tests.runtime.commands import STEP_NS, call, query, refuse_to_load, stand_in

WIDTHS = [1, 2, 3, 4, 5, 7, 9, 13, 17]


def test_the_curve_and_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A forward takes 2 ms however wide it is."""
    stand_in(monkeypatch)
    code, out, err = call(capsys, "calibrate", "--store", tmp_path)
    assert code == 0
    assert out.split()[: len(SHOWN)] == list(SHOWN)
    *_, said = out.splitlines()
    assert said == " ".join(
        f"After {context} positions, 17 positions in one forward take 2.00 ms, 1.0 steps: "
        "16 proposed tokens are verified for nothing."
        for context in (64, 256)
    )
    [(calibration_id,)] = query(tmp_path, "select distinct calibration_id from verify_costs where run_id is null")
    assert f"calibration {calibration_id}\n" in err
    rows = query(tmp_path, "select context, width, n, verify_ns from verify_costs order by all")
    assert rows == [(context, width, 5, STEP_NS) for context in (64, 256) for width in WIDTHS]


def test_json_is_one_document_and_a_context_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    assert call(capsys, "calibrate", "--store", tmp_path)[0] == 0
    code, out, _ = call(capsys, "calibrate", "--store", tmp_path, "--context", "9", "--json")
    document = json.loads(out)
    assert (code, set(document)) == (0, {"calibration_id", "verify_cost", "sentence"})
    assert {row["calibration_id"] for row in document["verify_cost"]} == {document["calibration_id"]}
    assert [(row["context"], row["width"], row["verify_seconds"]) for row in document["verify_cost"]] == [
        (9, width, 0.002) for width in WIDTHS
    ]


def test_a_target_that_cannot_be_measured_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, cache="untrimmable")
    code, out, err = call(capsys, "calibrate", "--store", tmp_path / "s")
    assert (code, out) == (4, "")
    assert "ScriptedLayer" in err
    stand_in(monkeypatch, max_positions=100)
    code, out, err = call(capsys, "calibrate", "--store", tmp_path / "s")
    assert (code, out) == (2, "")
    assert err.endswith("error: --context is 256 and the target has positions for 100; ask for a shorter one\n")
    assert not (tmp_path / "s").exists()


def test_a_store_that_cannot_be_written_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_to_load(monkeypatch)
    (tmp_path / FOLDER).write_text("a file")
    code, out, err = call(capsys, "calibrate", "--store", tmp_path)
    assert (code, out) == (1, "")
    assert "--store DIR" in err


def test_a_slow_target_is_measured_as_far_as_the_time_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nine widths of 2 ms take 18 ms a turn: after filling and warming up, four turns fit."""
    monkeypatch.setattr("runtime.cli.calibrate.LIMIT_NS", 85_000_000)
    stand_in(monkeypatch)
    code, _, err = call(capsys, "calibrate", "--store", tmp_path)
    assert (code, "note: the time was up; measured were contexts 64 (4 repeats)\n" in err) == (0, True)
    assert query(tmp_path, "select distinct context, n from verify_costs") == [(64, 4)]
    monkeypatch.setattr("runtime.cli.calibrate.LIMIT_NS", 1_000_000)
    code, _, err = call(capsys, "calibrate", "--store", tmp_path / "other")
    assert (code, "takes so long that nothing was measured" in err) == (1, True)
    assert not (tmp_path / "other" / FOLDER).exists()
