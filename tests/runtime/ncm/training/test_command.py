"""`roundscope ncm train`: the document on stdout, progress on stderr, and what is refused before anything is made."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from runtime.ncm.checkpoints import read_checkpoint
from tests.runtime.commands import call
from tests.runtime.ncm.training.test_run import WORLD


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "world.json"
    path.write_bytes(msgspec.json.encode(WORLD))
    return path


def test_it_trains_and_says_what_came_out(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/roundscope", "ncm", "train", "--resume", "--seed", "4"])
    out = tmp_path / "mine.safetensors"
    options = ("--seed", 4, "--batch", 4, "--codec-steps", 3, "--steps", 2, "--n-held-out", 5, "--out", out)
    code, stdout, stderr = call(capsys, "ncm", "train", "--config", config, *map(str, options))
    header = read_checkpoint(out)[1]
    assert code == 0
    assert json.loads(stdout) == json.loads(header["held_out"])
    assert json.loads(stdout)["generation"]["n"] == 5
    assert header["command"] == "roundscope ncm train --seed 4"
    recipe = json.loads(header["recipe"])
    chosen = ("seed", "batch", "generator_batch", "codec_steps", "generator_steps")
    assert [recipe[name] for name in chosen] == [4, 4, 4, 3, 2]
    assert "codec: step 3 of 3, loss " in stderr
    assert f"wrote {out}; measure it: roundscope ncm run --config {out}" in stderr


def test_the_checkpoint_is_named_after_the_configuration(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--batch", "2", "--codec-steps", "1", "--steps", "1", "--n-held-out", "2")
    assert call(capsys, "ncm", "train", "--config", "world.json", *options)[0] == 0
    assert (tmp_path / "world.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--config", "nothing"), 2, "no configuration nothing"),
        (("--out", "mine.npz"), 2, "a checkpoint's name ends in .safetensors"),
        (("--out", "nowhere/mine.safetensors"), 2, "its folder does not exist"),
        (("--resume", "--out", "none.safetensors"), 2, "none.safetensors.state does not exist. Leave --resume out"),
        (("--steps", "-1"), 2, "-1 is not in the range x>=0"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: tuple[str, ...],
    code: int,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended, stdout, stderr = call(capsys, "ncm", "train", *arguments)
    assert (ended, stdout) == (code, "")
    assert told in stderr
    assert list(tmp_path.iterdir()) == []
