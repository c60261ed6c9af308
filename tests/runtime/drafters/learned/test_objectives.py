"""Both objectives against the distributions they are defined by, and that a step of each lowers it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from runtime.distillation import Example, Manifest
from runtime.distillation.labels import Labels
from runtime.drafters.learned.data import TrainingData
from runtime.drafters.learned.objectives import disagreement, misalignment
from runtime.drafters.learned.recipe import LearnedRecipe
from runtime.drafters.learned.stage import AlignmentStage, LearnedStage
from runtime.ncm.training.loop import Trainer
from tests.runtime.drafters.learned.tiny import make_network, make_tokens

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(5, 7)).astype(np.float32)
P = RNG.dirichlet(np.ones(7), size=5)
IDS = np.argsort(-P, axis=1).astype(np.int32)
SORTED = -np.sort(-P, axis=1)
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.0, 1.0])


def soften(logits, temperature=1.0):
    powers = np.exp(logits.astype(np.float64) / temperature)
    return powers / powers.sum(axis=1, keepdims=True)


def differentiate(loss, logits, step=1e-5):
    """Central differences in float64."""
    found = np.zeros(logits.shape)
    for at in np.ndindex(logits.shape):
        moved = np.zeros(logits.shape)
        moved[at] = step
        found[at] = (loss(logits + moved) - loss(logits - moved)) / (2 * step)
    return found


def cross_entropy(logits, p, weights):
    rows = -(p * np.log(soften(logits))).sum(axis=1)
    return (rows * weights).sum() / (p.sum(axis=1) * weights).sum()


def variation(logits, p, weights, temperature):
    return (np.abs(p - soften(logits, temperature)).sum(axis=1) / 2 * weights).sum() / weights.sum()


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_with_every_id_labelled_they_are_cross_entropy_and_total_variation(weights):
    given = None if weights is None else mx.array(weights.astype(np.float32))
    counted = np.ones(5) if weights is None else weights
    arrays = mx.array(IDS), mx.array(SORTED.astype(np.float32))
    for ours, exact in (
        (lambda x: disagreement(x, *arrays, given), lambda x: cross_entropy(x, P, counted)),
        (lambda x: misalignment(x, *arrays, 0.7, given), lambda x: variation(x, P, counted, 0.7)),
    ):
        loss, gradient = mx.value_and_grad(ours)(mx.array(LOGITS))
        assert float(loss) == pytest.approx(exact(LOGITS), abs=1e-5)
        assert np.array(gradient) == pytest.approx(differentiate(exact, LOGITS.astype(np.float64)), abs=1e-5)


def test_an_id_that_cannot_be_said_is_left_out_of_one_and_lost_in_the_other():
    ids, p = IDS[:, :3], SORTED[:, :3].copy()
    p[:, 0] = 0
    q = soften(LOGITS)
    said = np.take_along_axis(q, ids, axis=1)
    arrays = mx.array(LOGITS), mx.array(ids), mx.array(p.astype(np.float32))
    assert float(disagreement(*arrays)) == pytest.approx(-(p * np.log(said)).sum() / p.sum(), abs=1e-5)
    assert float(misalignment(*arrays, 1.0)) == pytest.approx(1 - np.minimum(p, said).sum(axis=1).mean(), abs=1e-5)


def test_a_known_token_alone_is_ordinary_cross_entropy():
    ids, p = mx.array(IDS[:, :1]), mx.ones((5, 1))
    picked = np.take_along_axis(soften(LOGITS), IDS[:, :1], axis=1)
    assert float(disagreement(mx.array(LOGITS), ids, p)) == pytest.approx(-np.log(picked).mean(), abs=1e-5)


MANIFEST = {
    "target": "t",
    "target_digest": "",
    "tokenizer_digest": "",
    "vocab_size": 64,
    "eos": [],
    "prompts": "",
    "prompts_digest": "",
    "python": None,
    "split_rule": "",
    "files": {},
    "n_examples": {},
    "n_tokens": {},
    "n_refused": 0,
    "seconds": 0.0,
    "complete": True,
}


class Losses:
    """Takes the losses of a trainer's steps."""

    def __init__(self):
        self.found = []

    def add(self, step, loss):
        self.found.append(float(loss))


@pytest.mark.parametrize("kind", ["ar", "blocks"])
@pytest.mark.parametrize("stage_type", [LearnedStage, AlignmentStage])
def test_steps_lower_the_objective(kind, stage_type):
    tokens, network = make_tokens(), make_network(kind)
    outputs = [[63 - 3 * ((start + i) % 20) for i in range(8)] for start in range(8)]
    examples = [
        Example(document=str(i), split="train", prompt=[1, 2], output=output, temperature=0.7)
        for i, output in enumerate(outputs)
    ]
    p = np.tile(np.array([0.6, 0.3, 0.1], np.float32), (8, 1))
    labels = [Labels(np.array([[token, 63, 0] for token in output], np.int32), p) for output in outputs]
    recipe = LearnedRecipe(
        steps=12, alignment_steps=12, batch=8, rate=0.01, alignment_rate=0.01, warm_up=1, dropout=0.0
    )
    more = (0.7,) if stage_type is AlignmentStage else ()
    losses = Losses()
    Trainer(stage_type(network, tokens, examples, recipe, labels, *more), recipe).run(losses, lambda: None, 100)
    assert losses.found[1] < losses.found[0]
    assert losses.found[-1] < 0.9 * losses.found[0]


def test_alignment_learns_what_sampling_draws_from_on_drawn_answers_alone():
    tokens, network = make_tokens(), make_network("ar")
    examples = [
        Example(document="a", split="train", prompt=[1], output=output, temperature=temperature)
        for output, temperature in (([51], 0.0), ([63, 60], 0.5))
    ]
    p = np.array([[0.8, 0.2], [0.6, 0.4]], np.float32)
    labels = [Labels(np.array([[57, 54], [60, 0]], np.int32), p) for _ in examples]
    labels[0] = Labels(labels[0].ids[:1], labels[0].p[:1])
    manifest = Manifest(**MANIFEST, settings={"temperature": 0.5})
    data = TrainingData(manifest, examples, labels, True, [], tokens)
    drawn, heated = data.take_drawn()
    assert (data.can_align, data.temperature, drawn) == (True, 0.5, examples[1:])
    stage = AlignmentStage(network, tokens, drawn, LearnedRecipe(dropout=0.0, batch=9), heated, 0.5)
    inputs, [(places, ids, probabilities)] = stage.draw(0, np.random.default_rng(0))
    assert inputs.tolist() == [tokens.to_subset([1, 63, 60]).tolist()]
    found = {at: (i, q) for at, i, q in zip(places.tolist(), ids.tolist(), probabilities.tolist(), strict=True)}
    raised = p.astype(np.float64) ** 2 / (p.astype(np.float64) ** 2).sum(axis=1, keepdims=True)
    # 57 and 54 are 2 and 3 of the subset, 60 is 1; token 0 cannot be said, so nothing is left of its probability.
    assert {at: i for at, (i, _) in found.items()} == {0: [2, 3], 1: [1, 0]}
    assert found[0][1] == pytest.approx(raised[0].tolist(), abs=1e-6)
    assert found[1][1] == pytest.approx([raised[1, 0], 0], abs=1e-6)
