"""The target with fewer bits as its own drafter: what it says, what it costs, and when it is refused."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest

from runtime.drafters import make
from runtime.drafters.requantised import Requantised
from runtime.generate import decode, speculate
from runtime.targets import MlxTarget
from runtime.testing import ScriptedTarget
from telemetry.errors import Unsupported
from tests.models import greedy, tiny_llama
from tests.runtime.scripted import drain_checked

PROMPT = [5, 9, 33, 5, 9, 33, 5, 9]


def quantise_with_mlx_lm(target: MlxTarget, bits: int, group_size: int, capsys) -> MlxTarget:
    """The model as mlx-lm's own conversion quantises it."""
    from mlx_lm.utils import quantize_model

    model, _ = quantize_model(copy.deepcopy(target.model), {}, group_size, bits)
    capsys.readouterr()
    return MlxTarget("quantised", model)


@pytest.mark.parametrize(("hidden", "group_size"), [(64, 64), (96, 32)])
@pytest.mark.parametrize("bits", [4, 3])
def test_it_drafts_what_the_quantised_model_says(bits, hidden, group_size, capsys):
    import mlx.core as mx

    target = tiny_llama(1, hidden=hidden)
    drafter = make(f"self-q{bits}", target)
    theirs = quantise_with_mlx_lm(target, bits, group_size, capsys)
    drafter.reset(PROMPT)
    ids = mx.array([PROMPT])
    ours_logits = drafter.model.forward(ids, drafter.model.make_cache())
    assert mx.array_equal(ours_logits, theirs.forward(ids, theirs.make_cache()))
    assert drafter.propose(PROMPT, 12).tokens.tolist() == greedy(theirs, PROMPT, 12)
    assert (drafter.name, drafter.model.dtype, target.dtype) == (f"self-q{bits}", f"{bits}-bit", "float32")


@pytest.mark.parametrize("name", ["self-q4", "self-q3"])
def test_it_changes_nothing_but_the_pace(name):
    target = tiny_llama(1, hidden=64)
    output = decode(target, PROMPT, max_tokens=30).drain().tokens
    accepted = 0
    for m in (0, 1, 4, 8):
        generation = speculate(target, name, PROMPT, draft_length=m, max_tokens=30)
        rounds = drain_checked(generation, PROMPT, draft_length=m, max_tokens=30)
        assert generation.tokens == output
        accepted += sum(entry.accepted for entry in rounds)
    assert accepted > 0
    assert decode(target, PROMPT, max_tokens=30).drain().tokens == output


def test_a_window_of_the_target_is_one_of_the_drafter():
    target = tiny_llama(1, hidden=64, sliding_window=8)
    generation = speculate(target, "self-q4", PROMPT, draft_length=4, max_tokens=40)
    drain_checked(generation, PROMPT, draft_length=4)
    assert generation.tokens == decode(target, PROMPT, max_tokens=40).drain().tokens


def test_a_quantised_target_is_requantised_to_fewer_bits(capsys):
    """From what its weights stand for, the rest of it shared; not the target over again under another name."""
    for bits in (8, 4):
        target = quantise_with_mlx_lm(tiny_llama(1, hidden=64), bits, 32, capsys)
        drafter = Requantised(target, 3)
        assert (drafter.model.dtype, target.dtype) == ("3-bit", f"{bits}-bit")
        assert {module.bits for module in target.model.modules() if hasattr(module, "bits")} == {bits}
        generation = speculate(target, drafter, PROMPT, draft_length=4, max_tokens=20).drain()
        assert generation.tokens == decode(target, PROMPT, max_tokens=20).drain().tokens


@pytest.mark.parametrize(("held", "bits"), [(4, 4), (3, 3), (3, 4)])
def test_what_the_target_is_already_is_refused(held, bits, capsys):
    target = quantise_with_mlx_lm(tiny_llama(1, hidden=64), held, 64, capsys)
    message = (
        f"self-q{bits} would be the target over again: its weights are {held}-bit already; take a drafter of fewer"
    )
    with pytest.raises(Unsupported, match=message):
        make(f"self-q{bits}", target)


def test_weights_of_several_kinds_count_as_what_most_of_them_are(capsys):
    """As the default model: 4-bit layers, and an embedding of more bits."""
    from mlx.nn.layers.quantized import quantize

    target = tiny_llama(1, hidden=128)
    model = copy.deepcopy(target.model)
    quantize(
        model,
        64,
        4,
        class_predicate=lambda path, module: (
            {"bits": 8 if "embed" in path else 4, "group_size": 64} if hasattr(module, "to_quantized") else False
        ),
    )
    with pytest.raises(Unsupported, match="its weights are 4-bit already"):
        Requantised(MlxTarget("mixed", model), 4)


def test_what_cannot_be_requantised_is_refused():
    with pytest.raises(Unsupported, match="self-q4 requantises a model of mlx-lm, and the target is none"):
        make("self-q4", ScriptedTarget(len, vocab_size=8))
    with pytest.raises(Unsupported, match="none of its weights has rows of a multiple of 32 numbers"):
        make("self-q4", tiny_llama(1, hidden=8, heads=2))


MEMORY = """
import mlx.core as mx
mx.set_default_device(mx.cpu)
from runtime.drafters.requantised import Requantised
from tests.models import tiny_llama

target = tiny_llama(1, vocab_size=2048, hidden=256)
target.model.extra = mx.zeros((1_000_000,))
mx.eval(target.model.extra)
before = mx.get_active_memory()
drafter = Requantised(target, 4)
grown = mx.get_active_memory() - before
own = drafter.model.parameter_bytes - 4 * 1_000_000
print(abs(grown - own) < 0.1 * own, drafter.model.parameter_bytes < target.parameter_bytes + 4_000_000)
"""


def test_what_cannot_be_quantised_is_not_held_twice():
    """A process of its own, since whatever else lives in this one is counted too."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, env=environment, check=False)
    assert (child.returncode, child.stdout) == (0, "True True\n"), child.stderr
