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
from runtime.ncm.experiment.samples import check_sudoku
from runtime.ncm.training.recipe import Recipe
from runtime.ncm.training.tasks import SudokuTask
from tests.conftest import run_python

NAME = "sudoku-demo"
PATH = FOLDER / f"{NAME}{SUFFIX}"
N = 16
UNLIKELY = 1e-4
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
name, puzzles, arms = sys.argv[1], *map(json.loads, sys.argv[2:])
check = lambda tokens, samples: check_sudoku(tokens, [puzzles[sample] for sample in samples])
model = load_model(name)
outputs = {arm: generate(model, puzzles, check=check, **options) for arm, options in arms.items()}
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
def solve() -> dict[str, Any]:
    """What every arm gives for the held-out puzzles."""
    child = run_python(SOLVE, NAME, json.dumps(hold_out()), json.dumps(ARMS))
    assert child.returncode == 0, child.stderr
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def count_likely(n: int, share: float) -> set[int]:
    """The counts of successes in `n` draws that neither tail makes unlikely."""
    chances = [comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    return {k for k in range(n + 1) if min(sum(chances[: k + 1]), sum(chances[k:])) >= UNLIKELY}


def test_likely_counts_by_hand() -> None:
    # All of 16 at 1/2 has the chance 1/65,536, and 15 or more 17 times that.
    assert count_likely(16, 0.5) == set(range(1, 16))
    assert count_likely(2, 0.001) == {0, 1}


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
    assert all(0 < held_out[part]["valid_share"] <= 1 for part in ("generation", "direct"))
    assert [row["levels"] for row in held_out["codec"]] == [*range(1, load_config(NAME).n_levels + 1)]


def test_it_solves_as_many_as_its_figure_says() -> None:
    figures = json.loads(read_header()["held_out"])["generation"]
    # The figure is a count itself: all of n does not mean that none can fail.
    share = (figures["valid_share"] * figures["n"] + 1) / (figures["n"] + 2)
    found = solve()["cache"]
    assert found["solved"] == check_sudoku(found["tokens"], hold_out())
    assert sum(found["solved"]) in count_likely(N, share)


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
