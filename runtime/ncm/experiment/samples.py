"""What the generator is conditioned on in a run: Sudoku puzzles, made or from a file, or seeded random tokens.

A checker exists where validity can be told without knowing the answer: for Sudoku. Samples are never recorded, only
their number and a digest over them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from runtime.ncm.config import CELLS, NcmConfig
from telemetry.errors import Unsupported, UsageError

Tokens: TypeAlias = Sequence[Sequence[int]]
Judge: TypeAlias = Callable[[Tokens, Tokens], list[bool]]
"""Which outputs (b, N) are valid for their conditioning (b, P)."""

DIGITS = 10
FEWEST_GIVENS, MOST_GIVENS = 34, 50
_TREATED = {"unsolvable": "left out", "ambiguous": "any solution of it counts"}


@dataclass(frozen=True)
class Samples:
    """Conditioning, P tokens a sample; how outputs are checked, if they can be; and what a user should know of them."""

    name: str
    conditioning: tuple[tuple[int, ...], ...]
    judge: Judge | None
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """sha256 over the conditioning of all samples."""
        return sha256(repr(self.conditioning).encode()).hexdigest()

    def make_check(self, conditioning: Tokens) -> Callable[[list[list[int]], list[int]], list[bool]] | None:
        """The check of a batch with this conditioning, as `generate` takes it; None: there is none."""
        judge = self.judge
        if judge is None:
            return None
        return lambda tokens, samples: judge(tokens, [conditioning[sample] for sample in samples])


def is_sudoku(config: NcmConfig) -> bool:
    """Whether a configuration maps a 9 x 9 grid with blanks to one without."""
    return (config.prefix_length, config.output_length) == (
        CELLS,
        CELLS,
    ) and config.vocab == config.prefix_vocab == DIGITS


def make_samples(config: NcmConfig, n: int, seed: int) -> Samples:
    """`n` seeded samples: unique puzzles of 34 to 50 givens for Sudoku, else random tokens."""
    if n < 1:
        raise UsageError(_refuse_number(n))
    chance = random.Random(seed)
    if not is_sudoku(config):
        drawn = [tuple(chance.choices(range(config.prefix_vocab), k=config.prefix_length)) for _ in range(n)]
        return Samples("random tokens", tuple(drawn), None)
    from runtime.ncm.sudoku.maker import make_puzzle

    puzzles = [make_puzzle(chance.randint(FEWEST_GIVENS, MOST_GIVENS), chance.randrange(2**32))[0] for _ in range(n)]
    return Samples(f"puzzles of {FEWEST_GIVENS} to {MOST_GIVENS} givens", tuple(puzzles), check_sudoku)


def read_samples(config: NcmConfig, path: Path, n: int | None) -> Samples:
    """The first `n` puzzles (None: all) of a file, less those without a solution.

    Raises Unsupported for a configuration that solves none, UsageError for a file with bad lines or nothing to solve.
    """
    if not is_sudoku(config):
        raise Unsupported(f"--puzzles: {config.name} is no Sudoku configuration; leave it out")
    if n is not None and n < 1:
        raise UsageError(_refuse_number(n))
    from runtime.ncm.sudoku.files import load_puzzles

    puzzles = load_puzzles(path, n)
    short = n is not None and len(puzzles) < n
    grids = tuple(puzzle.grid for puzzle in puzzles if puzzle.kind != "unsolvable")
    notes = tuple(
        f"{path.name}, {puzzle.id}: {puzzle.kind}, {puzzle.reason}; {_TREATED[puzzle.kind]}"
        for puzzle in puzzles
        if puzzle.kind != "unique"
    )
    if short:
        notes = (f"{path.name} has {len(puzzles)} puzzles, fewer than the {n} of --n-puzzles; all are taken", *notes)
    if not grids:
        raise UsageError(f"{path} has no puzzle with a solution: {'; '.join(notes)}")
    return Samples(path.name, grids, check_sudoku, notes)


def _refuse_number(n: int) -> str:
    return f"--n-puzzles is {n}; it must be 1 or more"


def check_sudoku(tokens: Tokens, conditioning: Tokens) -> list[bool]:
    """Which grids are valid and keep their clues; no solution is consulted."""
    import numpy as np

    from runtime.ncm.sudoku.checker import check_grids

    return [bool(valid) for valid in check_grids(np.array(tokens), np.array(conditioning))]
