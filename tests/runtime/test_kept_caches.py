"""Caches kept over the turns of a chat: warm equals cold, and what is not there is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.caches import KeptCache
from runtime.generate import decode, speculate
from runtime.generation import Generation
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord
from tests.runtime.scripted import KeepingDrafter, counting, drain_checked, expect, guessing, hashed, rows

VOCABULARY = 60
SCRIPT = hashed(21, VOCABULARY, 3)


def _target(script: Callable[[Sequence[int]], int] = SCRIPT, **options: Any) -> ScriptedTarget:
    return ScriptedTarget(script, vocab_size=VOCABULARY, **options)


def _ask(way: str, target: ScriptedTarget, prompt: list[int], cache: KeptCache | None, **options: Any) -> Generation:
    if way.startswith("decode"):
        return decode(target, prompt, cache=cache, pipelined=way == "decode", **options)
    drafter = KeepingDrafter(guessing(SCRIPT, VOCABULARY, percent=70))
    return speculate(target, drafter, prompt, draft_length=4, cache=cache, **options)


WAYS = ["speculate", "decode", "decode unpipelined"]


@settings(max_examples=60)
@given(
    ways=st.lists(st.sampled_from(WAYS), min_size=3, max_size=3),
    limits=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    inputs=st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=5), min_size=3, max_size=3),
    eos=st.frozensets(st.integers(0, VOCABULARY - 1), max_size=12),
)
def test_three_turns_are_warm_what_they_are_cold(
    ways: list[str], limits: list[int], inputs: list[list[int]], eos: frozenset[int]
) -> None:
    """mlx-lm, LiteRT-LM#3439: whatever a turn ended on, the next one finds its last token missing and computes it."""
    target, cache = _target(eos=eos), None
    history = [1]
    for way, limit, said in zip(ways, limits, inputs, strict=True):
        history += said
        recorder = Recorder()
        held = 0 if cache is None else cache.length
        generation = _ask(way, target, history, cache, max_tokens=limit, recorder=recorder)
        drain_checked(generation, history, draft_length=4 * (way == "speculate"))
        [record] = rows(recorder.records, GenerationRecord)
        assert (record.cached_tokens, record.prompt_tokens) == (held, len(history))
        assert generation.tokens == expect(SCRIPT, history, max_tokens=limit, eos=eos).tokens
        history += generation.tokens
        cache = generation.cache


@pytest.mark.parametrize(
    ("ending", "outcome", "options"),
    [
        ("correction", "correction", {"max_tokens": 40, "eos": [12]}),
        ("bonus", "bonus", {"max_tokens": 40, "eos": [10]}),
        ("accepted", "stop", {"max_tokens": 40, "eos": [7]}),
        ("string", "stop", {"max_tokens": 40, "stop": ["gh"]}),
        ("length", "bonus", {"max_tokens": 7}),
    ],
)
@pytest.mark.parametrize("next_way", WAYS)
def test_the_last_token_of_a_turn_is_not_in_the_cache(
    ending: str, outcome: str, options: dict[str, Any], next_way: str
) -> None:
    """Only it and the new turn are computed by the next one, whichever way that decodes."""
    target = _target(counting(VOCABULARY))

    def right_up_to_ten(history: Sequence[int], m: int) -> list[int]:
        return [token if token < 11 else 0 for token in range(history[-1] + 1, history[-1] + 1 + m)]

    first = speculate(target, ScriptedDrafter(right_up_to_ten), [0], draft_length=4, **options)
    rounds = drain_checked(first, [0], draft_length=4)
    assert rounds[-1].outcome == outcome, ending
    history = [0, *first.tokens, 3]
    target.widths.clear()
    second = _ask(next_way, target, history, first.cache, max_tokens=5)
    next(second)
    assert target.widths[0] == 1
    second.drain()
    assert second.tokens == expect(counting(VOCABULARY), history, max_tokens=5).tokens


@pytest.mark.parametrize("way", WAYS)
def test_a_turn_that_differs_in_the_middle(way: str) -> None:
    """A re-tokenised history is trimmed to the common prefix, and only the rest is computed."""
    target = _target()
    first = _ask("speculate", target, [1, 2, 3], None, max_tokens=9).drain()
    changed = [1, 2, 3, *first.tokens[:4], (first.tokens[4] + 1) % VOCABULARY, 5, 6]
    target.widths.clear()
    recorder = Recorder()
    second = _ask(way, target, changed, first.cache, max_tokens=7, recorder=recorder)
    drain_checked(second, changed, draft_length=4)
    assert target.widths[0] == len(changed) - 1 - 7
    assert rows(recorder.records, GenerationRecord)[0].cached_tokens == 7
    assert second.tokens == expect(SCRIPT, changed, max_tokens=7).tokens


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_a_prompt_that_is_wholly_in_the_cache(way: str, length: int) -> None:
    """mlx-lm: the last token is computed again, instead of a shape error from inside."""
    target = _target()
    first = _ask("decode", target, [1, 2, 3], None, max_tokens=6).drain()
    prompt = [1, 2, 3, *first.tokens][:length]
    second = _ask(way, target, prompt, first.cache, max_tokens=5)
    drain_checked(second, prompt, draft_length=4)
    assert second.tokens == expect(SCRIPT, prompt, max_tokens=5).tokens


