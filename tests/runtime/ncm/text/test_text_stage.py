"""The text model's training: the codes it is asked for, and that it learns."""

from __future__ import annotations

import mlx.core as mx
import msgspec
import numpy as np
from mlx import nn

from runtime.distillation import Example
from runtime.ncm.text.blocks import Blocks, BlockSource
from runtime.ncm.text.evaluation import count_rounds, find_right, measure_agreement
from runtime.ncm.text.model import predict_block
from runtime.ncm.text.recipe import TextRecipe
from runtime.ncm.text.stage import TextAlignmentStage, TextStage, walk_codes
from runtime.ncm.training.loop import Trainer
from runtime.ncm.training.stages import make_targets
from runtime.ncm.training.teacher import forward_states
from tests.runtime.ncm.text.tiny_text import make_text_model

TEXT = [7, 3, 5, 2, 4, 6, 7, 7, 2, 3, 6, 5, 4, 2, 2, 6]
RECIPE = TextRecipe(generator_batch=8, warm_up=5, generator_steps=160, generator_rate=1e-2, weight_decay=0.0)


def _source(model, text=TEXT):
    example = Example(document="d", split="train", prompt=[7, 6, 5, 4], output=text, temperature=0.0)
    blocks = Blocks([example], model.tokens, model.config)
    return blocks, BlockSource(blocks)


def test_right_codes_are_the_codecs() -> None:
    model = make_text_model(1)
    batch = _source(model)[0].take(slice(None))
    windows, blocks = mx.array(batch.windows), mx.array(batch.blocks)
    nobody = mx.zeros(len(batch.windows), mx.bool_)
    codes, inputs = walk_codes(model, windows, blocks, nobody, nobody, mx.random.key(0))
    wanted, wanted_inputs = make_targets(model.codec, blocks, 0.0, mx.random.key(0))
    assert [each.tolist() for each in codes] == [each.tolist() for each in wanted]
    assert [each.tolist() for each in inputs] == [each.tolist() for each in wanted_inputs]


def test_own_codes_are_what_a_drafter_goes_on_from() -> None:
    model = make_text_model(2, sharp=2.0)
    batch = _source(model)[0].take(slice(None))
    windows, blocks = mx.array(batch.windows), mx.array(batch.blocks)
    everybody = mx.ones(len(batch.windows), mx.bool_)
    _, inputs = walk_codes(model, windows, blocks, everybody, ~everybody, mx.random.key(0))
    partial, n = model.codec.start(len(blocks)), 0

    def choose(level, logits):
        nonlocal partial, n
        assert mx.allclose(model.codec.make_input(level, partial), inputs[level], atol=1e-5)
        codes = mx.argmax(logits, axis=-1)
        partial, n = model.codec.add_level(level, partial, codes), n + 1
        return codes

    predict_block(model, batch.windows.tolist(), 3, choose)
    assert n == 2
    assert mx.allclose(model.codec.make_input(2, partial), inputs[2], atol=1e-5)


def test_it_learns_a_text_by_heart_and_leaves_the_codec_alone() -> None:
    model = make_text_model(0, width=32)
    blocks, source = _source(model)
    stage = TextStage(model, source, RECIPE)
    before = model.codec.decode_out.weight.tolist()

    class Quiet:
        def add(self, step, loss):
            pass

    batch = blocks.take(slice(None))
    assert measure_agreement(find_right(model, batch), batch)["accepted"] < 1
    model.train()
    Trainer(stage, RECIPE).run(Quiet(), lambda: None, 1000)
    model.eval()
    right = find_right(model, batch)
    found = measure_agreement(right, batch)
    assert model.codec.decode_out.weight.tolist() == before
    assert found["survival"][0] > 0.9
    assert found["survival"] == sorted(found["survival"], reverse=True)
    rounds = count_rounds(right, blocks, 3)
    assert rounds["rounds"] <= len(TEXT) / 2
    assert rounds["accepted_a_round"] > 1


def test_tokens_that_cannot_be_said_weigh_nothing() -> None:
    model = make_text_model(1)
    stage = TextStage(model, _source(model, [7, 1, 5, 0, 4])[1], RECIPE)
    windows, ids, p, *levels = stage.draw(0, np.random.default_rng(0))
    assert (p.max(), p.min()) == (1, 0)
    loss = stage.measure(windows, ids, p, *levels)[0]
    other = mx.where(p > 0, ids, 5 - ids)
    assert mx.allclose(stage.measure(windows, other, p, *levels)[0], loss)
    gradients = nn.value_and_grad(model, stage.measure)(windows, ids, p, *levels)[1]
    assert "codebook" not in gradients.get("codec", {})


def test_tokens_count_by_position_and_codes_by_their_weight() -> None:
    model = make_text_model(1)
    windows, ids, p, *levels = TextStage(model, _source(model)[1], RECIPE).draw(0, np.random.default_rng(0))
    states = forward_states(model.generator, levels[:3], windows, model.config.n_layers)
    logits = np.array(model.decoder(model.generator.final_norm(states[-1][-1])), np.float64)
    q = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    said, weights = np.take_along_axis(q, np.array(ids), axis=-1), 0.7 ** np.arange(3)[None, :, None]
    mass = np.array(p) * weights
    tokens = -(np.log(said) * mass).sum() / mass.sum()
    recipe = msgspec.structs.replace(RECIPE, code_weight=0.0)
    agreement = TextStage(model, _source(model)[1], recipe).measure(windows, ids, p, *levels)[0]
    assert np.allclose(float(agreement), tokens, atol=1e-5)
    cooled = np.exp(logits / 0.5) / np.exp(logits / 0.5).sum(axis=-1, keepdims=True)
    overlap = np.minimum(np.take_along_axis(cooled, np.array(ids), axis=-1), np.array(p)).sum(axis=-1)
    counted = (np.array(p).sum(axis=-1) > 0) * weights[..., 0]
    alignment = TextAlignmentStage(model, _source(model)[1], recipe, 0.5).measure(windows, ids, p, *levels)[0]
    assert np.allclose(float(alignment), 1 - (overlap * counted).sum() / counted.sum(), atol=1e-5)


def test_steps_for_alignment_lower_it() -> None:
    model = make_text_model(0, width=32)
    recipe = msgspec.structs.replace(RECIPE, alignment_steps=30, alignment_rate=1e-2)
    losses: list[float] = []

    class Keep:
        def add(self, step, loss):
            losses.append(float(loss))

    stage = TextAlignmentStage(model, _source(model)[1], recipe, 0.7)
    Trainer(stage, recipe).run(Keep(), lambda: None, 1000)
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
