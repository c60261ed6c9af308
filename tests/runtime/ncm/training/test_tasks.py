"""The data: what is drawn, what is held out, and which outputs count as valid."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from runtime.ncm.config import load_config
from runtime.ncm.sudoku.checker import check_grids
from runtime.ncm.training.recipe import Recipe
from runtime.ncm.training.tasks import ProgressionTask, SudokuTask, choose_task
from telemetry.errors import Unsupported
from tests.runtime.ncm.tiny import TINY

RECIPE = Recipe(n_grids=3, trained_givens=(36, 38), held_out_givens=(40, 44))


def test_puzzles_have_the_recipes_givens_and_their_solutions() -> None:
    task = SudokuTask(RECIPE)
    drawn, held_out = task.draw(20, np.random.default_rng(0)), task.hold_out(40)
    for (puzzles, solutions), givens in ((drawn, {36, 37, 38}), (held_out, {40, 41, 42, 43, 44})):
        assert check_grids(solutions, puzzles).all()
        assert set((puzzles > 0).sum(axis=1).tolist()) == givens
        assert task.check(solutions, puzzles).all()
        assert not task.check(puzzles, puzzles).any()


def test_held_out_grids_are_the_same_each_time_and_not_those_trained_on() -> None:
    task = SudokuTask(RECIPE)
    first, again = task.hold_out(5), SudokuTask(RECIPE).hold_out(5)
    assert [part.tolist() for part in first] == [part.tolist() for part in again]
    other = SudokuTask(msgspec.structs.replace(RECIPE, seed=1)).hold_out(5)
    assert other[1].tolist() != first[1].tolist()
    trained_on = {tuple(grid) for grid in task._digs.solutions.tolist()}
    assert trained_on.isdisjoint(tuple(grid) for grid in first[1].tolist())


def test_progressions_go_on_in_the_step_that_is_asked_for() -> None:
    task = ProgressionTask(3, 6, 10)
    conditioning, outputs = task.draw(20, np.random.default_rng(0))
    assert (conditioning.shape, outputs.shape, set(conditioning[:, 0].tolist())) == ((20, 1), (20, 6), {0, 1, 2})
    assert task.check(outputs, conditioning).all()
    assert not task.check(outputs, (conditioning + 1) % 3).any()
    broken = outputs.copy()
    broken[:, -1] = (broken[:, -1] + 1) % 10
    assert not task.check(broken, conditioning).any()
    assert task.check(np.array([[8, 0, 2, 4, 6, 8]]), np.array([[1]])).tolist() == [True]


@pytest.mark.parametrize(
    ("name", "kind"), [("sudoku-demo", SudokuTask), ("sudoku-e20", SudokuTask), ("tinyworld", ProgressionTask)]
)
def test_every_configuration_that_comes_with_the_package_has_a_task(name: str, kind: type) -> None:
    assert isinstance(choose_task(load_config(name), RECIPE), kind)


def test_other_shapes_have_none() -> None:
    with pytest.raises(Unsupported, match=r"tiny: there is no training data of its shape\. Train Sudoku"):
        choose_task(TINY, RECIPE)
