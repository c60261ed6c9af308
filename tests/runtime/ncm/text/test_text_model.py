"""The text model's block: K forwards over a prefix that is processed once, and what each decoder reads."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.ncm.model import Generator
from runtime.ncm.prefix_cache import PrefixCache, StalePrefix
from runtime.ncm.text.embeddings import project, read_embeddings
from runtime.ncm.text.model import TextModel, fit_config, parse_decoder, predict_block, take_likeliest
from runtime.testing import ScriptedTarget
from telemetry.errors import Unsupported, UsageError
from tests.models import tiny_llama
from tests.runtime.ncm.text.tiny_text import SHAPE, make_text_model, make_tokens

WINDOWS = [[7, 7, 6, 2], [0, 1, 2, 3]]


def _predict_uncached(model: TextModel, windows: list[list[int]], decoder: str) -> tuple[Any, list[Any]]:
    """The same by processing the prefix again at every level, without a store."""
    codec, generator, prefix = model.codec, model.generator, mx.array(windows)
    partial, codes, states = codec.start(len(windows)), [], prefix
    for level in range(model.config.n_levels):
        states = generator.forward_states(level, codec.make_input(level, partial), prefix)
        codes.append(mx.argmax(generator.predict(states), axis=-1))
        partial = codec.add_level(level, partial, codes[-1])
    logits = codec.decode(partial) if decoder == "codec" else model.decoder(generator.final_norm(states))
    return logits, codes


@pytest.mark.parametrize("decoder", ["context", "codec"])
def test_a_block_is_what_full_forwards_say(decoder: Any) -> None:
    model = make_text_model(3, sharp=3.0)
    wanted, _ = _predict_uncached(model, WINDOWS, decoder)
    for m in (1, 2, 3):
        found = predict_block(model, WINDOWS, m, take_likeliest, decoder)
        assert found.shape == (2, m, 6)
        assert np.allclose(np.array(found), np.array(wanted[:, :m]), atol=1e-5)


def test_the_prefix_is_processed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given_at, levels = make_text_model(), [], []
    forward, close = Generator.forward_states, PrefixCache.close

    def watch(self: Generator, level: int, inputs: Any, conditioning: Any, *rest: Any) -> Any:
        levels.append(level)
        given_at.extend([level] if conditioning is not None else [])
        return forward(self, level, inputs, conditioning, *rest)

    closed = []
    monkeypatch.setattr(Generator, "forward_states", watch)
    monkeypatch.setattr(PrefixCache, "close", lambda self: (closed.append(self), close(self)))
    predict_block(model, WINDOWS, 3, take_likeliest)
    assert (levels, given_at, len(closed)) == ([0, 1, 2], [0], 1)
    with pytest.raises(StalePrefix):
        closed[0].check(model, 2)


def test_weights_that_change_between_levels_are_noticed() -> None:
    model = make_text_model()

    def change(level: int, logits: mx.array) -> mx.array:
        model.generator.head.weight = model.generator.head.weight * 1
        return take_likeliest(level, logits)

    with pytest.raises(StalePrefix, match="the weights are others"):
        predict_block(model, WINDOWS, 3, change)


@given(history=st.lists(st.integers(0, 7), max_size=9))
@settings(deadline=None)
def test_a_window_is_the_end_of_the_history(history: list[int]) -> None:
    """Left padding, and one id for all tokens that are not frequent: by the target's ids, token 7 is 0, 2 is 5."""
    model = make_text_model()
    known = [7 - token if token >= 2 else 6 for token in history]
    assert model.take_window(history) == ([7] * 4 + known)[-4:]


def test_shapes_that_do_not_fit_are_refused() -> None:
    config = fit_config(make_tokens(), SHAPE)
    assert (config.vocab, config.prefix_vocab) == (6, 8)
    with pytest.raises(UsageError, match="6 frequent tokens need vocab 6 and prefix_vocab 8, not 6 and 7"):
        TextModel(msgspec.structs.replace(config, prefix_vocab=7), make_tokens())
    with pytest.raises(UsageError, match="decoder must be one of context, codec, not 'words'"):
        parse_decoder("words")


def test_principal_components_keep_what_is_alike() -> None:
    rows = np.array(mx.random.normal((12, 5), key=mx.random.key(1)))
    found = project(rows, 7)
    assert found.shape == (12, 7)
    assert not found[:, 5:].any()
    centred = rows - rows.mean(axis=0)
    ratio = (found @ found.T) / (centred @ centred.T)
    assert np.allclose(ratio, ratio[0, 0], rtol=1e-3)  # five axes of five: all inner products, but for one scale
    assert np.isclose(np.sqrt((found[:, :5] ** 2).mean()), 7**-0.5)


def test_a_targets_embeddings_are_read() -> None:
    target = tiny_llama(1)
    table = target.model.model.embed_tokens.weight
    assert read_embeddings(target, np.array([3, 5], np.int32)).tolist() == table[mx.array([3, 5])].tolist()
    with pytest.raises(Unsupported, match="train with from_embeddings=0"):
        read_embeddings(ScriptedTarget(lambda history: 0, vocab_size=4), np.array([1], np.int32))
