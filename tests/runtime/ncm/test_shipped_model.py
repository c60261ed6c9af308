"""The checkpoint that comes with the package: what its header says, and that the model does what it says.

Puzzles are solved in a child process, on the BLAS that users have: the tests' own is many times slower.
"""

from __future__ import annotations

import json
from functools import cache
from math import comb
from typing import Any

import msgspec

from runtime.ncm.checkpoints import CONFIG, FOLDER, SUFFIX, load_model, read_checkpoint
from runtime.ncm.config import load_config, parse_config
from runtime.ncm.experiment.samples import check_sudoku, make_samples
from runtime.ncm.training.recipe import Recipe
from runtime.ncm.training.tasks import SudokuTask
from tests.conftest import ROOT, run_python

NAME = "sudoku-demo"
PATH = FOLDER / f"{NAME}{SUFFIX}"
N = 16
N_FRESH = 64
FRESH_SEED = 2026
ARMS = {
    "cache": {"cache": True},
    "no-cache": {"cache": False},
    "cache exit": {"cache": True, "exit": "verified"},
    "no-cache exit": {"cache": False, "exit": "verified"},
}
SOLVE = """
import json, sys
from runtime.ncm import generate, load_model
from runtime.ncm.experiment.samples import check_sudoku
name, held_out, fresh, arms = sys.argv[1], *map(json.loads, sys.argv[2:])
model = load_model(name)
def solve(puzzles, **options):
    check = lambda tokens, samples: check_sudoku(tokens, [puzzles[sample] for sample in samples])
    return generate(model, puzzles, check=check, **options)
outputs = {arm: solve(held_out, **options) for arm, options in arms.items()} | {"fresh": solve(fresh)}
wanted = ("tokens", "codes", "n_levels", "solved")
print(json.dumps({arm: {each: getattr(output, each) for each in wanted} for arm, output in outputs.items()}))
"""


@cache
def read_header() -> dict[str, str]:
    return read_checkpoint(PATH)[1]


@cache
def hold_out() -> list[list[int]]:
    """The first of the puzzles that the checkpoint's figures are about; the grids for training are not needed."""
    recipe = msgspec.json.decode(read_header()["recipe"], type=Recipe)
    puzzles, _ = SudokuTask(msgspec.structs.replace(recipe, n_grids=1)).hold_out(N)
    return [[int(digit) for digit in puzzle] for puzzle in puzzles]


@cache
def make_fresh() -> list[list[int]]:
    """Puzzles that nothing was trained or decided on."""
    return [list(puzzle) for puzzle in make_samples(load_config(NAME), N_FRESH, FRESH_SEED).conditioning]


@cache
def solve() -> dict[str, Any]:
    """What every arm gives for the held-out puzzles, and one for the fresh ones."""
    child = run_python(SOLVE, NAME, *map(json.dumps, (hold_out(), make_fresh(), ARMS)))
    assert child.returncode == 0, child.stderr
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def beat(share: float, n: int) -> int:
    """The fewest successes in `n` draws that a model which has `share` of them reaches once in 100 times at most."""
    chances = [comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    return next(k for k in range(n + 2) if sum(chances[k:]) <= 0.01)


def test_what_it_takes_to_beat_a_share_by_hand() -> None:
    # Both of two at 1/20 have the chance 1/400, one or both 39/400; ten of ten at 1/2 have 1/1024, nine or ten 11/1024.
    assert [beat(0.05, 2), beat(0.5, 10), beat(1.0, 3)] == [2, 10, 4]


def test_it_is_trained_and_of_the_configuration_that_comes_with_it() -> None:
    model = load_model(NAME)
    assert (model.trained, model.training, model.config) == (True, False, load_config(NAME))
    assert parse_config(read_header()[CONFIG].encode(), PATH.name) == load_config(NAME)


def test_its_header_says_how_it_was_made_and_what_it_does_beside_the_direct_network() -> None:
    header = read_header()
    assert header["command"].startswith("roundscope ncm train ")
    assert NAME in header["command"]
    held_out = json.loads(header["held_out"])
    assert [held_out[part]["n"] for part in ("generation", "direct")] == [1000, 1000]
    assert held_out["generation"]["valid_share"] >= 0.9
    assert held_out["direct"]["valid_share"] >= 0.9
    assert [row["levels"] for row in held_out["codec"]] == [*range(1, load_config(NAME).n_levels + 1)]
    told = " / ".join(f"{row['token_share']:.3g}" for row in held_out["codec"])
    assert told in (ROOT / "docs" / "ncm.md").read_text(encoding="utf-8")


def test_it_solves_fresh_puzzles_as_no_model_of_three_quarters_would() -> None:
    fresh, found = make_fresh(), solve()["fresh"]
    assert not {*map(tuple, fresh)} & {*map(tuple, hold_out())}
    assert found["solved"] == check_sudoku(found["tokens"], fresh)
    assert sum(found["solved"]) >= beat(0.75, N_FRESH)


def test_its_outputs_are_the_same_with_and_without_cache() -> None:
    assert solve()["cache"] == solve()["no-cache"]
    assert solve()["cache exit"] == solve()["no-cache exit"]


def test_a_verified_exit_lets_valid_grids_go_and_loses_none() -> None:
    whole, early = solve()["cache"], solve()["cache exit"]
    assert early["solved"] == check_sudoku(early["tokens"], hold_out())
    assert early["codes"] == [codes[:depth] for codes, depth in zip(whole["codes"], early["n_levels"], strict=True)]
    assert all(a >= b for a, b in zip(early["solved"], whole["solved"], strict=True))
    deepest = load_config(NAME).n_levels
    assert all(solved for solved, depth in zip(early["solved"], early["n_levels"], strict=True) if depth < deepest)
