"""The checkpoints in the package are what `make train-drafters` makes: by its commands, from one set of data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.drafters.learned.recipe import RECIPES
from runtime.ncm.text.recipe import TextRecipe
from runtime.tensor_files import read_tensors

ROOT = Path(__file__).parents[4]
CHECKPOINTS = {
    "ar": (Path("runtime/drafters/learned/checkpoints/ar.safetensors"), RECIPES["ar"]),
    "blocks": (Path("runtime/drafters/learned/checkpoints/blocks.safetensors"), RECIPES["blocks"]),
    "ncm": (Path("runtime/ncm/text/checkpoints/text-draft.safetensors"), TextRecipe()),
}


def read_header(name: str) -> dict[str, Any]:
    path, _ = CHECKPOINTS[name]
    _, header = read_tensors(ROOT / path)
    return {key: text if key in ("command", "data_digest") else json.loads(text) for key, text in header.items()}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_makefiles_command_made_it_by_the_recipe_of_today(name: str) -> None:
    path, recipe = CHECKPOINTS[name]
    header, makefile = read_header(name), (ROOT / "Makefile").read_text()
    assert header["command"] == f"roundscope train-drafter {name} --out {path}"
    assert header["command"].replace("roundscope", "$(BIN)/roundscope") in makefile.replace(
        "$(CHECKPOINTS)", "runtime/drafters/learned/checkpoints"
    )
    assert header["recipe"] == json.loads(msgspec.json.encode(recipe))
    assert {"held_out", "curve", "environment"} <= header.keys()
    assert (ROOT / path).stat().st_size < 12_000_000


def test_all_learned_from_the_data_that_the_makefile_asks_for() -> None:
    headers = [read_header(name) for name in CHECKPOINTS]
    assert len({header["data_digest"] for header in headers}) == 1
    [data] = [json.loads(text) for text in {json.dumps(header["data"]) for header in headers}]
    settings = data["settings"]
    asked = (
        f"distill --resume --tokens {settings['tokens']} --sampled {settings['sampled']} --batch {settings['batch']}"
    )
    assert asked in (ROOT / "Makefile").read_text()
    assert (data["target"], data["complete"]) == ("SmolLM2-135M-Instruct", True)
