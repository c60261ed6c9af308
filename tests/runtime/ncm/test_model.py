"""The generator: one forward over all levels beside one a level, who sees whom, and seeded weights."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from runtime.ncm.attention import attend, score_scale
from runtime.ncm.cells import list_units
from runtime.ncm.codec import Quantised
from runtime.ncm.config import NcmConfig, load_config
from runtime.ncm.experiment.comparison import LOGIT_TOLERANCE
from runtime.ncm.identity import list_weights
from runtime.ncm.layouts import Layouts
from runtime.ncm.model import NcmModel, init_model
from runtime.ncm.prefix_cache import PrefixCache
from runtime.ncm.tally import Tally
from tests.runtime.ncm.tiny import GRID, TINY, draw_conditioning, tiny_model

CAUSAL = msgspec.structs.replace(TINY, policy="block_causal")


def quantise_noise(model: NcmModel, batch: int) -> Quantised:
    config = model.config
    return model.codec.quantise(mx.random.normal((batch, config.output_length, config.code_dim), key=mx.random.key(9)))


@pytest.mark.parametrize("config", [TINY, GRID, load_config("tinyworld")], ids=lambda config: config.name)
def test_one_pass_over_all_levels_gives_each_level_s_logits(config: NcmConfig) -> None:
    model = init_model(config, 4)
    conditioning = mx.array(draw_conditioning(config, 2))
    inputs = model.codec.make_inputs(quantise_noise(model, 2).partials)
    together = model.generator.forward_levels(inputs, conditioning)
    assert [logits.shape for logits in together] == [(2, length, config.codebook_size) for length in config.lengths]
    for level, logits in enumerate(together):
        alone = model.generator.forward_level(level, inputs[level], conditioning)
        assert mx.allclose(alone, logits, rtol=0, atol=LOGIT_TOLERANCE["float32"])


def test_one_pass_counts_the_prefix_once() -> None:
    model = init_model(load_config("sudoku-e20"))
    inputs = model.codec.make_inputs(quantise_noise(model, 1).partials)
    tally = Tally()
    model.generator.forward_levels(inputs, mx.zeros((1, 81), mx.int32), tally)
    assert (tally.n_layers, tally.prefix, tally.level, tally.allowed) == (8, 8 * 81, 8 * 314, 8 * 48_221)
    assert tally.forwards == 1


@pytest.mark.parametrize("config", [TINY, CAUSAL], ids=lambda config: config.policy)
def test_a_level_sees_earlier_ones_only_where_the_policy_says_so(config: NcmConfig) -> None:
    model = init_model(config, 2)
    conditioning = mx.array(draw_conditioning(config, 1))
    inputs = model.codec.make_inputs(quantise_noise(model, 1).partials)
    before = model.generator.forward_levels(inputs, conditioning)
    inputs[1] = inputs[1] + 1
    after = model.generator.forward_levels(inputs, conditioning)
    changed = [not mx.array_equal(one, other) for one, other in zip(before, after, strict=True)]
    assert changed == [False, True, *[config.policy == "block_causal"] * 2]


def test_one_changed_clue_changes_the_states_of_all_other_cells() -> None:
    """The prefix reads itself in both directions, so that no part of it can be kept for another puzzle."""
    model = init_model(load_config("sudoku-demo"), 1)
    puzzle = draw_conditioning(model.config, 1)[0]
    other = [*puzzle[:80], (puzzle[80] + 1) % 10]
    caches = []
    for row in (puzzle, other):
        cache = PrefixCache(model, [row])
        inputs = model.codec.make_input(0, model.codec.start(1))
        mx.eval(model.generator.forward_level(0, inputs, mx.array([row]), cache))
        caches.append(cache.keep())
    last: list[Any] = [np.array(kept.keys[-1])[0] for kept in caches]
    assert (np.abs(last[0] - last[1]).max(axis=(0, 2)) > 0).all()


def test_level_queries_read_the_cells_they_cover() -> None:
    layout = Layouts(GRID).get((1,), prefix=False)
    assert layout.mask is not None
    seen = np.array(layout.mask) == 0
    assert seen[:, 81:].all()
    assert [row[:81].nonzero()[0].tolist() for row in seen] == [
        list(range(21)), list(range(20, 41)), list(range(40, 61)), list(range(60, 81))
    ]  # fmt: skip
    assert layout.hidden == 4 * 81 - 4 * 21
    assert Layouts(TINY).get((3,), prefix=True).mask is None


def test_units_are_masked_attention_without_the_masked_work() -> None:
    model = tiny_model(1, GRID)
    units = model.generator._units
    assert units is not None
    queries, keys, values = mx.random.normal((3, 2, 3, 81, 6), key=mx.random.key(3))
    mask = np.full((3, 81, 81), -np.inf, np.float32)
    for kind, order in enumerate(list_units("boxes")):
        for start in range(0, 81, 9):
            mask[kind][np.ix_(order[start : start + 9], order[start : start + 9])] = 0
    tally, masked = Tally(), Tally()
    ours = units.attend(queries, keys, values, tally)
    assert mx.allclose(ours, attend(queries, keys, values, masked, mx.array(mask)), rtol=0, atol=1e-5)
    assert (tally.allowed, tally.computed, masked.computed) == (2 * 81 * 9, 2 * 81 * 9, 2 * 81 * 81)


def test_attention_is_softmax_attention() -> None:
    queries, keys, values = mx.random.normal((3, 2, 2, 5, 8), key=mx.random.key(1))
    ours = attend(queries * score_scale(8), keys, values, Tally())
    theirs = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=8**-0.5)
    assert mx.allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("first", ["cpu", "gpu"])
def test_the_device_of_the_first_forward_does_not_bind_later_ones(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries are scaled for the way in which `attend` takes exponentials at that moment."""
    model = tiny_model()
    inputs, conditioning = model.codec.make_input(0, model.codec.start(2)), mx.array(draw_conditioning(TINY, 2))
    found = []
    for on_cpu in (first == "cpu", first != "cpu", first == "cpu"):
        monkeypatch.setattr("runtime.ncm.attention._on_cpu", lambda on_cpu=on_cpu: on_cpu)
        found.append(model.generator.forward_level(0, inputs, conditioning))
    assert mx.allclose(found[0], found[1], rtol=0, atol=1e-5)
    assert mx.array_equal(found[0], found[2])


