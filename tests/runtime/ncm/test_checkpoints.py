"""Checkpoints: what is written comes back, with its configuration; anything else is refused by name."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from runtime.ncm.checkpoints import load_model, read_checkpoint, save_model
from runtime.ncm.generation import generate
from telemetry.errors import RoundscopeError, UsageError
from tests.conftest import run_python
from tests.runtime.ncm.tiny import GRID, draw_conditioning, tiny_model


def test_a_model_comes_back_as_it_was(tmp_path: Path) -> None:
    model, path = tiny_model(3, GRID), tmp_path / "grid.safetensors"
    save_model(model, path, {"command": "roundscope ncm train"})
    loaded, header = read_checkpoint(path)
    assert (loaded.config, header["command"], loaded.trained, loaded.training) == (
        GRID,
        "roundscope ncm train",
        True,
        False,
    )
    assert loaded.state().digest == model.state().digest
    conditioning = draw_conditioning(GRID, 1)
    assert generate(load_model(path), conditioning).codes == generate(model, conditioning).codes


def test_a_configuration_without_checkpoint_gets_random_weights() -> None:
    one, other = load_model("tinyworld"), load_model("tinyworld", seed=1)
    assert (one.trained, one.config.name) == (False, "tinyworld")
    assert one.state().digest != other.state().digest
    assert one.state().digest == load_model("tinyworld", seed=0).state().digest


@pytest.mark.parametrize("first", ["generate", "init_model", "load_model"])
def test_the_blas_is_chosen_before_mlx_whatever_is_imported_first(first: str) -> None:
    code = "from runtime.backend import prepare; print(prepare().source)"
    child = run_python(f"from runtime.ncm import {first}, generate, load_model; load_model('tinyworld'); {code}")
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout == run_python(code).stdout


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model sudoku: take one of sudoku-demo"):
        load_model("sudoku")
    with pytest.raises(UsageError, match="there is no checkpoint"):
        load_model(tmp_path / "none.safetensors")
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\xff" * 64)
    with pytest.raises(RoundscopeError, match="cannot be read as safetensors"):
        load_model(damaged)
    foreign = tmp_path / "foreign.safetensors"
    mx.save_safetensors(str(foreign), {"weight": mx.zeros((2,))})
    with pytest.raises(RoundscopeError, match="holds no configuration"):
        load_model(foreign)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "grid.safetensors", tmp_path / "other.safetensors"
    save_model(tiny_model(0, GRID), path, {})
    weights, header = mx.load(str(path), return_metadata=True)  # type: ignore[misc, str-unpack]
    del weights["generator.head.weight"]  # type: ignore[attr-defined]
    mx.save_safetensors(str(other), weights, header)  # type: ignore[arg-type]
    with pytest.raises(RoundscopeError, match="do not fit its configuration"):
        load_model(other)
