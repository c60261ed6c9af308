"""Whole training runs on tiny configurations: what is in the checkpoint, and that resuming changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest

from runtime.ncm.checkpoints import load_model, read_checkpoint
from runtime.ncm.config import NcmConfig
from runtime.ncm.identity import list_weights
from runtime.ncm.training import loop, run, staged
from runtime.ncm.training.recipe import Recipe
from telemetry.errors import RoundscopeError, Unsupported, UsageError
from tests.runtime.ncm.tiny import GRID, TINY

SUDOKU = msgspec.structs.replace(GRID, prefix_vocab=10, vocab=10)
WORLD = msgspec.structs.replace(TINY, name="world", prefix_length=1, prefix_vocab=3)
RECIPE = Recipe(
    seed=3,
    batch=4,
    codec_steps=4,
    direct_steps=3,
    generator_batch=3,
    generator_steps=5,
    warm_up=2,
    n_grids=2,
    n_held_out=6,
    keep_all=0.5,
)
WORLD_RECIPE = msgspec.structs.replace(RECIPE, direct_steps=0)


class Stop(Exception):
    pass


def train(config: NcmConfig, recipe: Recipe, out: Path, **options: Any) -> dict[str, Any]:
    return run.train(config, recipe, out, "roundscope ncm train", **options)


def read_weights(path: Path) -> dict[str, Any]:
    return {name: weight.tolist() for name, weight in list_weights(load_model(path))}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "grid.safetensors"
    train(SUDOKU, RECIPE, out)
    return out


def interrupt(monkeypatch: pytest.MonkeyPatch, stage: str, step: int) -> None:
    """Let the run be interrupted by the keyboard before that step of that stage."""
    take_step = loop.Trainer._step

    def stop(self: loop.Trainer, progress: loop.Progress) -> None:
        if (self.stage.name, self.done) == (stage, step):
            raise KeyboardInterrupt
        take_step(self, progress)

    monkeypatch.setattr(loop.Trainer, "_step", stop)


def test_the_checkpoint_says_what_it_is_and_how_it_was_made(trained: Path) -> None:
    model, header = read_checkpoint(trained)
    assert (model.config, model.trained) == (SUDOKU, True)
    assert msgspec.json.decode(header["recipe"], type=Recipe) == RECIPE
    assert header["command"] == "roundscope ncm train"
    assert header["data"].endswith("not moved, 34 to 50 givens; every number of givens as often")
    curves = json.loads(header["curves"])
    assert {stage: [step for step, _ in points] for stage, points in curves.items()} == {
        "codec": [1, 2, 3, 4],
        "direct": [1, 2, 3],
        "generator": [1, 2, 3, 4, 5],
    }
    assert "blas" in json.loads(header["environment"])


def test_the_held_out_figures_are_those_of_each_part(trained: Path) -> None:
    figures = json.loads(read_checkpoint(trained)[1]["held_out"])
    assert [row["levels"] for row in figures["codec"]] == [1, 2, 3]
    assert [(row["level"], row["positions"]) for row in figures["codes"]] == [(0, 1), (1, 4), (2, 81)]
    assert figures["generation"] == {
        "n": 6,
        "valid_share": 0.0,
        "valid_share_verified_exit": 0.0,
        "mean_levels_verified_exit": 3.0,
    }
    assert (figures["direct"]["n"], figures["direct"]["valid_share"]) == (6, 0.0)
    assert figures["cost"]["parameters"] == sum(weight.size for _, weight in list_weights(load_model(trained)))
    assert set(figures["cost"]["seconds_by_batch"]) == {"1", "6"}
    assert set(figures["training_seconds"]) == {"codec", "direct", "generator"}


def test_the_same_seed_trains_the_same_weights_and_another_others(trained: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again.safetensors", tmp_path / "other.safetensors"
    train(SUDOKU, RECIPE, again)
    assert read_weights(again) == read_weights(trained)
    train(SUDOKU, msgspec.structs.replace(RECIPE, seed=4), other)
    assert read_weights(other) != read_weights(trained)


@pytest.mark.parametrize(("stage", "step"), [("codec", 2), ("direct", 0), ("direct", 2), ("generator", 3)])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, step: int
) -> None:
    out = tmp_path / "grid.safetensors"
    with monkeypatch.context() as patched:
        interrupt(patched, stage, step)
        with pytest.raises(KeyboardInterrupt):
            train(SUDOKU, RECIPE, out)
    assert [path.name for path in tmp_path.iterdir()] == ["grid.safetensors.state"]
    train(SUDOKU, RECIPE, out, resume=True)
    assert read_weights(out) == read_weights(trained)
    curves = [json.loads(read_checkpoint(path)[1]["curves"]) for path in (out, trained)]
    assert curves[0].keys() == curves[1].keys()
    assert [path.name for path in tmp_path.iterdir()] == ["grid.safetensors"]


def test_a_run_killed_between_two_saves_goes_on_from_the_last_one(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "grid.safetensors"
    monkeypatch.setattr(staged, "SAVE_EVERY", 2)
    with monkeypatch.context() as patched:
        take_step = loop.Trainer._step

        def die(self: loop.Trainer, progress: loop.Progress) -> None:
            if (self.stage.name, self.done) == ("generator", 3):
                raise Stop
            take_step(self, progress)

        patched.setattr(loop.Trainer, "_step", die)
        with pytest.raises(Stop):
            train(SUDOKU, RECIPE, out)
    assert mx.load(str(out) + ".state", format="safetensors", return_metadata=True)[1]["story"].count('"done": 2') == 1
    train(SUDOKU, RECIPE, out, resume=True)
    assert read_weights(out) == read_weights(trained)


def test_there_must_be_something_to_resume_and_it_must_be_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "world.safetensors"
    with pytest.raises(UsageError, match=r"world\.safetensors\.state does not exist\. Leave --resume out"):
        train(WORLD, WORLD_RECIPE, out, resume=True)
    with monkeypatch.context() as patched:
        interrupt(patched, "codec", 1)
        with pytest.raises(KeyboardInterrupt):
            train(WORLD, WORLD_RECIPE, out)
    with pytest.raises(UsageError, match="is of another configuration or recipe"):
        train(WORLD, msgspec.structs.replace(WORLD_RECIPE, seed=9), out, resume=True)
    Path(str(out) + ".state").write_bytes(b"torn")
    with pytest.raises(RoundscopeError, match="cannot be read"):
        train(WORLD, WORLD_RECIPE, out, resume=True)


def test_progressions_are_trained_without_a_direct_network(tmp_path: Path) -> None:
    out = tmp_path / "world.safetensors"
    figures = train(WORLD, WORLD_RECIPE, out)
    assert figures["direct"] is None
    assert set(figures["training_seconds"]) == {"codec", "generator"}
    assert load_model(out).config == WORLD


def test_a_shape_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="tiny: there is no training data of its shape"):
        train(TINY, RECIPE, tmp_path / "tiny.safetensors")
    with pytest.raises(Unsupported, match="direct_steps"):
        train(WORLD, RECIPE, tmp_path / "world.safetensors")
