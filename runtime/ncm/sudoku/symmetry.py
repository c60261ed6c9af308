"""Many puzzles from few: digs as arrays, cut at any number of givens, and moved by the symmetries of Sudoku.

Renaming digits, swapping rows within a band, bands, columns within a stack, stacks, and transposing turn a puzzle with
one solution into another with one solution. So a few thousand digs, proved unique by the solver, give a stream of
puzzles that does not repeat in practice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from runtime.ncm.sudoku.grid import BLANK, CELLS, SIDE
from runtime.ncm.sudoku.maker import Dig, dig_puzzle

Cells: TypeAlias = NDArray[np.int64]
_NEVER = CELLS


@dataclass(frozen=True, slots=True)
class Digs:
    """n digs: `solutions` (n, 81), and when each cell was emptied, `turns` (n, 81), 81 if never."""

    solutions: Cells
    turns: Cells

    def cut(self, which: Cells, givens: Cells) -> Cells:
        """The puzzles (m, 81) of digs `which` (m,) with `givens` (m,) clues each, or as few as the dig reached."""
        blank = self.turns[which] < CELLS - givens[:, None]
        return np.where(blank, BLANK, self.solutions[which])


def make_digs(n: int, givens: int, seed: int | str) -> Digs:
    """`n` digs down to `givens` clues or as far as they go; the same for the same seed."""
    rng = random.Random(seed)
    return stack_digs([dig_puzzle(rng, givens) for _ in range(n)])


def stack_digs(digs: list[Dig]) -> Digs:
    """Digs as arrays."""
    turns = np.full((len(digs), CELLS), _NEVER)
    for row, dig in enumerate(digs):
        turns[row, list(dig.emptied)] = np.arange(len(dig.emptied))
    return Digs(np.array([dig.solution for dig in digs]), turns)


def make_puzzles(digs: Digs, n: int, fewest: int, most: int, rng: np.random.Generator) -> tuple[Cells, Cells]:
    """`n` puzzles and their solutions, (n, 81) each: random digs, cut at `fewest` to `most` givens, moved at random."""
    which = rng.integers(len(digs.solutions), size=n)
    puzzles = digs.cut(which, rng.integers(fewest, most + 1, size=n))
    return move_grids(puzzles, digs.solutions[which], rng)


def move_grids(puzzles: Cells, solutions: Cells, rng: np.random.Generator) -> tuple[Cells, Cells]:
    """Each puzzle with its solution (n, 81) under a symmetry of its own."""
    n = len(puzzles)
    digits = np.zeros((n, SIDE + 1), dtype=np.int64)
    digits[:, 1:] = _shuffle(rng, n, SIDE) + 1
    rows, columns = _shuffle_lines(rng, n), _shuffle_lines(rng, n)
    cells = rows[:, :, None] * SIDE + columns[:, None, :]
    cells = np.where(rng.random((n, 1, 1)) < 0.5, cells, cells.transpose(0, 2, 1)).reshape(n, CELLS)

    def move(grids: Cells) -> Cells:
        return np.take_along_axis(digits, np.take_along_axis(grids, cells, axis=1), axis=1)

    return move(puzzles), move(solutions)


def _shuffle(rng: np.random.Generator, n: int, size: int) -> Cells:
    """`n` random permutations of `size`, (n, size)."""
    return rng.random((n, size)).argsort(axis=1)


def _shuffle_lines(rng: np.random.Generator, n: int) -> Cells:
    """`n` random orders of nine lines (n, 9) that keep bands of three together."""
    bands = _shuffle(rng, n, 3)
    within = _shuffle(rng, n * 3, 3).reshape(n, 3, 3)
    return (bands[:, :, None] * 3 + within).reshape(n, SIDE)
