"""Cache lists that a caller of mlx-lm's entry points holds: used in place, and whole after every turn."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.compat import mlx_lm as ours
from runtime.targets import MlxTarget
from telemetry.errors import Unsupported, UsageError
from tests.architectures import ARCHITECTURES
from tests.models import tiny_llama
from tests.runtime.mlx_lm_calls import (
    CHARACTERS,
    PROMPT,
    SECOND,
    ask_mlx_lm,
    ask_ours,
    make_caches,
    make_qwen,
    make_tokenizer,
    tokens_of,
)


@pytest.fixture(scope="module")
def target() -> MlxTarget:
    return tiny_llama(1)


@pytest.fixture(scope="module")
def other() -> MlxTarget:
    return tiny_llama(7, layers=1)


@pytest.mark.parametrize("case", ["ordinary", "same", "other"])
def test_three_turns_on_one_cache_are_one_long_prompt(target, other, case):
    """After each turn every layer holds the prompt and all that was said, so the next prompt is only appended."""
    draft = {"ordinary": None, "same": target, "other": other}[case]
    tokenizer, cache, history = make_tokenizer(), make_caches(target, draft), []
    for turn, limit in enumerate((5, 6, 7)):
        prompt = [*SECOND, turn]
        options = {} if draft is None else {"draft_model": draft.model, "num_draft_tokens": 3}
        said = tokens_of(ask_ours(target, tokenizer, prompt, max_tokens=limit, prompt_cache=cache, **options))
        assert said == tokens_of(ask_mlx_lm(target, tokenizer, history + prompt, max_tokens=limit))
        history += prompt + said
        assert {layer.offset for layer in cache} == {len(history)}


@pytest.mark.parametrize("name", ["llama, sliding", "gemma3_text", "mamba2", "qwen3_next", "llama4"])
@pytest.mark.parametrize("drafting", [False, True])
def test_three_turns_on_a_cache_of_any_kind(name, drafting):
    """Windows, chunks and recurrent states, which mlx-lm's own speculation refuses or gets wrong."""
    target, tokenizer, history = ARCHITECTURES[name].build(1), make_tokenizer(), []
    cache = make_caches(target, target if drafting else None)
    options = {"draft_model": target.model, "num_draft_tokens": 3} if drafting else {}
    for turn, limit in enumerate((5, 6, 7)):
        prompt = [*SECOND, turn]
        said = tokens_of(ask_ours(target, tokenizer, prompt, max_tokens=limit, prompt_cache=cache, **options))
        assert said == tokens_of(ask_mlx_lm(target, tokenizer, history + prompt, max_tokens=limit))
        history += prompt + said


def test_what_a_recurrent_cache_cannot_give_back_is_said(capsys):
    target = ARCHITECTURES["mamba2"].build(1)
    options = {"draft_model": target.model, "num_draft_tokens": 6, "prompt_cache": make_caches(target, target)}
    stream = ours.stream_generate(target.model, make_tokenizer(), PROMPT, **options)
    next(stream)
    stream.close()
    said = capsys.readouterr().err
    assert "prompt_cache.ahead" in said
    assert "read every response, or drop the cache" in said


def test_a_cache_goes_back_and_forth_with_mlx_lm(target):
    tokenizer, cache, history = make_tokenizer(), make_caches(target), []
    for ask in (ask_mlx_lm, ask_ours, ask_mlx_lm, ask_ours):
        said = tokens_of(ask(target, tokenizer, SECOND, max_tokens=4, prompt_cache=cache))
        history += SECOND
        assert said == tokens_of(ask_mlx_lm(target, tokenizer, history, max_tokens=4))
        history += said


def test_an_end_of_text_is_in_the_cache_too(target):
    said = tokens_of(ask_mlx_lm(target, make_tokenizer(), PROMPT, max_tokens=12))
    tokenizer, cache = make_tokenizer(eos=CHARACTERS[said[4]]), make_caches(target, target)
    mine = ask_ours(target, tokenizer, PROMPT, draft_model=target.model, num_draft_tokens=8, prompt_cache=cache)
    assert {layer.offset for layer in cache} == {len(PROMPT) + len(mine)}


