"""Kept caches over turns: through a chat template, with a drafter that comes and goes; warm equals cold."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from runtime.caches import KeptCache
from runtime.drafters import make
from runtime.generate import decode, speculate
from telemetry.errors import Unsupported
from telemetry.recorder import Recorder
from tests.models import tiny_llama
from tests.runtime.recurrent import tiny_mamba
from tests.runtime.turns import MODELS, PROMPT, TARGETS, WAYS, ask, count_cached, drain

# A conversation through a chat template


class Letters:
    """A toy tokenizer of letters, with the pair `ab` as one token, and a template that strips what it is told.

    So an answer with `a` and `b`, or one that ends in a space, is other ids when the template has it tokenised again.
    """

    has_chat_template = True
    eos_token_ids: tuple[int, ...] = ()
    pieces = (*"abcdefghijklmnopqrstuvwxyz ", "ab", "<u>", "<a>")

    def get_vocab(self) -> dict[str, int]:
        return {piece: token for token, piece in enumerate(self.pieces)}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            piece = max((piece for piece in self.pieces if text.startswith(piece)), key=len)
            ids.append(self.pieces.index(piece))
            text = text[len(piece) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[token] for token in ids)

    def apply_chat_template(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool) -> list[int]:
        told = "".join(f"<{message['role'][0]}>{message['content'].strip()}" for message in messages)
        return self.encode(told + "<a>" * add_generation_prompt)


def count_shared(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def spell_out(prompt_length: int, at: int) -> Callable[[Any, Any], Any]:
    """A processor that has `a` and `b` said at the answer's position `at`, and nothing longer than a letter."""
    forced = {prompt_length + at: 0, prompt_length + at + 1: 1}

    def process(tokens: Any, logits: Any) -> Any:
        import mlx.core as mx

        said = forced.get(len(tokens))
        ids = mx.arange(logits.shape[-1])
        return mx.where(ids < 27 if said is None else ids == said, logits, -mx.inf)

    return process


@MODELS
@pytest.mark.parametrize("way", WAYS)
def test_a_conversation_that_is_tokenised_anew(model: str, way: str) -> None:
    """Each turn keeps the common prefix, or starts anew where nothing leads back to it; warm equals cold."""
    tokenizer = Letters()
    size = len(tokenizer.pieces)
    if model == "recurrent":
        target = tiny_mamba(vocab_size=size)
    else:
        target = tiny_llama(3, size, sliding_window=8 if model == "window" else None)
    target.tokenizer = tokenizer
    messages: list[dict[str, str]] = []
    cache, kept = None, []
    for turn, said in enumerate(("hello there", "and now", "xyz", "and then some more of it")):
        messages.append({"role": "user", "content": said})
        prompt = target.encode_chat(messages)
        if cache is not None:
            shared = count_shared(cache.tokens, prompt)
            assert shared < len(cache.tokens)
            kept.append(shared)
        recorder = Recorder()
        processors = [spell_out(len(prompt), 3 * turn)]
        generation = ask(way, target, prompt, 12, cache=cache, recorder=recorder, logits_processors=processors)
        assert drain(generation) == decode(target, prompt, max_tokens=12, logits_processors=processors).drain().tokens
        if cache is not None:
            assert count_cached(recorder) == {"llama": kept[-1], "recurrent": 0, "window": 0}[model]
        messages.append({"role": "assistant", "content": generation.text})
        cache = generation.cache
    assert len(kept) == 3


# Drafters that come, go and change


@MODELS
def test_a_drafter_is_attached_and_changed_between_turns(model: str) -> None:
    """Whoever drafts takes in the whole history, however little of it the target computes anew."""
    target, history, cache = TARGETS[model](), list(PROMPT), None
    kept = {"assistant": make("assistant", target, model=target), "suffix": make("suffix", target)}
    for way in ("decode", "assistant", "suffix", "decode", "assistant", "none", "suffix"):
        recorder = Recorder()
        options: dict[str, Any] = {"max_tokens": 9, "cache": cache, "recorder": recorder}
        if way == "decode":
            generation = decode(target, history, **options)
        else:
            generation = speculate(target, kept.get(way, "none"), history, draft_length=3, **options)
        assert drain(generation) == decode(target, history, max_tokens=9).drain().tokens
        assert bool(count_cached(recorder)) is (cache is not None)
        cache = generation.cache
        history = [*history, *generation.tokens, 7]


# Prompts that the cache covers


@MODELS
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cut", [0, 1, 2, 6, 15])
def test_a_prompt_that_the_cache_covers(model: str, way: str, cut: int) -> None:
    """Exactly the history so far, or less: its last token is computed again, and the rest where nothing leads back."""
    target = TARGETS[model]()
    first = decode(target, PROMPT, max_tokens=12)
    prompt = [*PROMPT, *drain(first)][: len(PROMPT) + 12 - cut]
    second = ask(way, target, prompt, 10, cache=first.cache)
    assert drain(second) == decode(target, prompt, max_tokens=10).drain().tokens


@pytest.mark.parametrize("way", WAYS)
def test_a_cache_that_holds_the_whole_history(way: str) -> None:
    """A pipelined end of text leaves the last token in a state that nothing can be taken out of."""
    for target in (tiny_mamba(), tiny_llama(1, sliding_window=8)):
        end = decode(target, PROMPT, max_tokens=9).drain().tokens[-1]
        first = decode(target, PROMPT, max_tokens=30, eos=[end])
        history = [*PROMPT, *drain(first)]
        assert (first.finish_reason, first.cache.tokens) == ("stop", history)
        for prompt in (history, [*history, 4], [*history, 4, 6, 8]):
            cache = copy_cache(first.cache)
            second = ask(way, target, prompt, 10, cache=cache)
            assert drain(second) == decode(target, prompt, max_tokens=10).drain().tokens


def copy_cache(cache: KeptCache) -> KeptCache:
    copied = KeptCache(cache.target)
    copied.adopt(copy.deepcopy(cache.layers), cache.tokens)
    return copied


@pytest.mark.parametrize("way", WAYS)
def test_positions_end_in_the_middle_of_a_conversation(way: str) -> None:
    """The output is limited to them; a prompt beyond them is refused, and the cache stays as it was."""
    target = tiny_llama(1, max_positions=24)
    first = ask(way, target, PROMPT, 100)
    assert (len(drain(first)), first.finish_reason) == (16, "length")
    full = [*PROMPT, *first.tokens]
    held = list(first.cache.tokens)
    for prompt in (full, [*full, 1]):
        with pytest.raises(Unsupported, match=f"the prompt has {len(prompt)} tokens, the target positions for 24"):
            ask(way, target, prompt, 1, cache=first.cache)
    assert (first.cache.tokens, first.cache.in_use) == (held, False)
    again = ask(way, target, full[:23], 5, cache=first.cache)
    assert drain(again) == full[23:]
