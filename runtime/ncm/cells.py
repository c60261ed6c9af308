"""How the cells of a 9 x 9 grid lie along a sequence, and which of them share a row, a column or a box.

Cells are numbered 0 to 80 row by row, as puzzles are written.
"""

from __future__ import annotations

from runtime.ncm.config import CELLS, CellOrder

SIDE, BOX = 9, 3


def arrange_cells(order: CellOrder, length: int) -> list[int]:
    """The cell at each position of a sequence of `length`; in "rows", whatever it is, each is where it was."""
    if order == "rows":
        return list(range(length))
    return sorted(range(CELLS), key=lambda cell: (_number_units(cell)[1 if order == "columns" else 2], cell))


def list_units(order: CellOrder) -> list[list[int]]:
    """Positions sorted so that each nine in a row form a unit: by rows, by columns, by boxes."""
    cells = arrange_cells(order, CELLS)
    return [
        sorted(range(CELLS), key=lambda position: (_number_units(cells[position])[kind], position)) for kind in range(3)
    ]


def invert(permutation: list[int]) -> list[int]:
    """The permutation that undoes `permutation`."""
    return sorted(range(len(permutation)), key=permutation.__getitem__)


def _number_units(cell: int) -> tuple[int, int, int]:
    """Row, column and box of a cell."""
    row, column = divmod(cell, SIDE)
    return row, column, row // BOX * BOX + column // BOX
