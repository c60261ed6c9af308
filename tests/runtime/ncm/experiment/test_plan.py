"""What a run of the generator will do, before it does it; and what it does it on."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.ncm.experiment.samples import check_sudoku, make_samples, read_samples
from runtime.ncm.sudoku.grid import format_grid
from runtime.ncm.sudoku.maker import make_puzzle
from runtime.ncm.sudoku.solver import solve
from telemetry.errors import Unsupported, UsageError
from tests.runtime.ncm.experiment.tiny import make_config, make_request, plan_run


def test_all_four_arms_run_unless_one_side_is_asked_for() -> None:
    def name_arms(cache: bool | None, exit_: bool | None) -> list[str]:
        return [arm.name for arm in plan_run(cache=cache, exit=exit_).arms]

    assert name_arms(None, None) == ["no-cache", "cache", "no-cache exit", "cache exit"]
    assert name_arms(True, None) == ["cache", "cache exit"]
    assert name_arms(None, False) == ["no-cache", "cache"]
    assert name_arms(None, True) == ["no-cache exit", "cache exit"]
    assert name_arms(False, False) == ["no-cache"]


def test_every_batch_is_run_by_every_arm_once_a_repeat() -> None:
    plan = plan_run(5, repeats=3)
    assert [(batch.id, batch.sample_ids) for batch in plan.batches] == [("b0", (0, 1)), ("b1", (2, 3)), ("b2", (4,))]
    done = sorted((block.repeat, block.batch.id, arm.name) for block in plan.blocks for arm in block.arms)
    expected = [(repeat, f"b{index}", arm.name) for repeat in range(3) for index in range(3) for arm in plan.arms]
    assert done == sorted(expected)
    # Warm-up by four arms, three batches three times, and two of them attributed.
    assert plan.n_generations == 4 * (1 + 9 + 2)


def test_the_order_depends_on_the_seed_alone_and_no_arm_always_comes_first() -> None:
    def order(seed: int) -> list[tuple[str, str]]:
        return [(block.batch.id, arm.name) for block in plan_run(6, seed=seed, repeats=4).blocks for arm in block.arms]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert {block.arms[0].name for block in plan_run(6, repeats=8).blocks} == {arm.name for arm in plan_run().arms}


def test_a_run_in_attributed_timing_has_no_further_pass() -> None:
    assert plan_run(timing="attributed").attributed == ()


def test_a_configuration_without_checker_has_no_exit() -> None:
    config = make_config(prefix_length=3, lengths=(1, 4), prefix_vocab=5, vocab=7)
    assert [arm.name for arm in plan_run(config=config).arms] == ["no-cache", "cache"]
    with pytest.raises(Unsupported, match=r"--exit needs a checker .* tiny has none"):
        plan_run(config=config, exit=True)


def test_a_policy_that_the_cache_does_not_serve_is_refused_with_it() -> None:
    config = make_config(policy="block_causal")
    with pytest.raises(Unsupported, match=r"policy block_causal.*--no-cache"):
        plan_run(config=config)
    assert [arm.name for arm in plan_run(config=config, cache=False).arms] == ["no-cache", "no-cache exit"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "--batch is 0"),
        ({"repeats": 0}, "--repeats is 0"),
        ({"temperature": -0.5}, r"--temperature is -0\.5"),
        ({"temperature": float("nan")}, "--temperature is nan"),
        ({"temperature": 1e-50}, "--temperature is 1e-50; it must be 0 .* or a number from 1e-30 up"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_request(**change)


def test_made_samples_are_seeded_puzzles_with_one_solution() -> None:
    samples = make_samples(make_config(), 6, 3)
    assert samples.conditioning == make_samples(make_config(), 6, 3).conditioning
    assert samples.digest != make_samples(make_config(), 6, 4).digest
    assert all(34 <= sum(digit > 0 for digit in puzzle) <= 50 for puzzle in samples.conditioning)
    assert [len(solve(puzzle)) for puzzle in samples.conditioning] == [1] * 6
    with pytest.raises(UsageError, match="--n-puzzles is 0"):
        make_samples(make_config(), 0, 0)


def test_other_configurations_have_random_tokens() -> None:
    config = make_config(prefix_length=3, lengths=(1, 4), prefix_vocab=5, vocab=7)
    samples = make_samples(config, 20, 0)
    assert {len(tokens) for tokens in samples.conditioning} == {3}
    assert {token for tokens in samples.conditioning for token in tokens} == set(range(5))
    assert samples.make_check(samples.conditioning) is None


def test_a_files_puzzles_are_taken_and_what_is_no_proper_one_is_said(tmp_path: Path) -> None:
    puzzle, solution = make_puzzle(40, 1)
    path = tmp_path / "mine.txt"
    ambiguous = "." * 81
    unsolvable = "11" + "." * 79
    path.write_text("\n".join([format_grid(puzzle), unsolvable, ambiguous]) + "\n")
    samples = read_samples(make_config(), path, None)
    assert samples.conditioning == (puzzle, (0,) * 81)
    first, second = samples.notes
    assert first.startswith("mine.txt, line-2: unsolvable, ")
    assert first.endswith("; left out")
    assert second.startswith("mine.txt, line-3: ambiguous, ")
    check = samples.make_check(samples.conditioning)
    assert check is not None
    assert check([list(solution), list(solution)], [0, 1]) == [True, True]
    assert check([list(puzzle)], [0]) == [False]
    assert read_samples(make_config(), path, 1).conditioning == (puzzle,)
    path.write_text(unsolvable)
    with pytest.raises(UsageError, match=r"no puzzle with a solution: mine\.txt, line-1: unsolvable"):
        read_samples(make_config(), path, None)


def test_puzzles_for_what_solves_none_are_refused(tmp_path: Path) -> None:
    config = make_config(prefix_length=3, lengths=(1, 4), prefix_vocab=5, vocab=7)
    with pytest.raises(Unsupported, match="--puzzles: tiny is no Sudoku configuration"):
        read_samples(config, tmp_path / "mine.txt", None)


def test_the_checker_keeps_clues() -> None:
    puzzle, solution = make_puzzle(40, 2)
    other = make_puzzle(40, 3)[1]
    assert check_sudoku([solution, other], [puzzle, puzzle]) == [True, False]