@pytest.mark.parametrize("way", WAYS)
def test_a_cancelled_turn_can_be_continued(way: str) -> None:
    target = _target()
    with _ask(way, target, [1, 2, 3], None, max_tokens=30) as first:
        for _ in range(3):
            next(first)
    history = [1, 2, 3, *first.tokens]
    target.widths.clear()
    second = _ask("decode unpipelined", target, history, first.cache, max_tokens=4)
    drain_checked(second, history)
    assert target.widths == [1] * 4
    assert first.tokens + second.tokens == expect(SCRIPT, [1, 2, 3], max_tokens=len(history) + 1).tokens


def test_a_cache_that_cannot_be_trimmed_is_kept_only_as_a_whole() -> None:
    target = _target(cache="untrimmable")
    first = decode(target, [1, 2, 3], max_tokens=6)
    drain_checked(first, [1, 2, 3])
    history = [1, 2, 3, *first.tokens, 4]
    target.widths.clear()
    second = decode(target, history, max_tokens=3, cache=first.cache)
    drain_checked(second, history)
    assert target.widths == [1, 1, 1, 1]
    assert second.tokens == expect(SCRIPT, history, max_tokens=3).tokens
    target.widths.clear()
    third = decode(target, [1, 2, 9, 9], max_tokens=3, cache=second.cache)
    drain_checked(third, [1, 2, 9, 9])
    assert target.widths == [3, 1, 1, 1]
    assert third.tokens == expect(SCRIPT, [1, 2, 9, 9], max_tokens=3).tokens


def test_a_long_prompt_is_filled_in_chunks_of_all_but_its_last_token() -> None:
    """mlx-lm#1109: exactly one token is left out, cold and warm."""
    prompt = [draw % VOCABULARY for draw in range(4100)]
    target = ScriptedTarget(lambda history: history[-1], vocab_size=VOCABULARY)
    generation = decode(target, prompt, max_tokens=1, pipelined=False)
    drain_checked(generation, prompt)
    assert target.widths == [2048, 2048, 3, 1]


def test_caches_that_are_not_to_be_had() -> None:
    target, other = _target(), _target()
    open_generation = decode(target, [1, 2], max_tokens=5)
    with pytest.raises(ValueError, match="in use by a generation that is not finished"):
        decode(target, [1, 2], max_tokens=5, cache=open_generation.cache)
    next(open_generation)
    with pytest.raises(ValueError, match="in use by a generation that is not finished"):
        speculate(target, ScriptedDrafter(counting), [1], draft_length=1, max_tokens=5, cache=open_generation.cache)
    open_generation.drain()
    with pytest.raises(ValueError, match="belongs to another target"):
        decode(other, [1, 2], max_tokens=5, cache=open_generation.cache)
    assert decode(target, [1, 2], max_tokens=2, cache=open_generation.cache).drain().finish_reason == "length"


@pytest.mark.parametrize("bad", [{"prompt": []}, {"max_tokens": 0}, {"temperature": -1.0}, {"prompt": [99]}])
def test_a_refused_call_leaves_the_cache_as_it_was(bad: dict[str, Any]) -> None:
    target = _target()
    first = decode(target, [1, 2], max_tokens=5).drain()
    held = list(first.cache.tokens)
    with pytest.raises(ValueError, match=r".+"):
        decode(target, **{"prompt": [1], "max_tokens": 5, "cache": first.cache, **bad})
    assert (first.cache.tokens, first.cache.in_use) == (held, False)
    first.cache.check_integrity()


def test_a_trim_to_the_common_prefix_that_does_less_than_asked() -> None:
    """Refused by the call itself; the cache then counts as damaged and is free."""
    target = _target(counting(VOCABULARY), cache="sluggish")
    first = decode(target, [1, 2], max_tokens=5, pipelined=False).drain()
    with pytest.raises(Exception, match="removed 4 of 5 positions"):
        decode(target, [1, 9], max_tokens=5, cache=first.cache)
    assert not first.cache.in_use
    with pytest.raises(ValueError, match="damaged"):
        decode(target, [1, 2, 3], max_tokens=5, cache=first.cache)