def test_rotation_is_the_usual_one_and_starts_anew_in_every_level() -> None:
    config = msgspec.structs.replace(TINY, rotary_dims=6)
    block = init_model(config, 3).generator.blocks[0]
    x = mx.random.normal((2, 10, 16), key=mx.random.key(6))
    queries, keys, _ = block.make_heads(x, Layouts(config).get((3,), prefix=True))
    still = block.make_heads(x, Layouts(msgspec.structs.replace(config, rotary_dims=0)).get((3,), prefix=True))
    for ours, unrotated in ((queries, still[0]), (keys, still[1])):
        # The usual pairs are the two halves of the rotated part, ours those of the whole head.
        pairs = mx.array([0, 1, 2, 4, 5, 6, 3, 7])
        halves = [unrotated[:, :, part] for part in (slice(0, 5), slice(5, 10))]
        usual = [
            mx.fast.rope(half[..., pairs], 6, traditional=False, base=10000.0, scale=1.0, offset=0) for half in halves
        ]
        assert mx.allclose(ours[..., pairs], mx.concatenate(usual, axis=2), rtol=0, atol=1e-5)


def test_weights_follow_from_configuration_and_seed() -> None:
    one, same, other = (dict(list_weights(tiny_model(seed))) for seed in (1, 1, 2))
    assert all(mx.array_equal(one[name], same[name]) for name in one)
    assert not mx.array_equal(one["generator.head.weight"], other["generator.head.weight"])
    assert tiny_model().training is False


def test_tied_layers_are_one_block() -> None:
    assert len(tiny_model(0, GRID).generator.blocks) == 1
    names = [name for name, _ in list_weights(tiny_model(0, GRID)) if ".blocks." in name]
    assert {name.split(".")[2] for name in names} == {"0"}


def test_the_weights_type_is_the_configuration_s() -> None:
    model = tiny_model(dtype="float16")
    assert {array.dtype for _, array in list_weights(model)} == {mx.float16}
