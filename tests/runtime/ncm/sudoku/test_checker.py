"""The structural check, beside one that looks at every unit with sets."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.ncm.sudoku.checker import check_grids
from runtime.ncm.sudoku.grid import BLANK, CELLS
from runtime.ncm.sudoku.maker import make_puzzle, make_solution
from telemetry.errors import UsageError

SOLUTION = make_solution(random.Random(0))


def is_valid(grid: list[int], puzzle: list[int]) -> bool:
    rows = [grid[9 * i : 9 * i + 9] for i in range(9)]
    columns = [grid[i::9] for i in range(9)]
    boxes = [[rows[r + i][c + j] for i in range(3) for j in range(3)] for r in (0, 3, 6) for c in (0, 3, 6)]
    complete = all(set(unit) == set(range(1, 10)) for unit in rows + columns + boxes)
    return complete and all(clue in (0, digit) for clue, digit in zip(puzzle, grid, strict=True))


@given(
    st.dictionaries(st.integers(0, 80), st.integers(-1, 10), max_size=3), st.permutations(range(1, 10)), st.booleans()
)
def test_it_is_right_about_grids_with_a_few_changes(changes: dict[int, int], names: list[int], swapped: bool) -> None:
    grid = [names[digit - 1] for digit in SOLUTION]
    puzzle = [digit if cell % 3 else BLANK for cell, digit in enumerate(grid)]
    if swapped:
        grid[0], grid[1] = grid[1], grid[0]
    for cell, digit in changes.items():
        grid[cell] = digit
    assert check_grids(np.array([grid]), np.array([puzzle])).tolist() == [is_valid(grid, puzzle)]


def test_a_valid_grid_that_drops_a_clue_is_no_answer() -> None:
    puzzle, solution = make_puzzle(34, seed=0)
    other = [digit % 9 + 1 for digit in solution]
    grids, puzzles = np.array([solution, other, other]), np.array([puzzle, puzzle, [BLANK] * CELLS])
    assert check_grids(grids, puzzles).tolist() == [True, False, True]


def test_any_solution_of_an_ambiguous_puzzle_is_one() -> None:
    other = [9 if digit == 8 else 8 if digit == 9 else digit for digit in SOLUTION]
    puzzle = [digit if digit < 8 else BLANK for digit in SOLUTION]
    assert check_grids(np.array([SOLUTION, other]), np.array([puzzle, puzzle])).tolist() == [True, True]


def test_blanks_are_no_digits() -> None:
    grid = np.array([[BLANK, *SOLUTION[1:]]])
    assert check_grids(grid, np.zeros_like(grid)).tolist() == [False]


@pytest.mark.parametrize(("grids", "puzzles"), [((1, 80), (1, 80)), ((2, 81), (1, 81)), ((81,), (81,))])
def test_other_shapes_are_refused(grids: tuple[int, ...], puzzles: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="must both have the shape"):
        check_grids(np.zeros(grids, dtype=int), np.zeros(puzzles, dtype=int))
