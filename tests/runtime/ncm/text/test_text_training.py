"""Training runs of `ncm` on a small target's own answers: the checkpoint, resuming, and the drafter made of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from runtime.distillation import load_manifest
from runtime.drafters import make
from runtime.drafters.learned.trainers import train
from runtime.drafters.ncm import NcmDrafter, NcmSampler
from runtime.generate import decode, speculate
from runtime.ncm.identity import list_weights
from runtime.ncm.text.checkpoints import SHIPPED, find_text_checkpoint, read_text_model
from runtime.ncm.text.recipe import TextRecipe, change_recipe
from runtime.ncm.training import loop, staged
from telemetry.errors import RoundscopeError, Unsupported, UsageError
from tests.runtime.drafters.learned.tiny import distil, make_target

TARGET = make_target()
SMALL = {
    "n_tokens": "40",
    "width": "24",
    "ffn_width": "32",
    "codebook_size": "20",
    "lengths": "1-3",
    "prefix_length": "6",
    "batch": "8",
    "generator_batch": "8",
    "codec_steps": "6",
    "causal_steps": "6",
    "generator_steps": "6",
    "alignment_steps": "3",
    "warm_up": "2",
}
STAGES = ["codec", "causal", "generator", "alignment"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    distil(folder, TARGET)
    return folder


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "ncm.safetensors"
    return path, train("ncm", TARGET, data, path, "the command", dict(SMALL))


def read_weights(path):
    return {name: weight.tolist() for name, weight in list_weights(read_text_model(path).model)}


def test_a_checkpoint_says_how_it_was_made(trained, data):
    path, figures = trained
    found = read_text_model(path)
    header: dict[str, Any] = dict(found.header)
    assert header["command"] == "the command"
    assert json.loads(header["held_out"]) == figures
    assert header["data_digest"] == load_manifest(data).digest
    assert msgspec.convert(json.loads(header["recipe"]), TextRecipe) == change_recipe(SMALL)
    assert [*json.loads(header["curve"])] == STAGES
    assert [*figures["training_seconds"]] == STAGES
    assert [each["levels"] for each in figures["codec"]] == [1, 2]
    assert [each["level"] for each in figures["codes"]] == [0, 1]
    assert figures["agreement"]["context"]["blocks"] > 0
    assert [each["decoder"] for each in figures["alignment"]] == ["context", "context", "codec"]
    for each in figures["alignment"]:
        assert 0 <= each["equal"] <= each["overlap"] <= 1  # sum p q is never above sum min(p, q)
        assert each["survival"] == sorted(each["survival"], reverse=True)
    assert found.model.config.lengths == (1, 3)
    assert found.trained_for.target == TARGET.name
    assert not path.with_name(path.name + ".state").exists()


def test_resuming_changes_nothing(trained, data, tmp_path, monkeypatch):
    path = tmp_path / "ncm.safetensors"
    monkeypatch.setattr(staged, "SAVE_EVERY", 2)
    own, steps = loop.Trainer._step, []

    def stop(self, progress):
        steps.append(self.stage.name)
        if len(steps) == 9:  # in the middle of the causal stage
            raise KeyboardInterrupt
        own(self, progress)

    monkeypatch.setattr(loop.Trainer, "_step", stop)
    with pytest.raises(KeyboardInterrupt):
        train("ncm", TARGET, data, path, "the command", dict(SMALL))
    monkeypatch.setattr(loop.Trainer, "_step", own)
    with pytest.raises(UsageError, match="of another configuration or recipe"):
        train("ncm", TARGET, data, path, "the command", {**SMALL, "seed": "1"}, resume=True)
    figures = train("ncm", TARGET, data, path, "the command", dict(SMALL), resume=True)
    assert read_weights(path) == read_weights(trained[0])
    assert figures["codec"] == trained[1]["codec"]


def test_the_drafter_of_a_checkpoint(trained):
    path, prompt = trained[0], [3, 1, 4, 1, 5]
    drafter = make(f"ncm:checkpoint={path}", TARGET)
    assert isinstance(drafter, NcmSampler)
    assert not isinstance(make(f"ncm:checkpoint={path},point=1", TARGET), NcmSampler)
    wanted = decode(TARGET, prompt, max_tokens=12).drain().tokens
    for each in (drafter, make(f"ncm:checkpoint={path},decoder=codec,latent_temperature=0", TARGET)):
        assert isinstance(each, NcmDrafter)
        assert speculate(TARGET, each, prompt, draft_length=3, max_tokens=12).drain().tokens == wanted
    composed = make(f"prompt-lookup+ncm:checkpoint={path}", TARGET)
    assert composed.name == "prompt-lookup+ncm"
    assert speculate(TARGET, composed, prompt, draft_length=3, max_tokens=12).drain().tokens == wanted
    with pytest.raises(Unsupported, match="the drafter ncm speaks a vocabulary of 64 ids"):
        make(f"ncm:checkpoint={path}", make_target(vocab_size=32))
    with pytest.raises(UsageError, match="decoder must be one of context, codec, not 'x'"):
        make(f"ncm:checkpoint={path},decoder=x", TARGET)


def test_files_that_are_no_checkpoint_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"there is no checkpoint .*none: `roundscope train-drafter ncm` makes one"):
        find_text_checkpoint(tmp_path / "none")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    with pytest.raises(RoundscopeError, match="cannot be read as safetensors"):
        read_text_model(broken)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": "3"}, "unknown field `steps`.* has the fields seed, n_tokens"),
        ({"width": "wide"}, "Expected `int`"),
        ({"own_share": "1.5"}, "own_share must be from 0 to 1, not 1.5"),
        ({"batch": "0"}, "batch must be at least 1, not 0"),
        ({"lengths": "8-1"}, "lengths must not shrink"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        change_recipe(changes).change_config()


@pytest.mark.skipif(not SHIPPED.is_file(), reason="no checkpoint is shipped")
def test_the_shipped_checkpoint():
    found = read_text_model(SHIPPED)
    assert SHIPPED.stat().st_size < 12e6
    assert found.model.tokens.vocab_size == found.trained_for.vocab_size
    held_out = json.loads(found.header["held_out"])
    assert held_out["codec"][-1]["levels"] == found.model.config.n_levels
    windows = np.array([found.model.take_window([1, 2, 3])])
    assert windows.shape == (1, found.model.config.prefix_length)
