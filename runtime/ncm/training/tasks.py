"""What is learned: batches to train on, samples held out, and a check of outputs that needs no reference.

Batches are drawn by seed, stage and step alone, so a resumed run sees what an uninterrupted one would have seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from runtime.ncm.config import CELLS
from runtime.ncm.sudoku.checker import check_grids
from runtime.ncm.sudoku.symmetry import make_digs, make_puzzles
from telemetry.errors import Unsupported

if TYPE_CHECKING:
    from runtime.ncm.config import NcmConfig
    from runtime.ncm.training.recipe import Recipe

Tokens: TypeAlias = NDArray[np.int64]
_DIGITS = 10
_HELD_OUT_SEED = 1


class Source(Protocol):
    """Samples to train on: conditioning (n, P) and outputs (n, N)."""

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """`n` of them."""


class Task(Source, Protocol):
    """Samples of a task: conditioning (n, P) and outputs (n, N)."""

    description: str
    """What the samples are and how held-out ones are kept apart, for the checkpoint."""

    def hold_out(self, n: int) -> tuple[Tokens, Tokens]:
        """Samples to measure with; always the same."""

    def check(self, outputs: Tokens, conditioning: Tokens) -> NDArray[np.bool_]:
        """Which outputs are valid for their conditioning."""


def choose_task(config: NcmConfig, recipe: Recipe) -> Task:
    """The task that fits the shapes of `config`.

    Raises Unsupported if none does.
    """
    if config.prefix_length == config.output_length == CELLS and config.prefix_vocab == config.vocab == _DIGITS:
        return SudokuTask(recipe)
    if config.prefix_length == 1:
        return ProgressionTask(config.prefix_vocab, config.output_length, config.vocab)
    raise Unsupported(
        f"configuration {config.name}: there is no training data of its shape. Train Sudoku ({CELLS} tokens of "
        f"{_DIGITS} in prefix and output) or progressions (a prefix of 1 token)"
    )


class SudokuTask:
    """Puzzles and their solutions. Grids for training and held-out ones come from different seeds; held-out puzzles are
    as the digger left them, training puzzles are moved by random symmetries.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._digs = make_digs(recipe.n_grids, recipe.trained_givens[0], f"training {recipe.seed}")
        trained, held_out = (
            "{} to {} givens".format(*span) for span in (recipe.trained_givens, recipe.held_out_givens)
        )
        self.description = (
            f"Sudoku puzzles with one solution; training: {recipe.n_grids} grids under random symmetries, {trained}; "
            f"held out: grids of another seed, not moved, {held_out}; every number of givens as often"
        )

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """`n` puzzles and their solutions, (n, 81) each."""
        return make_puzzles(self._digs, n, *self._recipe.trained_givens, rng)

    def hold_out(self, n: int) -> tuple[Tokens, Tokens]:
        """`n` puzzles and their solutions of grids that no training puzzle comes from."""
        fewest, most = self._recipe.held_out_givens
        digs = make_digs(n, fewest, f"held out {self._recipe.seed}")
        givens = np.random.default_rng(self._recipe.seed).integers(fewest, most + 1, size=n)
        return digs.cut(np.arange(n), givens), digs.solutions

    def check(self, outputs: Tokens, conditioning: Tokens) -> NDArray[np.bool_]:
        """Which grids solve their puzzles."""
        return check_grids(outputs, conditioning)


class ProgressionTask:
    """Arithmetic progressions of tokens modulo the vocabulary, from any start; the step is the conditioning plus 1."""

    def __init__(self, n_steps: int, length: int, vocab: int) -> None:
        self._n_steps, self._length, self._vocab = n_steps, length, vocab
        self.description = (
            f"progressions of {length} tokens modulo {vocab}, in steps of 1 to {n_steps}, which the prefix names, from "
            "random starts; held out: draws of another seed from the same few"
        )

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """`n` steps (n, 1) and progressions (n, N)."""
        conditioning = rng.integers(self._n_steps, size=(n, 1))
        starts = rng.integers(self._vocab, size=(n, 1))
        return conditioning, (starts + (conditioning + 1) * np.arange(self._length)) % self._vocab

    def hold_out(self, n: int) -> tuple[Tokens, Tokens]:
        """`n` of them, always the same."""
        return self.draw(n, np.random.default_rng(_HELD_OUT_SEED))

    def check(self, outputs: Tokens, conditioning: Tokens) -> NDArray[np.bool_]:
        """Which outputs go on in the step that their conditioning names."""
        found: NDArray[np.bool_] = np.all(
            np.diff(outputs, axis=1) % self._vocab == (conditioning + 1) % self._vocab, axis=1
        )
        return found
