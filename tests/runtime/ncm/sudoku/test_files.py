"""A user's puzzle file: every fault with its line, and what the solver says of every puzzle."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.ncm.sudoku import files
from runtime.ncm.sudoku.files import load_puzzles, parse_puzzles
from runtime.ncm.sudoku.grid import draw_grid, format_grid, parse_grid
from runtime.ncm.sudoku.maker import make_puzzle
from runtime.ncm.sudoku.solver import solve
from telemetry.errors import UsageError

PUZZLE, SOLUTION = make_puzzle(40, seed=0)
LINE = format_grid(PUZZLE)


def test_blanks_are_dots_or_zeros_and_comments_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(f"\ufeff# mine\r\n{LINE}\r\n\r\n  {LINE.replace('.', '0')}\n".encode())
    read = load_puzzles(path)
    assert [(puzzle.id, puzzle.grid, puzzle.kind, puzzle.solution) for puzzle in read] == [
        ("line-2", PUZZLE, "unique", SOLUTION),
        ("line-4", PUZZLE, "unique", SOLUTION),
    ]


def test_only_what_is_taken_is_solved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, solved = tmp_path / "mine.txt", []
    monkeypatch.setattr(files, "solve", lambda grid, limit: solved.append(grid) or solve(grid, limit=limit))
    path.write_text(f"{LINE}\n{LINE}\n{'.' * 81}\n")
    assert [(puzzle.id, puzzle.kind) for puzzle in load_puzzles(path, 2)] == [
        ("line-1", "unique"),
        ("line-2", "unique"),
    ]
    assert solved == [PUZZLE, PUZZLE]
    path.write_text(f"{LINE}\nabc\n")
    with pytest.raises(UsageError, match=r"mine\.txt:2: "):
        load_puzzles(path, 1)


def test_every_bad_line_is_named() -> None:
    text = f"{LINE[:80]}\n{LINE}\n{LINE[:40]}x{LINE[41:]}\n{LINE}1\n"
    with pytest.raises(UsageError) as told:
        parse_puzzles(text, "mine.txt")
    assert str(told.value).splitlines() == [
        "mine.txt:1: has 80 characters, a grid has 81",
        "mine.txt:3: character 41 is 'x': write digits, and `.` or `0` for a blank",
        "mine.txt:4: has 82 characters, a grid has 81",
    ]


def test_many_bad_lines_are_counted() -> None:
    with pytest.raises(UsageError, match=r"mine:10: has 1 char[^\n]*\n\.\.\. and 2 more$"):
        parse_puzzles("1\n" * 12, "mine")


@pytest.mark.parametrize(
    ("line", "kind", "reason"),
    [
        ("." * 81, "ambiguous", "it has more than one solution"),
        ("5...5" + "." * 76, "unsolvable", "clues contradict: 5 at row 1 column 1 and row 1 column 5"),
        ("12345678." + "." * 8 + "9" + "." * 63, "unsolvable", "it has no solution"),
    ],
)
def test_puzzles_without_one_solution_are_said_to_be_so(line: str, kind: str, reason: str) -> None:
    [puzzle] = parse_puzzles(line, "mine")
    assert (puzzle.kind, puzzle.reason, puzzle.solution) == (kind, reason, None)


def test_what_is_no_text_and_what_is_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    with pytest.raises(UsageError, match=r"cannot be read \(No such file"):
        load_puzzles(path)
    path.write_bytes(b"\xff\xfe1")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        load_puzzles(path)
    path.write_text("# nothing\n")
    with pytest.raises(UsageError, match="has no puzzles"):
        load_puzzles(path)


def test_a_grid_is_drawn_in_boxes() -> None:
    drawn = draw_grid(parse_grid("123456789" + "." * 72)).splitlines()
    assert drawn[:4] == [
        "1 2 3 | 4 5 6 | 7 8 9",
        ". . . | . . . | . . .",
        ". . . | . . . | . . .",
        "------+-------+------",
    ]
    assert len(drawn) == 11


def test_a_folder_is_no_file_of_puzzles(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder: name a file of puzzles"):
        load_puzzles(tmp_path)
