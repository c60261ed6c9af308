"""Made puzzles: as many givens as asked for, one solution, the same for the same seed; and their symmetries."""

from __future__ import annotations

import random

import numpy as np
import pytest

from runtime.ncm.sudoku import maker
from runtime.ncm.sudoku.checker import check_grids
from runtime.ncm.sudoku.grid import BLANK, CELLS
from runtime.ncm.sudoku.maker import dig_puzzle, make_puzzle, make_solution
from runtime.ncm.sudoku.solver import is_unique, solve
from runtime.ncm.sudoku.symmetry import Digs, make_digs, make_puzzles, move_grids
from telemetry.errors import RoundscopeError, UsageError


@pytest.mark.parametrize("givens", [24, 34, 50, 80])
def test_a_made_puzzle_has_its_givens_and_one_solution(givens: int) -> None:
    puzzle, solution = make_puzzle(givens, seed=1)
    assert sum(digit != BLANK for digit in puzzle) == givens
    assert solve(puzzle) == [solution]


def test_the_same_seed_makes_the_same_puzzle_and_another_seed_another() -> None:
    assert make_puzzle(40, seed=2) == make_puzzle(40, seed=2)
    assert len({make_puzzle(40, seed)[1] for seed in range(5)}) == 5


@pytest.mark.parametrize("givens", [16, 81])
def test_other_numbers_of_givens_are_refused(givens: int) -> None:
    with pytest.raises(UsageError, match=f"17 to 80 givens, not {givens}"):
        make_puzzle(givens, seed=0)


def test_it_says_so_when_so_few_givens_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maker, "MAX_DIGS", 1)
    with pytest.raises(RoundscopeError, match="17 givens was found in 1 grids: ask for 24 or more"):
        make_puzzle(17, seed=0)


def test_every_puzzle_on_the_way_of_a_dig_is_unique() -> None:
    dig = dig_puzzle(random.Random(3), 30)
    assert len(dig.emptied) == CELLS - 30
    assert all(is_unique(dig.puzzle(givens)) for givens in range(30, CELLS + 1))


def test_a_dig_to_the_end_leaves_no_clue_that_can_go() -> None:
    dig = dig_puzzle(random.Random(4), 17)
    puzzle = dig.puzzle(CELLS - len(dig.emptied))
    without = [(*puzzle[:cell], BLANK, *puzzle[cell + 1 :]) for cell in range(CELLS) if puzzle[cell] != BLANK]
    assert len(without) > 20
    assert not any(is_unique(fewer) for fewer in without)


def test_solved_grids_are_valid_and_differ() -> None:
    rng = random.Random(5)
    grids = np.array([make_solution(rng) for _ in range(20)])
    assert check_grids(grids, np.zeros_like(grids)).all()
    assert len(np.unique(grids, axis=0)) == 20


@pytest.fixture(scope="module")
def digs() -> Digs:
    return make_digs(4, 34, seed="test")


def test_digs_cut_as_arrays_are_those_cut_one_by_one(digs: Digs) -> None:
    rng = random.Random("test")
    one_by_one = [dig_puzzle(rng, 34) for _ in range(4)]
    givens = np.array([34, 40, 50, 80])
    expected = [dig.puzzle(n) for dig, n in zip(one_by_one, givens.tolist(), strict=True)]
    assert digs.cut(np.arange(4), givens).tolist() == [list(puzzle) for puzzle in expected]


def test_moved_puzzles_are_unique_and_their_solutions_are_moved_alike(digs: Digs) -> None:
    puzzles, solutions = make_puzzles(digs, 12, 34, 50, np.random.default_rng(0))
    givens = (puzzles != BLANK).sum(axis=1)
    assert givens.min() >= 34
    assert givens.max() <= 50
    assert check_grids(solutions, puzzles).all()
    assert all(is_unique(tuple(puzzle)) for puzzle in puzzles.tolist())
    assert len(np.unique(solutions, axis=0)) == 12


def test_symmetries_take_a_cell_everywhere(digs: Digs) -> None:
    """What stands in the first cell comes to lie in every cell, under every name, if it is moved often enough."""
    puzzles = np.zeros((3000, CELLS), dtype=np.int64)
    puzzles[:, 0] = 1
    moved, _ = move_grids(puzzles, puzzles, np.random.default_rng(0))
    assert set(moved.argmax(axis=1).tolist()) == set(range(CELLS))
    assert set(moved.max(axis=1).tolist()) == set(range(1, 10))
