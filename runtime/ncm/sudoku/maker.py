"""Makes puzzles with exactly one solution, from a seed.

A random solved grid is dug out cell by cell in random order; a cell stays if without it there would be a second
solution. So every puzzle on the way is unique, which is proved by the exact solver. What this yields as it goes is a
*dig*: the order in which cells were emptied. Its first 81 - g cells make a puzzle with g givens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from runtime.ncm.sudoku.grid import BLANK, BOX, CELLS, COLUMN, ROW, SIDE, UNITS, Grid
from runtime.ncm.sudoku.solver import search
from telemetry.errors import RoundscopeError, UsageError

FEWEST_GIVENS = 17
"""No puzzle with fewer has one solution (McGuire, Tugemann and Civario 2012, by exhaustive search)."""
FEWEST_FOUND = 26
"""Nearly every random grid can be dug down to so few."""
MOST_GIVENS = CELLS - 1
MAX_DIGS = 200


@dataclass(frozen=True, slots=True)
class Dig:
    """A solved grid and the order in which its cells can be emptied with the puzzle staying unique."""

    solution: Grid
    emptied: tuple[int, ...]

    def puzzle(self, givens: int) -> Grid:
        """The puzzle with `givens` clues; there must be so many cells to empty."""
        blanks = set(self.emptied[: CELLS - givens])
        return tuple(BLANK if cell in blanks else digit for cell, digit in enumerate(self.solution))


def make_puzzle(givens: int, seed: int) -> tuple[Grid, Grid]:
    """A puzzle with `givens` clues and its only solution; the same for the same seed.

    Raises UsageError for givens outside 17 to 80, and RoundscopeError if so few are not reached in `MAX_DIGS` grids:
    random digging ends between 21 and 28 clues, most often at 24 or 25.
    """
    if not FEWEST_GIVENS <= givens <= MOST_GIVENS:
        raise UsageError(f"a puzzle has {FEWEST_GIVENS} to {MOST_GIVENS} givens, not {givens}")
    rng = random.Random(seed)
    for _ in range(MAX_DIGS):
        dig = dig_puzzle(rng, givens)
        if len(dig.emptied) == CELLS - givens:
            return dig.puzzle(givens), dig.solution
    raise RoundscopeError(f"no puzzle with {givens} givens was found in {MAX_DIGS} grids: ask for 24 or more")


def dig_puzzle(rng: random.Random, givens: int) -> Dig:
    """Dig a random grid down to `givens` clues, or as far as it goes."""
    solution = make_solution(rng)
    puzzle = list(solution)
    emptied: list[int] = []
    for cell in rng.sample(range(CELLS), CELLS):
        if len(emptied) == CELLS - givens:
            break
        puzzle[cell] = BLANK
        if _has_other_solution(puzzle, cell, solution[cell]):
            puzzle[cell] = solution[cell]
        else:
            emptied.append(cell)
    return Dig(solution, tuple(emptied))


def make_solution(rng: random.Random) -> Grid:
    """A random solved grid: three boxes that share no unit are filled at random, the rest is searched. Not uniform."""
    cells = [BLANK] * CELLS
    for box in (0, 4, 8):
        for cell, digit in zip(UNITS[2 * SIDE + box], rng.sample(range(1, SIDE + 1), SIDE), strict=True):
            cells[cell] = digit
    return next(search(tuple(cells), rng.sample(range(SIDE), SIDE)))


def _has_other_solution(puzzle: list[int], cell: int, digit: int) -> bool:
    """Whether the puzzle, unique with `digit` in `cell`, has a solution with another digit there."""
    taken = {puzzle[other] for other in _PEERS[cell]}
    for other in range(1, SIDE + 1):
        if other != digit and other not in taken:
            puzzle[cell] = other
            found = next(search(tuple(puzzle)), None)
            puzzle[cell] = BLANK
            if found is not None:
                return True
    return False


_PEERS = tuple(
    tuple(
        other
        for other in range(CELLS)
        if other != cell and (ROW[other] == ROW[cell] or COLUMN[other] == COLUMN[cell] or BOX[other] == BOX[cell])
    )
    for cell in range(CELLS)
)
