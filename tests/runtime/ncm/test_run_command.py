"""`roundscope ncm run` from its arguments to its exit code: what is printed where, and what the store holds."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.ncm.sudoku.grid import format_grid
from runtime.ncm.sudoku.maker import make_puzzle
from tests.conftest import run_python
from tests.runtime.commands import call, query, read_lines
from tests.runtime.ncm.experiment.tiny import make_config

PLAN = ("config ", "samples ", "arms ", "amount ", "time ")
INTERRUPT = """
import os, signal
from runtime.cli.main import main
from runtime.ncm import generation
generate, calls = generation.generate, 0
def interrupting(*arguments, **options):
    global calls
    calls += 1
    if calls == 9: os.kill(os.getpid(), signal.SIGINT)
    return generate(*arguments, **options)
generation.generate = interrupting
main()
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The tiny configuration in a file."""
    path = tmp_path / "tiny.json"
    path.write_bytes(msgspec.json.encode(make_config()))
    return path


def run(capsys: pytest.CaptureFixture[str], config: Path, *more: str | Path) -> tuple[int, str, str]:
    """`roundscope ncm run` of six puzzles, with its store beside the configuration."""
    n = () if "--puzzles" in more else ("--n-puzzles", "6")
    return call(capsys, "ncm", "run", "--config", config, "--store", config.parent / "s", *n, *more)


def starts(text: str) -> set[str]:
    """Which lines of the plan are in a text."""
    return {word for word in PLAN if any(line.startswith(word) for line in text.splitlines())}


def test_grids_and_verdict_are_on_stdout_and_everything_else_on_stderr(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = run(capsys, config)
    assert code == 0
    [(run_id,)] = query(config.parent / "s", "select run_id from runs")
    assert out.startswith("puzzle                  not solved (random weights)\n")
    assert "\nThe prefix cache of tiny " in out
    assert "199 " not in out
    assert "172 instead of 334 positions" in out
    assert "cache exit has no verdict against cache; solved 0.0% instead of 0.0%" in out
    equal = "Codes: 16 of 16, the 4 of the stage timing among them, are the uncached generator's."
    assert equal in " ".join(out.split())
    assert out.endswith(
        f"\nrun {run_id}; next: roundscope report ncm_cache --run {run_id} --store {config.parent / 's'}\n"
    )
    assert (starts(out), starts(err)) == (set(), set(PLAN))
    assert "random weights: outputs mean nothing, only cost is measured" in err
    # Four arms: warm-up, six batches, two of them attributed.
    assert "36/36" in err


def test_a_dry_run_says_its_plan_on_stdout_and_leaves_no_store(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, config, "--dry-run", "--batch", "4", "--repeats", "3", "--no-exit")
    assert (code, starts(out), starts(err)) == (0, set(PLAN), set())
    assert "arms      no-cache, cache\n" in out
    assert "2 arms x 2 batches x 3 repeats; " in out
    assert not (config.parent / "s").exists()
    _, out, _ = run(capsys, config, "--dry-run", "--batch", "6", "--no-exit", "--cache")
    assert "1 arm x 1 batch x 1 repeat; with warm-up and attributed pass 3 generations\n" in out


def test_json_is_one_document_with_the_rows_of_both_queries(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, config, "--json", "--batch", "2")
    document = json.loads(out)
    assert (code, set(document), document["trained"]) == (0, {"run_id", "trained", "ncm_cache", "ncm_exit"}, False)
    assert [(row["level"], row["n_pairs"]) for row in document["ncm_cache"]] == [
        ("0", 2),
        ("1", 2),
        ("2", 2),
        ("all", 3),
    ]
    assert [(row["arm"], row["against"]) for row in document["ncm_exit"]] == [
        ("cache", None),
        ("cache exit", None),
        ("no-cache", None),
        ("no-cache exit", None),
        ("cache exit", "cache"),
        ("cache exit", "no-cache"),
        ("no-cache exit", "no-cache"),
    ]
    pooled = document["ncm_cache"][-1]
    assert pooled["cached_positions"] == pooled["cached_positions_formula"] == 81 + 91
    assert (pooled["kv_bytes"], pooled["kv_bytes_formula"]) == (2 * 2 * 2 * 81 * 12 * 4,) * 2
    assert (pooled["n_codes_equal"], pooled["n_codes_compared"]) == (3, 3)


def test_what_was_asked_for_is_in_the_runs_row_and_puzzles_are_not(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    puzzles = [make_puzzle(40, seed) for seed in range(3)]
    path = config.parent / "mine.txt"
    path.write_text("".join(f"{format_grid(puzzle)}\n" for puzzle, _ in puzzles))
    asked = ("--seed", "5", "--repeats", "2", "--puzzles", path, "--cache", "--temperature", "0.5")
    assert run(capsys, config, *asked)[0] == 0
    columns = "kind, outcome, timing, seed, repeats, record_text, max_tokens, workload, n_prompts, arms, model"
    expected: tuple[Any, ...] = ("ncm", "complete", "fused", 5, 2, False, 81, "mine.txt", 3, ["cache", "cache exit"])
    store = config.parent / "s"
    assert query(store, f"select {columns} from runs") == [(*expected, "tiny, random weights")]
    assert query(store, "select distinct seed, temperature from ncm_generations") == [(5, 0.5)]
    kept = "".join(json.dumps(line) for line in read_lines(store))
    for puzzle, solution in puzzles:
        assert format_grid(puzzle) not in kept
        assert format_grid(solution) not in kept
        assert json.dumps(list(puzzle)) not in kept


@pytest.mark.parametrize(
    ("sides", "query", "arms"),
    [
        (("--exit",), "ncm_exit", ["cache exit", "no-cache exit"]),
        (("--exit", "--cache"), "ncm_exit", ["cache exit"]),
        (("--cache", "--no-exit"), "ncm_exit", ["cache"]),
        (("--no-cache", "--no-exit"), "ncm_exit", ["no-cache"]),
        (("--no-exit",), "ncm_cache", ["cache", "no-cache"]),
    ],
    ids=["exit", "one with exit", "cached", "uncached", "no exit"],
)
def test_every_arm_is_told_and_the_next_command_has_its_rows(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sides: tuple[str, ...],
    query: str,
    arms: list[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("runtime.ncm.experiment.samples.check_sudoku", lambda tokens, _: [True for _ in tokens])
    _, out, _ = run(capsys, config, *sides)
    told = [line for line in out.splitlines() if " solved 6 of 6 (100.0%), " in line]
    assert [line.partition(" solved ")[0] for line in told] == arms
    times = re.compile(r"\), [\d.]+ (us|ms|s) a generation, [\d.]+ (us|ms|s) a solved sample\.$")
    assert all(times.search(line) for line in told)
    _, *words = shlex.split(out.splitlines()[-1].partition("next: ")[2])
    assert words[:2] == ["report", query]
    code, rows, _ = call(capsys, *words, "--json")
    assert code == 0
    assert any(value is not None for name, value in json.loads(rows)[0].items() if name.endswith("_seconds"))
    code, out, _ = call(capsys, "report", "--store", config.parent / "s")
    assert (code, "The prefix cache" in out) == (0, query == "ncm_cache")
    for line in out.partition("\nNext:\n")[2].splitlines():
        code, rows, _ = call(capsys, *shlex.split(line)[1:], "--json")
        assert (code, json.loads(rows) != []) == (0, True)


def test_attributed_timing_gives_levels_and_no_verdict(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, config, "--timing", "attributed", "--no-exit", "--json")
    rows = {row["level"]: row for row in json.loads(out)["ncm_cache"]}
    assert code == 0
    assert {level: row["n_pairs"] for level, row in rows.items()} == {"0": 6, "1": 6, "2": 6, "all": 0}
    assert {row["basis"] for level, row in rows.items() if level != "all"} == {"barrier"}
    assert rows["all"]["verdict"] is None


def test_an_interrupt_keeps_what_was_measured_and_says_so(config: Path) -> None:
    store = config.parent / "s"
    arguments = ("ncm", "run", "--config", str(config), "--store", str(store), "--n-puzzles", "6")
    child = run_python(INTERRUPT, *arguments)
    assert child.returncode == 130, child.stderr
    assert "interrupted: the report is of what was measured until then" in child.stderr
    assert "Traceback" not in child.stderr
    assert query(store, "select outcome from runs") == [("interrupted",)]
    # Two calls measure the pace and are not recorded; the ninth is the seventh generation.
    assert query(store, "select finish_reason, count(*) from ncm_generations group by 1") == [("complete", 7)]


def test_other_codes_fail_the_run(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from runtime.ncm import generation

    generate = generation.generate

    def corrupt(*arguments: Any, **options: Any) -> Any:
        output = generate(*arguments, **options)
        if options["cache"]:
            output.codes[0][0][0] = (output.codes[0][0][0] + 1) % 8
        return output

    monkeypatch.setattr("runtime.ncm.generation.generate", corrupt)
    code, out, err = run(capsys, config, "--no-exit")
    assert code == 3
    assert err.splitlines()[-1] == "error: cached codes differ from uncached ones, and at no near tie: cache in 8"
    assert "Codes: 8 differ from the uncached generator's, and at no near tie: a fault." in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--batch", "0"), 2, "--batch is 0"),
        (("--n-puzzles", "0"), 2, "--n-puzzles is 0"),
        (("--temperature", "-1"), 2, "--temperature is -1"),
        (("--config", "nothing"), 2, "nothing"),
        (("--config", "tinyworld", "--exit"), 4, "--exit needs a checker"),
        (("--config", "tinyworld", "--puzzles", "mine.txt"), 4, "no Sudoku configuration"),
        (("--puzzles", "no-such-file.txt"), 2, "no-such-file.txt"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    found, out, err = call(capsys, "ncm", "run", "--store", tmp_path / "s", *arguments)
    assert (found, out) == (code, "")
    assert message in err.splitlines()[-1]
    assert not (tmp_path / "s").exists()


def test_a_bad_puzzle_is_refused_with_its_line(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(f"{'.' * 81}\nabc\n")
    code, out, err = run(capsys, config, "--puzzles", path)
    assert (code, out) == (2, "")
    assert f"{path}:2: " in err


def test_a_file_of_fewer_puzzles_than_asked_for_is_told(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"{format_grid(make_puzzle(60, seed)[0])}\n" for seed in range(2)))
    said = "note: mine.txt has 2 puzzles, fewer than the 5 of --n-puzzles; all are taken\n"
    for n, is_told in (("5", True), ("2", False)):
        code, _, err = run(capsys, config, "--puzzles", path, "--n-puzzles", n, "--dry-run")
        assert (code, said in err) == (0, is_told)
