"""Reads a user's puzzles: 81 characters a line, `.` or `0` for a blank; empty lines and those with `#` in front are
passed over. All faults are collected, so that a file is mended in one go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from runtime.ncm.sudoku.grid import SIDE, Grid, find_conflict, parse_grid
from runtime.ncm.sudoku.solver import solve
from telemetry.errors import UsageError

MAX_FAULTS_SHOWN = 10
Kind: TypeAlias = Literal["unique", "ambiguous", "unsolvable"]


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A puzzle of a file: its id (`line-N`) and what the exact solver says of it.

    solution: the only one, if it is unique. reason: why it is called what it is called, for reading; empty if unique.
    """

    id: str
    grid: Grid
    kind: Kind
    solution: Grid | None
    reason: str


def load_puzzles(path: str | Path, n: int | None = None) -> list[Puzzle]:
    """The first `n` puzzles of a file (None: all), in its order; unsolvable and ambiguous ones are there and marked.

    Raises UsageError with file, line, fault and cure for every line that is no puzzle (the first ten), for a file that
    cannot be read, and for one without puzzles.
    """
    if Path(path).is_dir():
        raise UsageError(f"{path} is a folder: name a file of puzzles")
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check the path") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: save it as UTF-8") from error
    return parse_puzzles(text, str(path), n)


def parse_puzzles(text: str, where: str, n: int | None = None) -> list[Puzzle]:
    """The puzzles in `text`; `where` is what faults name as the file. Raises as `load_puzzles` does.

    Every line is read; only the `n` puzzles that are taken are solved, which can take long for one with few clues.
    """
    grids: dict[int, Grid] = {}
    faults = []
    for number, line in _list_lines(text):
        try:
            grids[number] = parse_grid(line)
        except ValueError as fault:
            faults.append(f"{where}:{number}: {fault}")
    if faults:
        hidden = len(faults) - MAX_FAULTS_SHOWN
        more = [f"... and {hidden} more"] if hidden > 0 else []
        raise UsageError("\n".join([*faults[:MAX_FAULTS_SHOWN], *more]))
    if not grids:
        raise UsageError(f"{where} has no puzzles: write at least one line of 81 characters")
    return [judge_puzzle(f"line-{number}", grid) for number, grid in islice(grids.items(), n)]


def judge_puzzle(id_: str, grid: Grid) -> Puzzle:
    """`grid` with what the exact solver says of it."""
    conflict = find_conflict(grid)
    if conflict is not None:
        places = " and ".join(f"row {cell // SIDE + 1} column {cell % SIDE + 1}" for cell in conflict)
        return Puzzle(id_, grid, "unsolvable", None, f"clues contradict: {grid[conflict[0]]} at {places}")
    solutions = solve(grid, limit=2)
    if not solutions:
        return Puzzle(id_, grid, "unsolvable", None, "it has no solution")
    if len(solutions) > 1:
        return Puzzle(id_, grid, "ambiguous", None, "it has more than one solution")
    return Puzzle(id_, grid, "unique", solutions[0], "")


def _list_lines(text: str) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line that is neither blank nor a comment."""
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped
