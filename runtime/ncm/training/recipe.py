"""What a training run does besides its configuration, checked, and kept inside the checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from telemetry.errors import UsageError

FOLDER = Path(__file__).parent / "recipes"


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is trained. Whoever has it, the configuration and the machine's arithmetic gets the same weights.

    *_steps: of each stage; with no direct steps that stage is left out. batch, generator_batch: samples a step.
    *_rate: the peak learning rate, reached after `warm_up` steps, then a cosine down to a twentieth.
    keep_all: share of samples for which the codec keeps all levels; the others keep the first few.
    direct_depths: applications of the layers in equal parts of the direct steps, at most the configuration's; empty:
    always those. Tied layers learn the rules of a grid when applied a few times, which is cheap, and depth after it.
    code_errors: share of positions of the levels short of full length at which the generator goes on from a wrong code,
    so that later levels learn to mend earlier ones.
    n_grids: solved grids that Sudoku puzzles are made from. fewest_givens, most_givens: of puzzles, in training and
    held out. n_held_out: samples held out.
    """

    seed: int = 0
    batch: int = 64
    generator_batch: int = 64
    codec_steps: int = 600
    direct_steps: int = 0
    generator_steps: int = 1000
    codec_rate: float = 3e-3
    direct_rate: float = 2e-3
    direct_depths: tuple[int, ...] = ()
    generator_rate: float = 1e-3
    warm_up: int = 50
    weight_decay: float = 0.01
    keep_all: float = 0.5
    code_errors: float = 0.0
    n_grids: int = 3000
    fewest_givens: int = 34
    most_givens: int = 50
    n_held_out: int = 1000

    def __post_init__(self) -> None:
        for field in ("batch", "generator_batch", "n_grids", "n_held_out", "warm_up"):
            _require(getattr(self, field) >= 1, f"{field} must be at least 1, not {getattr(self, field)}")
        for field in ("seed", "codec_steps", "direct_steps", "generator_steps"):
            _require(getattr(self, field) >= 0, f"{field} must not be negative, not {getattr(self, field)}")
        for field in ("codec_rate", "direct_rate", "generator_rate"):
            _require(getattr(self, field) > 0, f"{field} must be above 0, not {getattr(self, field)}")
        for field in ("keep_all", "code_errors", "weight_decay"):
            _require(0 <= getattr(self, field) <= 1, f"{field} must be from 0 to 1, not {getattr(self, field)}")
        _require(
            24 <= self.fewest_givens <= self.most_givens <= 80,
            f"givens must be from 24 to 80, the fewest first, not {self.fewest_givens} to {self.most_givens}",
        )


def load_recipe(name: str) -> Recipe:
    """The recipe that comes with the package for the configuration of that name, or the default one."""
    path = FOLDER / f"{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=Recipe) if path.is_file() else Recipe()


def change_recipe(recipe: Recipe, **changes: int | None) -> Recipe:
    """`recipe` with `changes`, those that are None left out; raises UsageError for values that make no sense."""
    return msgspec.structs.replace(recipe, **{name: value for name, value in changes.items() if value is not None})


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(f"recipe: {message}")
