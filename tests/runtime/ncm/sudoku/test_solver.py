"""The exact solver, beside a plain count of everything that can be filled in and beside `qqwing`."""

from __future__ import annotations

import random
import subprocess

import numpy as np
import pytest

from runtime.ncm.sudoku.checker import check_grids
from runtime.ncm.sudoku.grid import BLANK, CELLS, Grid, format_grid, parse_grid
from runtime.ncm.sudoku.maker import make_puzzle, make_solution
from runtime.ncm.sudoku.solver import is_unique, solve
from tests.conftest import require_tool

QQWING = "apt-get install qqwing"
# Published by its author as a puzzle with 17 clues that needs few guesses.
FEW_CLUES = "000000010400000000020000000000050407008000300001090000300400200050100000000806000"
NO_CLUES = "." * CELLS


def count_by_trying(puzzle: Grid) -> int:
    """Number of solutions, by trying every digit in the first blank cell and no cleverness."""
    if BLANK not in puzzle:
        return 1
    cell = puzzle.index(BLANK)
    row, column = divmod(cell, 9)
    seen = {
        puzzle[other]
        for other in range(CELLS)
        if other // 9 == row or other % 9 == column or (other // 27, other % 9 // 3) == (row // 3, column // 3)
    }
    return sum(
        count_by_trying((*puzzle[:cell], digit, *puzzle[cell + 1 :])) for digit in range(1, 10) if digit not in seen
    )


def blank_out(grid: Grid, n: int, rng: random.Random) -> Grid:
    gone = set(rng.sample(range(CELLS), n))
    return tuple(BLANK if cell in gone else digit for cell, digit in enumerate(grid))


@pytest.mark.parametrize("seed", range(6))
def test_it_finds_every_solution_there_is(seed: int) -> None:
    rng = random.Random(seed)
    puzzle = blank_out(make_solution(rng), 44, rng)
    found = solve(puzzle, limit=10_000)
    assert len(set(found)) == len(found) == count_by_trying(puzzle)
    assert all(clue in (BLANK, digit) for grid in found for clue, digit in zip(puzzle, grid, strict=True))


def test_a_puzzle_with_17_clues_has_one_solution() -> None:
    [solution] = solve(parse_grid(FEW_CLUES))
    assert format_grid(solution) == "693784512487512936125963874932651487568247391741398625319475268856129743274836159"
    assert is_unique(parse_grid(FEW_CLUES))


def test_the_limit_stops_the_search() -> None:
    assert [len(solve(parse_grid(NO_CLUES), limit=n)) for n in (0, 1, 3)] == [0, 1, 3]


@pytest.mark.parametrize(
    "line",
    ["11" + "." * 79, "1........1" + "." * 71, "1.........1" + "." * 70, "12345678." + "." * 8 + "9" + "." * 63],
    ids=["row", "column", "box", "no digit left"],
)
def test_contradictions_have_no_solution(line: str) -> None:
    assert solve(parse_grid(line)) == []
    assert not is_unique(parse_grid(line))


def ask_qqwing(puzzles: list[str], *options: str) -> list[str]:
    program = require_tool("qqwing", QQWING)
    done = subprocess.run(
        [program, "--solve", "--one-line", *options],
        input="\n".join(puzzles),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_made_puzzles_have_the_solution_that_qqwing_finds() -> None:
    made = [make_puzzle(givens, seed) for seed, givens in enumerate([26, 30, 34, 42, 50, 80])]
    puzzles = [format_grid(puzzle) for puzzle, _ in made]
    told = [line for line in ask_qqwing(puzzles) if line.isdigit()]
    assert told == [format_grid(solution) for _, solution in made]
    counted = ask_qqwing(puzzles, "--count-solutions", "--nosolution")
    assert len([line for line in counted if "unique" in line]) == len(puzzles)


def test_puzzles_of_qqwing_are_solved_as_qqwing_does() -> None:
    program = require_tool("qqwing", QQWING)
    done = subprocess.run([program, "--generate", "8", "--one-line"], capture_output=True, text=True, check=True)
    puzzles = done.stdout.split()
    assert len(puzzles) == 8
    told = [line for line in ask_qqwing(puzzles) if line.isdigit()]
    assert [[format_grid(found) for found in solve(parse_grid(puzzle))] for puzzle in puzzles] == [[it] for it in told]
    given, grids = (np.array([parse_grid(line) for line in lines]) for lines in (puzzles, told))
    assert check_grids(grids, given).tolist() == [True] * 8
    # Every row keeps its digits; columns do not, which no clue is needed to see.
    for row in range(9):
        for a, b in ((0, 1), (2, 3), (4, 8)):
            swapped = grids.copy()
            swapped[:, [9 * row + a, 9 * row + b]] = grids[:, [9 * row + b, 9 * row + a]]
            assert check_grids(swapped, given).tolist() == [False] * 8
            assert check_grids(swapped, np.zeros_like(given)).tolist() == [False] * 8
