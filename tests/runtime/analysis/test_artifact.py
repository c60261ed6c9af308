"""The committed artifact, and `roundscope analyze`: figures, exit codes, and that no model library is needed."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from runtime.analysis import artifact
from runtime.analysis.artifact import find_differences, find_failures, make_artifact, read_committed, write_text
from runtime.cli.main import main
from tests.conftest import run_python

WITHOUT_MODELS = """
import sys
from runtime.cli.main import main
try: main()
except SystemExit as end: assert not end.code, end.code
print(sorted({'mlx', 'mlx_lm', 'transformers', 'numpy', 'duckdb'} & set(sys.modules)), file=sys.stderr)
"""


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `roundscope analyze`."""
    with pytest.raises(SystemExit) as ended:
        main(["analyze", *arguments])
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


def change(document: dict[str, Any], path: list[str], value: object) -> dict[str, Any]:
    """A copy of a document with another value at a path."""
    changed = copy.deepcopy(document)
    place = changed
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return changed


def test_the_published_figures() -> None:
    document = read_committed()
    counts = document["configurations"]["sudoku-e20"]
    assert (counts["positions_repeated"], counts["positions_once"], counts["positions_removed"]) == (1286, 395, 891)
    assert (counts["pairs_repeated"], counts["pairs_once"]) == (120_392, 48_221)
    assert (counts["payload_bytes"], counts["payload_bytes_batch_64"]) == (1_327_104, 81 * 2**20)
    small = document["configurations"]["tinyworld"]
    assert (small["positions_repeated"], small["positions_once"]) == (69, 64)
    assert document["committed_per_round"]["expected"] == "31/16"
    assert list(document["residual_rule"]) == [
        "zero support",
        "deterministic proposal",
        "equal distributions",
        "general",
    ]
    assert document["latent_mixture"]["mixed_is_target"] is True


def test_the_committed_artifact_is_what_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "--json")
    assert (code, err) == (0, "")
    assert out == write_text(read_committed())
    code, out, err = call(capsys, "--check")
    assert (code, out.startswith("ok: "), err) == (0, True, "")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["configurations", "sudoku-e20", "config_digest"], "0" * 64),
        (["configurations", "sudoku-e20", "pairs_once"], 48_222),
        (["residual_rule", "general", "acceptance"], "1/2"),
        (["configurations", "another"], {"width": 1}),
    ],
)
def test_what_differs_is_named_with_exit_code_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, path: list[str], value: object
) -> None:
    changed = change(read_committed(), path, value)
    monkeypatch.setattr(artifact, "read_committed", lambda: changed)
    code, out, err = call(capsys, "--check")
    assert (code, out) == (3, "")
    assert err.startswith(f"error: the committed artifact differs: {'.'.join(path)}")
    assert len(find_differences(changed, make_artifact())) == 1


def test_an_identity_that_does_not_hold_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = change(make_artifact(), ["latent_mixture", "mixed_is_target"], False)
    broken = change(broken, ["committed_per_round", "n_equal"], 1)
    assert find_failures(broken) == ["latent_mixture.mixed_is_target", "committed_per_round.n_equal"]
    monkeypatch.setattr(artifact, "make_artifact", lambda: broken)
    code, _, err = call(capsys)
    assert (code, err) == (3, "error: does not hold: latent_mixture.mixed_is_target, committed_per_round.n_equal\n")


def test_the_table_is_for_reading(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = call(capsys)
    assert (code, err) == (0, "")
    for figure in ("1,286 -> 395", "891", "120,392 -> 48,221", "1,327,104 B", "81 MiB", "69 -> 64", "31/16"):
        assert figure in out


@pytest.mark.parametrize("arguments", [(), ("--check",), ("--json",)])
def test_it_imports_no_model_library(arguments: tuple[str, ...]) -> None:
    child = run_python(WITHOUT_MODELS, "analyze", *arguments)
    assert (child.returncode, child.stderr) == (0, "[]\n")
    assert child.stdout
    if arguments == ("--json",):
        assert json.loads(child.stdout) == read_committed()
