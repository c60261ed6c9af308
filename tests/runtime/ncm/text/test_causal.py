"""The causal stage: what a position may see, and that it trains the generator's own layers."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from runtime.distillation import Example
from runtime.ncm.text.blocks import Blocks, BlockSource
from runtime.ncm.text.causal import CausalNetwork, CausalStage, copy_blocks
from runtime.ncm.text.recipe import TextRecipe
from tests.runtime.ncm.text.tiny_text import make_text_model

WINDOWS = [[7, 6, 2, 4], [0, 1, 2, 3]]


def test_a_position_sees_what_is_before_it() -> None:
    network = CausalNetwork(make_text_model(1))
    full = np.array(network(mx.array(WINDOWS)))
    for place in range(4):
        changed = np.array(WINDOWS)
        changed[:, place] = 5
        other = np.array(network(mx.array(changed)))
        same = [np.allclose(full[:, at], other[:, at], atol=1e-6) for at in range(4)]
        assert same == [at < place for at in range(4)]


def test_the_last_position_is_asked_for_the_blocks_first_token() -> None:
    model = make_text_model(1)
    example = Example(document="d", split="train", prompt=[7, 0], output=[5, 1, 4], temperature=0.0)
    blocks = Blocks([example], model.tokens, model.config)
    windows, ids, p = CausalStage(model, BlockSource(blocks), TextRecipe(generator_batch=50)).draw(
        0, np.random.default_rng(0)
    )
    # 7 and 6: padding and a token that is not frequent, which nothing is asked for, nor is token 1 of the block.
    rows = zip(windows.tolist(), ids[..., 0].tolist(), p[..., 0].astype(mx.bool_).tolist(), strict=True)
    seen = {tuple(map(tuple, row)) for row in rows}
    assert seen == {
        ((7, 7, 0, 6), (0, 0, 0, 2), (False, True, False, True)),
        ((7, 0, 6, 2), (0, 0, 2, 0), (True, False, True, False)),
        ((0, 6, 2, 6), (0, 2, 0, 3), (False, True, False, True)),
    }


def test_it_is_the_generators_own_layers() -> None:
    model = make_text_model(1, level_blocks=2)
    network = CausalNetwork(model)
    network.blocks[1].merge.weight = mx.zeros_like(network.blocks[1].merge.weight)
    assert not mx.any(model.generator.blocks[1].merge.weight)
    assert mx.any(model.generator.level_blocks[1].merge.weight)
    copy_blocks(model)
    for ours, theirs in zip(model.generator.level_blocks, model.generator.blocks, strict=True):
        assert mx.array_equal(ours.project.weight, theirs.project.weight)
        assert mx.array_equal(ours.merge.weight, theirs.merge.weight)
