"""Soft labels: what is likeliest at every token, found exactly, kept beside the examples and read back by example."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from runtime.distillation import FrequentTokens, load_manifest
from runtime.distillation.examples import read_examples
from runtime.distillation.labels import LABELS, Labels, find_likeliest, read_labels
from telemetry.errors import RoundscopeError
from tests.runtime.distillation.test_teacher import SETTINGS, TARGET, write


@pytest.mark.parametrize("shape", [(3, 64), (2, 1280), (5, 2048)])
def test_the_likeliest_ids_are_found_with_their_share_of_everything(shape):
    logits = np.random.default_rng(0).normal(size=shape).astype(np.float32) * 3
    ids, p = find_likeliest(logits, 7)
    wanted = np.argsort(-logits, axis=1)[:, :7]
    exact = np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True)
    assert ids.tolist() == wanted.tolist()
    assert p == pytest.approx(np.take_along_axis(exact, wanted, axis=1), rel=1e-5)


@pytest.mark.parametrize("top", [5, 64])
def test_every_token_has_the_targets_distribution_where_it_was_written(tmp_path, top):
    manifest = write(tmp_path, SETTINGS.__class__(tokens=100, max_tokens=12, sampled=0.5, batch=8, top=top))
    examples = list(read_examples(tmp_path))
    labels = read_labels(tmp_path, examples, top)
    assert set(manifest.files) == {"examples.ndjson", LABELS}
    assert any(example.temperature for example in examples)
    for example, held in zip(examples, labels, strict=True):
        whole = [*example.prompt, *example.output]
        logits = TARGET.forward(mx.array([whole[:-1]]), TARGET.make_cache())[0, len(example.prompt) - 1 :]
        p = np.array(mx.softmax(logits, axis=-1))
        assert held.p == pytest.approx(np.take_along_axis(p, held.ids, axis=1), rel=2e-3)
        assert held.p == pytest.approx(-np.sort(-p, axis=1)[:, :top], rel=2e-3)
        if not example.temperature:
            assert held.ids[:, 0].tolist() == example.output


@pytest.mark.parametrize(("kept_examples", "kept_labels"), [(700, -1), (-1, 1000), (1, 0), (-1, -1), (2500, 2500)])
def test_an_interrupted_run_goes_on_to_the_same_labels(tmp_path, kept_examples, kept_labels):
    whole = write(tmp_path / "whole")
    names = {"examples.ndjson": kept_examples, LABELS: kept_labels}
    contents = {name: (tmp_path / "whole" / name).read_bytes() for name in names}
    (tmp_path / "cut").mkdir()
    for name, kept in names.items():
        (tmp_path / "cut" / name).write_bytes(contents[name][:kept])
    (tmp_path / "cut" / "manifest.json").write_bytes((tmp_path / "whole" / "manifest.json").read_bytes())
    assert write(tmp_path / "cut", resume=True).digest == whole.digest
    assert {name: (tmp_path / "cut" / name).read_bytes() for name in names} == contents
    assert load_manifest(tmp_path / "cut").files == whole.files


def test_none_are_kept_where_none_are_asked_for(tmp_path):
    manifest = write(tmp_path, SETTINGS.__class__(tokens=100, max_tokens=12, batch=8, top=0))
    assert set(manifest.files) == {"examples.ndjson"}
    assert not (tmp_path / LABELS).exists()


def test_labels_that_are_too_few_are_refused(tmp_path):
    write(tmp_path)
    (tmp_path / LABELS).write_bytes((tmp_path / LABELS).read_bytes()[:500])
    with pytest.raises(RoundscopeError, match=r"labels.bin has 6 rows for \d+ tokens"):
        read_labels(tmp_path, list(read_examples(tmp_path)), SETTINGS.top)


def test_at_another_temperature_they_are_what_sampling_draws_from():
    held = Labels(np.array([[4, 2, 9]], np.int32), np.array([[0.6, 0.3, 0.1]], np.float32))
    raised = np.array([0.6, 0.3, 0.1]) ** 2
    assert held.heat(0.5).p == pytest.approx((raised / raised.sum())[None], rel=1e-6)


def test_what_a_drafter_cannot_say_has_no_probability():
    held = Labels(np.array([[4, 2], [3, 4]], np.int32), np.array([[0.6, 0.3], [0.5, 0.5]], np.float32))
    limited = held.limit(FrequentTokens([9, 4], 12))
    assert limited.ids.tolist() == [[1, 0], [0, 1]]
    assert limited.p == pytest.approx(np.array([[0.6, 0], [0, 0.5]]))
