"""An exact solver: every solution of a puzzle up to a limit, by depth-first search over bit masks.

Always the most constrained choice is tried first: a cell with one candidate, else a digit with one cell left in a unit,
else the cell with the fewest candidates. Nothing is guessed that is not taken back, so two solutions found are two,
and one found with a limit of two proves that there is no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from runtime.ncm.sudoku.grid import BLANK, BOX, CELLS, COLUMN, ROW, SIDE, UNITS, Grid, find_conflict

_ALL = (1 << SIDE) - 1
_BITS = tuple(tuple(1 << d for d in range(SIDE) if mask >> d & 1) for mask in range(_ALL + 1))
_COUNT = tuple(mask.bit_count() for mask in range(_ALL + 1))


def solve(puzzle: Grid, limit: int = 2) -> list[Grid]:
    """At most `limit` solutions of `puzzle`: none if it has none, one with a limit of two if it is unique."""
    if find_conflict(puzzle) is not None:
        return []
    return list(islice(search(puzzle), limit))


def is_unique(puzzle: Grid) -> bool:
    """Whether `puzzle` has exactly one solution."""
    return len(solve(puzzle)) == 1


def search(puzzle: Grid, order: Sequence[int] = range(SIDE)) -> Iterator[Grid]:
    """Every solution of a puzzle without conflicts; digits are tried in the order of `order` (0 to 8)."""
    rows, columns, boxes = [0] * SIDE, [0] * SIDE, [0] * SIDE
    cells = list(puzzle)
    for cell in range(CELLS):
        if cells[cell] != BLANK:
            bit = 1 << (cells[cell] - 1)
            rows[ROW[cell]] |= bit
            columns[COLUMN[cell]] |= bit
            boxes[BOX[cell]] |= bit
    rank = {1 << digit: position for position, digit in enumerate(order)}
    blanks = [cell for cell in range(CELLS) if cells[cell] == BLANK]
    yield from _descend(cells, blanks, rows, columns, boxes, rank)


def _descend(
    cells: list[int], blanks: list[int], rows: list[int], columns: list[int], boxes: list[int], rank: dict[int, int]
) -> Iterator[Grid]:
    if not blanks:
        yield tuple(cells)
        return
    cell, mask = _choose(blanks, rows, columns, boxes)
    rest = [blank for blank in blanks if blank != cell]
    row, column, box = ROW[cell], COLUMN[cell], BOX[cell]
    for bit in sorted(_BITS[mask], key=rank.__getitem__):
        cells[cell] = bit.bit_length()
        rows[row] |= bit
        columns[column] |= bit
        boxes[box] |= bit
        yield from _descend(cells, rest, rows, columns, boxes, rank)
        rows[row] ^= bit
        columns[column] ^= bit
        boxes[box] ^= bit
    cells[cell] = BLANK


def _choose(blanks: list[int], rows: list[int], columns: list[int], boxes: list[int]) -> tuple[int, int]:
    """The cell to fill next and the mask of digits to try there; an empty mask is a dead end."""
    best, fewest = -1, SIDE + 1
    masks = {}
    for cell in blanks:
        mask = _ALL & ~(rows[ROW[cell]] | columns[COLUMN[cell]] | boxes[BOX[cell]])
        if _COUNT[mask] < fewest:
            best, fewest = cell, _COUNT[mask]
            if fewest <= 1:
                return best, mask
        masks[cell] = mask
    return _find_hidden_single(masks) or (best, masks[best])


def _find_hidden_single(masks: dict[int, int]) -> tuple[int, int] | None:
    """A cell that alone in a unit can take some digit, with that digit's bit."""
    for unit in UNITS:
        once = twice = 0
        for cell in unit:
            mask = masks.get(cell, 0)
            twice |= once & mask
            once |= mask
        single = once & ~twice
        if single:
            bit = single & -single
            return next(cell for cell in unit if masks.get(cell, 0) & bit), bit
    return None
