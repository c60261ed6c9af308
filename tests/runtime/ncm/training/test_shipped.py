"""The trained checkpoint that comes with the package: what it says of itself, and that it solves puzzles."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from runtime.ncm.checkpoints import FOLDER, read_checkpoint
from runtime.ncm.config import load_config
from runtime.ncm.generation import generate
from runtime.ncm.model import NcmModel
from runtime.ncm.sudoku.checker import check_grids
from runtime.ncm.training.recipe import Recipe, load_recipe
from runtime.ncm.training.tasks import SudokuTask

NAME = "sudoku-demo"
PATH = FOLDER / f"{NAME}.safetensors"


@pytest.fixture(scope="module")
def shipped() -> tuple[NcmModel, dict[str, str]]:
    return read_checkpoint(PATH)


def test_it_is_small() -> None:
    assert PATH.stat().st_size < 4_000_000


def test_it_is_of_the_configuration_and_recipe_that_come_with_it(shipped: tuple[NcmModel, dict[str, str]]) -> None:
    model, header = shipped
    assert (model.config, model.trained) == (load_config(NAME), True)
    assert msgspec.json.decode(header["recipe"], type=Recipe) == load_recipe(NAME)
    assert header["command"] == f"roundscope ncm train --config {NAME}"


def test_its_figures_are_of_a_thousand_puzzles_with_the_baseline_beside(
    shipped: tuple[NcmModel, dict[str, str]],
) -> None:
    figures = json.loads(shipped[1]["held_out"])
    assert (figures["generation"]["n"], figures["direct"]["n"]) == (1000, 1000)
    assert figures["codec"][-1]["output_share"] == 1.0
    assert figures["generation"]["valid_share"] >= 0.9


def test_it_solves_puzzles_that_it_was_not_trained_on(shipped: tuple[NcmModel, dict[str, str]]) -> None:
    task = SudokuTask(Recipe(seed=1, n_grids=1))
    puzzles, _ = task.hold_out(40)
    found = np.array(generate(shipped[0], puzzles.tolist()).tokens)
    assert check_grids(found, puzzles).mean() >= 0.8
