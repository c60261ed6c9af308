"""Training of learned drafters on a small target: it learns, resumes exactly, and its checkpoint says everything."""

from __future__ import annotations

import json
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest

from runtime.distillation import Example, FrequentTokens, load_examples, load_manifest
from runtime.distillation.manifest import write_manifest
from runtime.drafters import make
from runtime.drafters.learned.checkpoints import find_checkpoint, read_checkpoint
from runtime.drafters.learned.drafters import Blocks, LearnedAssistant
from runtime.drafters.learned.evaluation import answer_embedded, measure_agreement, measure_alignment
from runtime.drafters.learned.network import list_weights, take_over_embeddings
from runtime.drafters.learned.recipe import RECIPES, LearnedRecipe, change_recipe
from runtime.drafters.learned.stage import LearnedStage, cut_row
from runtime.drafters.learned.trainers import TRAINERS, find_trainer, train
from runtime.ncm.text.checkpoints import read_text_model
from runtime.ncm.training import loop
from runtime.workloads import load_embedded
from telemetry.errors import RoundscopeError, Unsupported, UsageError
from tests.models import greedy
from tests.runtime.drafters.learned.tiny import distil, make_network, make_target, make_tokens

TARGET = make_target()
SMALL = {
    "vocab": "40",
    "width": "16",
    "heads": "2",
    "ffn": "24",
    "warm_up": "5",
    "steps": "60",
    "alignment_steps": "20",
    "rate": "0.01",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    distil(folder, TARGET)
    return folder


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    figures = {
        kind: train(kind, TARGET, data, folder / f"{kind}.safetensors", "the command", dict(SMALL))
        for kind in ("ar", "blocks")
    }
    return folder, figures


def make_examples(outputs, prompt=(1, 2, 3)):
    return [
        Example(document=str(i), split="train", prompt=list(prompt), output=list(output), temperature=0.0)
        for i, output in enumerate(outputs)
    ]


@pytest.mark.parametrize("kind", ["ar", "blocks"])
def test_it_learns_a_rule_and_agrees_by_position(kind):
    # Every answer counts on by threes in the subset: a rule a network of any shape can learn.
    tokens = make_tokens()
    outputs = [[63 - 3 * ((start + i) % 20) for i in range(12)] for start in range(20)]
    network = make_network(kind)
    recipe = LearnedRecipe(steps=150, batch=8, rate=0.01, warm_up=10, dropout=0.0)
    stage = LearnedStage(network, tokens, make_examples(outputs), recipe)
    drafter = (Blocks if kind == "blocks" else LearnedAssistant)(network, tokens)
    answers = [(outputs[i][:4], outputs[i][4:]) for i in range(5)]
    before = measure_agreement(drafter, answers)
    trainer = loop.Trainer(stage, recipe)
    trainer.run(loop.Progress(stage), lambda: None, 10**6)
    after = measure_agreement(drafter, answers)
    assert before["survival"][0] < 0.5 < 0.8 < min(after["survival"][: network.config.block])
    assert after["n_positions"] == 5 * 8


def test_labels_are_the_tokens_after_each_state_by_head_and_never_the_prompts():
    tokens, network = make_tokens(), make_network("blocks")
    [example] = make_examples([[63, 60, 0, 54, 51]], prompt=[1, 57, 48])
    stage = LearnedStage(network, tokens, [example], LearnedRecipe(dropout=0.0, batch=1))
    inputs, heads = stage.draw(0, np.random.default_rng(0))
    row = [1, 57, 48, *example.output]
    assert inputs.tolist() == [tokens.to_subset(row).tolist()]
    for head, (places, said, p) in enumerate(heads):
        found = sorted(zip(places.tolist(), tokens.to_target(said[:, 0].tolist()).tolist(), strict=True))
        assert p.tolist() == [[1.0]] * len(found)
        # From the last token of the prompt on; token 0 is outside the subset and nobody has to say it.
        assert found == [(at, row[at + 1 + head]) for at in range(2, 7 - head) if row[at + 1 + head] != 0]


def test_the_prompt_is_cut_to_its_end():
    [example] = make_examples([[63]], prompt=range(50))
    ids, first = cut_row(example, make_tokens(), 4)
    assert ids.tolist() == make_tokens().to_subset([46, 47, 48, 49, 63]).tolist()
    assert first == 4


def test_the_loss_is_the_mean_cross_entropy_of_the_labels():
    network, tokens = make_network("ar"), make_tokens()
    stage = LearnedStage(network, tokens, make_examples([[63, 60, 57]]), LearnedRecipe(dropout=0.0, batch=1))
    loss, _ = stage.measure(*stage.draw(0, np.random.default_rng(0)))
    logits = np.array(network.predict(network.walk(mx.array(tokens.to_subset([1, 2, 3, 63, 60]).tolist())[None])))[0]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert float(loss) == pytest.approx(-np.log([p[2, 0], p[3, 1], p[4, 2]]).mean(), abs=1e-5)


@pytest.mark.parametrize("kind", ["ar", "blocks"])
def test_a_checkpoint_is_read_back_and_says_how_it_was_made(kind, trained, data):
    folder, figures = trained
    found = read_checkpoint(folder / f"{kind}.safetensors", kind)
    manifest, header = load_manifest(data), found.header
    assert header["command"] == "the command"
    assert header["data_digest"] == manifest.digest
    assert json.loads(header["recipe"])["steps"] == 60
    assert json.loads(header["held_out"]) == figures[kind]
    curves = json.loads(header["curve"])
    assert {name: curve[-1][0] for name, curve in curves.items()} == {"agreement": 60, "alignment": 20}
    for curve in curves.values():
        assert all(first[0] < second[0] for first, second in pairwise(curve))
    assert curves["agreement"][-1][1] < curves["agreement"][0][1]
    always = FrequentTokens.choose(load_examples(data, "train"), 40, 64, TARGET.eos)
    assert found.tokens.ids.tolist() == always.ids.tolist()
    assert found.trained_for.target == TARGET.name
    drafter = make(f"{kind}:checkpoint={folder / f'{kind}.safetensors'}", TARGET)
    drafter.reset([1, 2, 3])
    assert len(drafter.propose([1, 2, 3], 2)) == 2


@pytest.mark.parametrize("kind", ["ar", "blocks"])
def test_an_interrupted_training_ends_with_the_same_weights(kind, trained, data, tmp_path, monkeypatch):
    folder, _ = trained
    out = tmp_path / f"{kind}.safetensors"
    original, calls = loop.Trainer._step, []

    def stop(self, progress):
        if len(calls) == 27:
            raise KeyboardInterrupt
        calls.append(1)
        original(self, progress)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_step", stop)
        with pytest.raises(KeyboardInterrupt):
            train(kind, TARGET, data, out, "c", dict(SMALL))
    with pytest.raises(UsageError, match="another configuration or recipe"):
        train(kind, TARGET, data, out, "c", SMALL | {"seed": "1"}, resume=True)
    train(kind, TARGET, data, out, "c", dict(SMALL), resume=True)
    assert not out.with_name(out.name + ".state").exists()
    one, other = (read_checkpoint(path, kind) for path in (out, folder / out.name))
    for (name, weight), (_, expected) in zip(list_weights(one.network), list_weights(other.network), strict=True):
        assert mx.array_equal(weight, expected), name
    assert json.loads(one.header["curve"]) == json.loads(other.header["curve"])
    with pytest.raises(UsageError, match="nothing to resume"):
        train(kind, TARGET, data, out, "c", dict(SMALL), resume=True)


@pytest.mark.parametrize("kind", ["ar", "blocks"])
def test_another_target_is_refused(kind, trained):
    path = trained[0] / f"{kind}.safetensors"
    with pytest.raises(Unsupported, match="vocabulary of 64"):
        make(f"{kind}:checkpoint={path}", make_target(vocab_size=60))
    with pytest.raises(Unsupported, match="this is tiny-llama-2"):
        make(f"{kind}:checkpoint={path}", make_target(2))
    other = make_target()
    other.tokenizer = type("Other", (), {"get_vocab": lambda self: {"a": 0}, "eos_token_ids": ()})()
    with pytest.raises(Unsupported, match="another tokenizer"):
        make(f"{kind}:checkpoint={path}", other)
    renamed = make_target()
    renamed.name = "renamed"
    assert make(f"{kind}:checkpoint={path}", renamed).name == kind


@pytest.mark.parametrize("kind", ["ar", "ncm"])
def test_data_without_labels_teach_their_tokens_alone(kind, tmp_path):
    manifest = distil(tmp_path / "data", TARGET, top=0)
    # As a folder says it that was written before there were labels.
    del manifest.settings["top"]
    write_manifest(tmp_path / "data", manifest)
    out = tmp_path / f"{kind}.safetensors"
    few = {"ar": SMALL | {"steps": "3"}, "ncm": {"codec_steps": "2", "causal_steps": "2", "generator_steps": "2"}}
    shape = {"n_tokens": "40", "width": "24", "ffn_width": "32", "codebook_size": "20", "lengths": "1-3"}
    train(kind, TARGET, tmp_path / "data", out, "c", few[kind] | (shape if kind == "ncm" else {}))
    found = read_checkpoint(out, kind).header if kind == "ar" else read_text_model(out).header
    assert list(json.loads(found["curve"])) == (["agreement"] if kind == "ar" else ["codec", "causal", "generator"])


def test_data_of_another_target_are_refused(data, tmp_path):
    with pytest.raises(Unsupported, match="is another"):
        train("ar", make_target(2), data, tmp_path / "ar.safetensors", "c", dict(SMALL))


def test_files_that_are_no_checkpoint_are_refused(trained, tmp_path):
    folder, _ = trained
    with pytest.raises(UsageError, match="there is no checkpoint"):
        make(f"ar:checkpoint={tmp_path / 'missing.safetensors'}", TARGET)
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    with pytest.raises(RoundscopeError, match="cannot be read"):
        make(f"ar:checkpoint={tmp_path / 'bad.safetensors'}", TARGET)
    mx.save_safetensors(str(tmp_path / "other.safetensors"), {"a": mx.zeros(2)}, {})
    with pytest.raises(RoundscopeError, match="no checkpoint of"):
        make(f"ar:checkpoint={tmp_path / 'other.safetensors'}", TARGET)
    with pytest.raises(UsageError, match="holds the drafter blocks"):
        make(f"ar:checkpoint={folder / 'blocks.safetensors'}", TARGET)


def test_alignment_is_one_less_total_variation():
    network, tokens = make_network("ar"), make_tokens()
    examples = make_examples([[5, 6, 7]])
    found = measure_alignment(LearnedAssistant(network, tokens), TARGET, examples, 0.7)
    expected = []
    for history in ([1, 2, 3], [1, 2, 3, 5], [1, 2, 3, 5, 6]):
        p = np.array(mx.softmax(TARGET.forward(mx.array([history]), TARGET.make_cache())[0, -1] / 0.7))
        q = np.zeros(64)
        ids = mx.array(tokens.to_subset(history).tolist())[None]
        q[tokens.ids] = np.array(mx.softmax(network.predict(network.walk(ids))[0, -1] / 0.7))
        expected.append(1 - np.abs(p - q).sum() / 2)
    assert found == {"histories": "greedy", "temperature": 0.7, "overlap": pytest.approx(np.mean(expected), abs=2e-4)}


def test_agreement_counts_what_was_still_to_come():
    class Fixed:
        name, prefix_consistent = "fixed", True

        def reset(self, prompt):
            self.length = len(prompt) - 1

        def propose(self, history, m):
            from runtime.protocols import Proposal

            return Proposal((5, 5))

        def commit(self, tokens):
            self.length += len(tokens)

        def rewind(self, length):
            self.length = length

    found = measure_agreement(Fixed(), [([1], [5, 5, 4, 5])])
    # Position 1 is right at 0, 1 and 3 of 4; two in a row only at 0, of the three places with two tokens to come.
    assert found["survival"] == [0.75, pytest.approx(1 / 3, abs=1e-4)]


def test_embeddings_are_taken_over_up_to_a_rotation():
    target, tokens = make_target(hidden=32), make_tokens()
    network = make_network("ar", width=32)
    assert take_over_embeddings(network, target, tokens)
    table = np.array(target.model.model.embed_tokens(mx.array(tokens.ids)))
    ours = np.array(network.trunk.embed_tokens.weight)[:-1]
    gram, expected = ours @ ours.T, (table - table.mean(0)) @ (table - table.mean(0)).T
    assert np.corrcoef(gram.ravel(), expected.ravel())[0, 1] > 0.999
    assert not np.array(network.trunk.embed_tokens.weight)[-1].any()


def test_recipes_take_known_fields_of_their_type():
    assert change_recipe("blocks", {"steps": "7", "rate": "0.5"}) == LearnedRecipe(
        block=RECIPES["blocks"].block, steps=7, rate=0.5
    )
    for wrong, message in (
        ({"stepz": "1"}, "no such field"),
        ({"steps": "x"}, "give numbers"),
        ({"steps": "1.5"}, "whole number"),
        ({"steps": "0"}, "at least 1"),
        ({"rate": "0"}, "above 0"),
        ({"alignment_steps": "-1"}, "must not be negative"),
        ({"dropout": "1"}, "below 1"),
    ):
        with pytest.raises(UsageError, match=message):
            change_recipe("ar", wrong)


def test_only_what_is_registered_can_be_trained():
    assert all(callable(find_trainer(name)) for name in TRAINERS)
    with pytest.raises(UsageError, match="there is no drafter 'suffix' to train"):
        find_trainer("suffix")


def test_the_embedded_workload_is_answered_greedily_by_class():
    target = make_target(max_positions=420)
    found = answer_embedded(target)
    items = [item for item in load_embedded().items if len(item.content) + 64 <= 420]
    assert {name: [prompt for prompt, _ in answers] for name, answers in found.items()} == {
        name: [target.encode(item.content) for item in items if item.class_ == name]
        for name in {item.class_ for item in items}
    }
    assert 0 < len(items) < 48
    prompt, answer = found["free-writing"][0]
    assert answer == greedy(target, prompt, 64)


def test_each_head_counts_half_of_the_one_before():
    network, tokens = make_network("blocks"), make_tokens()
    stage = LearnedStage(network, tokens, make_examples([[63, 60, 57]]), LearnedRecipe(dropout=0.0, batch=1))
    loss, _ = stage.measure(*stage.draw(0, np.random.default_rng(0)))
    states = network.walk(mx.array(tokens.to_subset([1, 2, 3, 63, 60]).tolist())[None])
    means = []
    for head in range(3):
        logits = np.array(network.predict(states, head))[0]
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        # Head j says the token j further from the states after tokens 3, 63 and 60: 63, 60, 57 are 0, 1, 2 there.
        means.append(-np.mean([np.log(p[2 + i, i + head]) for i in range(3 - head)]))
    assert float(loss) == pytest.approx((4 * means[0] + 2 * means[1] + means[2]) / 7, abs=1e-5)


@pytest.mark.parametrize("kind", ["ar", "blocks"])
def test_the_checkpoint_in_the_package_is_small_and_says_everything(kind):
    path = find_checkpoint(kind)
    assert path.stat().st_size < 12_000_000
    found = read_checkpoint(path, kind)
    header = {name: json.loads(found.header[name]) for name in ("recipe", "data", "curve", "held_out", "environment")}
    assert found.header["command"].split()[:3] == ["roundscope", "train-drafter", kind]
    assert header["data"]["target"] == found.trained_for.target == "SmolLM2-135M-Instruct"
    assert found.tokens.size == header["recipe"]["vocab"] == found.network.config.vocab
    assert set(header["held_out"]["agreement_embedded"]) == set(load_embedded().classes)
    assert header["held_out"]["agreement"]["survival"][0] > 0.2
    assert "/tmp" not in json.dumps(dict(found.header))
    assert "host" not in header["environment"]