@pytest.mark.parametrize("drafting", [False, True])
def test_a_reader_who_leaves_finds_what_was_delivered_in_the_cache(target, drafting):
    tokenizer, cache = make_tokenizer(), make_caches(target, target if drafting else None)
    options = {"draft_model": target.model, "num_draft_tokens": 6} if drafting else {}
    stream = ours.stream_generate(target.model, tokenizer, PROMPT, prompt_cache=cache, **options)
    said = [next(stream).token for _ in range(3)]
    stream.close()
    assert {layer.offset for layer in cache} == {len(PROMPT) + 3}
    more = tokens_of(ask_ours(target, tokenizer, SECOND, max_tokens=5, prompt_cache=cache, **options))
    assert more == tokens_of(ask_mlx_lm(target, tokenizer, PROMPT + said + SECOND, max_tokens=5))


def test_quantised_layers_replace_those_in_the_callers_list():
    target, tokenizer = tiny_llama(3, hidden=256, heads=4, kv_heads=2), make_tokenizer()
    caches = [make_caches(target) for _ in range(2)]
    options = {"kv_bits": 8, "quantized_kv_start": 10}
    for limit in (5, 6):
        said = [
            tokens_of(ask(target, tokenizer, SECOND, max_tokens=limit, prompt_cache=cache, **options))
            for ask, cache in zip((ask_ours, ask_mlx_lm), caches, strict=True)
        ]
        assert said[0] == said[1]
    assert [type(layer).__name__ for layer in caches[0]] == ["QuantizedKVCache"] * 2
    assert {layer.offset for layer in caches[0]} == {2 * len(SECOND) + 11}


def test_processors_are_shown_the_history_from_this_prompt_on(target):
    seen: list[list[int]] = []

    def watch(tokens: Any, logits: Any) -> Any:
        seen.append(tokens.tolist())
        return logits

    tokenizer, cache = make_tokenizer(), make_caches(target, target)
    options = {"prompt_cache": cache, "draft_model": target.model, "logits_processors": [watch], "max_tokens": 4}
    ask_ours(target, tokenizer, PROMPT, **options)
    seen.clear()
    said = tokens_of(ask_ours(target, tokenizer, SECOND, **options))
    assert seen == [SECOND + said[:index] for index in range(4)]


def test_layers_are_counted_by_the_cache_list(target, other):
    for cache, draft, message in [
        (make_caches(target, other)[:2], other, "has 2 layers; give 2 layers of the model, then 1 of the draft model"),
        (make_caches(target, other), None, "has 3 layers; give 2 layers of the model, as make_prompt_cache makes them"),
    ]:
        with pytest.raises(UsageError, match=message):
            ask_ours(target, make_tokenizer(), PROMPT, prompt_cache=cache, draft_model=draft and draft.model)


def test_layers_that_disagree_are_refused(target):
    cache = make_caches(target, target)
    ask_mlx_lm(target, make_tokenizer(), PROMPT, max_tokens=3, prompt_cache=cache[:2])
    with pytest.raises(UsageError, match=r"do not agree: 11 tokens in KVCache and 0 tokens in KVCache"):
        ask_ours(target, make_tokenizer(), PROMPT, prompt_cache=cache, draft_model=target.model)


def test_a_window_that_keeps_its_beginning_cannot_verify():
    """mlx-lm masks a block by place: rows after the first would not see the entries that are kept for good."""
    from mlx_lm.models.cache import make_prompt_cache

    target = make_qwen(4)
    cache = make_prompt_cache(target.model, max_kv_size=8) + target.make_cache()
    with pytest.raises(Unsupported, match=r"neither trimmed nor restored: layer 0 \(RotatingKVCache, window of 8\)"):
        ours.stream_generate(target.model, make_tokenizer(), PROMPT, prompt_cache=cache, draft_model=target.model)
