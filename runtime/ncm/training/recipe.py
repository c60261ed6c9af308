"""What a training run does besides its configuration, checked, and kept inside the checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from runtime.ncm.sudoku.maker import FEWEST_FOUND, MOST_GIVENS
from telemetry.errors import UsageError

FOLDER = Path(__file__).parent / "recipes"


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is trained. Whoever has it, the configuration and the machine's arithmetic gets the same weights.

    *_steps: of each stage; with no direct steps that stage is left out. batch, generator_batch: samples a step.
    *_rate: the peak learning rate, reached after `warm_up` steps, then a cosine down to a twentieth.
    keep_all: share of samples for which the codec keeps all levels; the others keep the first few.
    *_depths: applications of the layers in equal parts of a stage's steps; empty: always the configuration's. Tied
    layers learn the rules of a grid when applied a few times, which is cheap, and go on to solve it when applied often.
    keep_prefix: the generator's training leaves the prefix's layers as the direct network's training left them.
    code_errors: share of positions of the levels short of full length at which the generator goes on from a wrong code,
    so that later levels learn to mend earlier ones.
    n_grids: solved grids that Sudoku puzzles are made from. trained_givens, held_out_givens: fewest and most of a
    puzzle; training on harder ones than are asked for later teaches more a step. n_held_out: samples held out.
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
    generator_depths: tuple[int, ...] = ()
    generator_rate: float = 1e-3
    warm_up: int = 50
    weight_decay: float = 0.01
    keep_all: float = 0.5
    keep_prefix: bool = False
    code_errors: float = 0.0
    n_grids: int = 3000
    trained_givens: tuple[int, int] = (34, 50)
    held_out_givens: tuple[int, int] = (34, 50)
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
        for field in ("trained_givens", "held_out_givens"):
            fewest, most = getattr(self, field)
            _require(
                FEWEST_FOUND <= fewest <= most <= MOST_GIVENS,
                f"{field} must be from {FEWEST_FOUND} to {MOST_GIVENS}, the fewest first, not {fewest} to {most}",
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
