"""The structural check: is a grid a solution of a puzzle? It needs no solution to compare with.

A valid answer has every digit once in every row, column and box, and keeps every clue. For a puzzle with one solution
that is the solution; for an ambiguous one, any of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime.ncm.sudoku.grid import BLANK, CELLS, SIDE, UNITS
from telemetry.errors import UsageError

_CELLS_OF_UNITS = np.array(UNITS)
_EVERY_DIGIT = sum(1 << digit for digit in range(1, SIDE + 1))


def check_grids(grids: NDArray[np.integer], puzzles: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which of `grids` (n, 81) solve their `puzzles` (n, 81): digits 1 to 9, a puzzle's blanks 0.

    Raises UsageError if the shapes are not these.
    """
    if grids.ndim != 2 or grids.shape[1] != CELLS or grids.shape != puzzles.shape:
        raise UsageError(f"grids {grids.shape} and puzzles {puzzles.shape} must both have the shape (n, {CELLS})")
    digits = np.clip(grids.astype(np.int64), BLANK, SIDE)
    seen = np.bitwise_or.reduce(1 << digits[:, _CELLS_OF_UNITS], axis=2)
    in_range = (digits == grids).all(axis=1)
    keeps_clues = ((puzzles == BLANK) | (puzzles == grids)).all(axis=1)
    return np.asarray(in_range & (seen == _EVERY_DIGIT).all(axis=1) & keeps_clues)
