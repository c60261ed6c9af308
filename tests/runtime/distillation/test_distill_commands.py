"""`roundscope distill` and `train-drafter` from the command line, on a small target in place of the installed one."""

from __future__ import annotations

import json

import pytest

import runtime.targets
from runtime.cli.main import main
from runtime.distillation import load_manifest
from runtime.drafters import make
from tests.runtime.drafters.learned.tiny import make_target

TARGET = make_target()


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(runtime.targets, "load_target", lambda name=None: TARGET)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["roundscope", *arguments])
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return ended.value.code, *capsys.readouterr()

    return call


def test_from_prompts_to_a_drafter(run, tmp_path):
    prompts = "".join(f"{i * 37} {i}\n" for i in range(80))
    (tmp_path / "mine.txt").write_text(prompts)
    code, out, _ = run("distill", "--prompts", "mine.txt", "--max-tokens", "8", "--batch", "16", "--out", "data")
    assert code == 0
    manifest = load_manifest(tmp_path / "data")
    assert json.loads(out)["files"] == manifest.files
    assert (manifest.prompts, manifest.python) == ("mine.txt", None)
    assert sum(manifest.n_examples.values()) >= 80
    settings = ("--set", "steps=5", "--set", "vocab=30", "--set", "width=16", "--set", "ffn=16")
    code, out, err = run("train-drafter", "ar", "--data", "data", "--out", "mine.safetensors", *settings)
    assert code == 0, err
    assert json.loads(out)["agreement"]["n_positions"] > 0
    assert "wrote mine.safetensors; measure it: --drafter ar:checkpoint=mine.safetensors" in err
    drafter = make("prompt-lookup+ar:checkpoint=mine.safetensors", TARGET)
    header = drafter.parts[1]._checkpoint.header
    assert header["command"].startswith("roundscope train-drafter ar --data data --out mine.safetensors --set steps=5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train-drafter", "ar"), "there is no .roundscope/distilled/manifest.json: run `roundscope distill"),
        (("train-drafter", "suffix"), "there is no drafter 'suffix' to train: take one of ar, blocks"),
        (("train-drafter", "ar", "--out", "x.bin"), "a checkpoint's name ends in .safetensors"),
        (("train-drafter", "ar", "--set", "steps"), "give FIELD=VALUE"),
        (("train-drafter", "ar", "--set", "stepz=1"), "a recipe has no such field"),
        (("distill", "--prompts", "missing.txt"), "cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
