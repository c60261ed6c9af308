"""Sudoku grids as plain tuples: 81 cells in row-major order, digits 1 to 9, 0 where blank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Grid: TypeAlias = tuple[int, ...]

SIDE = 9
CELLS = SIDE * SIDE
BLANK = 0

ROW = tuple(cell // SIDE for cell in range(CELLS))
COLUMN = tuple(cell % SIDE for cell in range(CELLS))
BOX = tuple(cell // 27 * 3 + cell % SIDE // 3 for cell in range(CELLS))
UNITS: tuple[tuple[int, ...], ...] = tuple(
    tuple(cell for cell in range(CELLS) if unit_of[cell] == unit)
    for unit_of in (ROW, COLUMN, BOX)
    for unit in range(SIDE)
)
"""The cells of the nine rows, the nine columns and the nine boxes."""


def parse_grid(text: str) -> Grid:
    """The grid of 81 characters: digits, and `.` or `0` for a blank.

    Raises ValueError, saying what is wrong, for any other text.
    """
    if len(text) != CELLS:
        raise ValueError(f"has {len(text)} characters, a grid has {CELLS}")
    for column, character in enumerate(text, start=1):
        if character not in ".0123456789":
            raise ValueError(f"character {column} is {character!r}: write digits, and `.` or `0` for a blank")
    return tuple(BLANK if character == "." else int(character) for character in text)


def format_grid(grid: Iterable[int]) -> str:
    """The grid as 81 characters, blanks as `.`."""
    return "".join("." if digit == BLANK else str(digit) for digit in grid)


def draw_grid(grid: Grid) -> str:
    """The grid as eleven lines for reading, boxes apart."""
    lines = []
    for row in range(SIDE):
        text = format_grid(grid[row * SIDE : (row + 1) * SIDE])
        lines.append(" | ".join(" ".join(text[start : start + 3]) for start in (0, 3, 6)))
    rule = "------+-------+------"
    return "\n".join([*lines[:3], rule, *lines[3:6], rule, *lines[6:]])


def find_conflict(puzzle: Grid) -> tuple[int, int] | None:
    """Two cells of one unit that hold the same digit, or None."""
    for unit in UNITS:
        seen: dict[int, int] = {}
        for cell in unit:
            digit = puzzle[cell]
            if digit != BLANK and digit in seen:
                return seen[digit], cell
            seen[digit] = cell
    return None
