"""Configurations: those that come with the package, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.ncm.config import FOLDER, NcmConfig, config_names, load_config
from telemetry.errors import Unsupported, UsageError
from tests.conftest import run_python
from tests.runtime.ncm.tiny import GRID, TINY


def test_the_packaged_configurations_are_what_was_published() -> None:
    e20 = load_config("sudoku-e20")
    assert (e20.prefix_length, e20.n_levels, e20.width, e20.n_layers, e20.dtype) == (81, 12, 256, 8, "float32")
    assert e20.lengths == (1, 2, 4, 6, 8, 12, 18, 27, 39, 51, 65, 81)
    assert e20.policy == "block_diagonal"
    tiny = load_config("tinyworld")
    assert (tiny.prefix_length, tiny.lengths) == (1, (1, 2, 4, 8, 16, 32))
    assert config_names() == ["sudoku-demo", "sudoku-e20", "tinyworld"]
    assert all(load_config(name).name == name for name in config_names())


def test_a_file_is_read_like_a_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes((FOLDER / "tinyworld.json").read_bytes())
    assert load_config(path) == load_config("tinyworld")


def test_the_digest_does_not_depend_on_how_the_file_is_written(tmp_path: Path) -> None:
    fields = msgspec.to_builtins(TINY)
    path = tmp_path / "reordered.json"
    path.write_text(json.dumps(dict(reversed(fields.items())), indent=3))
    assert load_config(path).digest == TINY.digest
    assert msgspec.structs.replace(TINY, width=32).digest != TINY.digest


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        TINY.width = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 15}, "width 15 must be a multiple of n_heads 2"),
        ({"width": 6}, "even width"),
        ({"n_layers": 0}, "n_layers must be at least 1, not 0"),
        ({"n_layers": 3}, "n_layers 3 must be a multiple of n_blocks 2"),
        ({"lengths": ()}, "at least one level"),
        ({"lengths": (0, 5)}, "at least one level of positions"),
        ({"lengths": (2, 1)}, "must not shrink"),
        ({"rotary_dims": 3}, "rotary_dims must be even"),
        ({"rotary_dims": 10}, "at most a head's 8"),
        ({"rotary_base": 1.0}, "rotary_base"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_values_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        msgspec.structs.replace(TINY, **changes)


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (TINY, {"prefix_attention": "units"}, "prefix_attention units: .* prefix_length 81 .not 5"),
        (GRID, {"n_heads": 2, "width": 16}, "n_heads divisible by 3 .not 2"),
        (TINY, {"cell_order": "boxes"}, "cell_order boxes: only a 9 x 9 grid"),
        (TINY, {"level_attention": "cells", "prefix_length": 4}, "level_attention cells: .* not 4 and 5"),
        (
            TINY,
            {"level_attention": "cells", "policy": "block_causal"},
            "level_attention cells with policy block_causal",
        ),
    ],
)
def test_combinations_that_are_not_computed_are_refused(base: NcmConfig, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        msgspec.structs.replace(base, **changes)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"colour": 1}, UsageError, "colour"),
        ({"width": "16"}, UsageError, "width"),
        ({"policy": "causal"}, UsageError, "policy"),
        ({"width": 15}, UsageError, "must be a multiple"),
        ({"prefix_attention": "units"}, Unsupported, "prefix_attention units"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(
    change: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**msgspec.to_builtins(TINY), **change}))
    with pytest.raises(error, match=f"bad.json: .*{message}"):
        load_config(path)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="sudoku-demo, sudoku-e20, tinyworld"):
        load_config("sudoku")


def test_reading_configurations_needs_no_model_library() -> None:
    child = run_python(
        "import runtime.ncm as n, sys; n.load_config('tinyworld'); print('mlx' in sys.modules, 'numpy' in sys.modules)"
    )
    assert child.stdout == "False False\n", child.stderr
