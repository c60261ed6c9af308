"""What the calls refuse before anything runs, by name and with the cure, and what they take although it is odd."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.drafters.known import Wrong
from runtime.generate import decode, speculate
from runtime.protocols import Proposal
from runtime.targets import MlxTarget
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.errors import RoundscopeError, Unsupported, UsageError
from tests.models import tiny_llama
from tests.runtime.recurrent import tiny_mamba
from tests.runtime.scripted import always, counting, drain_checked, expect, guessing, hashed

CALLS = pytest.mark.parametrize("call", ["decode", "speculate"])


def _target(**options: Any) -> ScriptedTarget:
    return ScriptedTarget(counting(30), vocab_size=30, **options)


def _call(call: str, target: Any, prompt: Any = (1, 2), drafter: Any = None, **options: Any) -> Any:
    options = {"max_tokens": 5, **options}
    if call == "decode":
        return decode(target, prompt, **options)
    return speculate(target, drafter or ScriptedDrafter(always([1])), prompt, **{"draft_length": 2, **options})


@CALLS
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"max_tokens": 0}, UsageError, "max_tokens is 0; it must be 1 or more"),
        ({"max_tokens": -1}, UsageError, "max_tokens is -1; it must be 1 or more"),
        ({"prompt": []}, UsageError, "the prompt is empty; pass at least one token"),
        ({"prompt": ""}, UsageError, "the prompt is empty; pass at least one token"),
        ({"prompt": [1, -1]}, UsageError, "prompt token -1 at position 1 is not in the target's vocabulary of 30"),
        ({"prompt": [30]}, UsageError, "prompt token 30 at position 0 is not in the target's vocabulary of 30"),
        ({"temperature": -0.5}, UsageError, r"temperature is -0.5; it must be 0 \(greedy decoding\) or a number"),
        ({"temperature": float("nan")}, UsageError, "temperature is nan"),
        ({"temperature": 1.0, "top_k": -1}, UsageError, "top_k is -1; it must be a whole number, 0"),
        ({"temperature": 1.0, "top_k": 2.5}, UsageError, "top_k is 2.5; it must be a whole number, 0"),
        ({"temperature": 1.0, "top_p": 0.0}, UsageError, "top_p is 0.0; it must be above 0 and at most 1"),
        ({"temperature": 1.0, "top_p": 1.5}, UsageError, "top_p is 1.5; it must be above 0 and at most 1"),
        ({"temperature": 1.0, "min_p": 1.5}, UsageError, r"min_p is 1.5; it must be from 0 \(every token\) to 1"),
        ({"temperature": 1.0, "seed": -1}, UsageError, "seed is -1; it must be a whole number from 0"),
        ({"temperature": 1.0, "seed": 2**63}, UsageError, "seed is 9223372036854775808; it must be a whole number"),
        ({"top_k": 5, "seed": 1}, UsageError, "top_k, seed would have no effect: temperature 0 always takes"),
        ({"top_p": 0.5}, UsageError, "top_p would have no effect: temperature 0 always takes the likeliest token"),
        ({"min_p": 0.5}, UsageError, "min_p would have no effect"),
        ({"kv_bits": 5}, UsageError, "kv_bits is 5; it must be one of 2, 3, 4, 6, 8"),
        ({"kv_bits": 8, "quantized_kv_start": -1}, UsageError, "quantized_kv_start is -1; it must be 0 or more"),
        ({"kv_bits": 8}, Unsupported, r"kv_bits is refused: layer 0 \(ScriptedLayer\) cannot be quantised"),
        ({"eos": [30]}, UsageError, "stop id 30 is not in the target's vocabulary of 30"),
    ],
)
def test_arguments_that_cannot_be_done_right(
    call: str, options: dict[str, Any], kind: type[RoundscopeError], message: str
) -> None:
    """vllm#18902: every option acts or is refused by name; a ValueError with a cause, never an error from inside."""
    target = _target()
    with pytest.raises(ValueError, match=message) as caught:
        _call(call, target, **options)
    assert type(caught.value) is kind
    assert target.widths == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_length": -1}, "draft_length is -1; it must be 0 or more"),
        ({"timing": "wall"}, "timing is 'wall'; it must be one of fused, attributed"),
        ({"coupling": "loose", "temperature": 1.0}, "coupling is 'loose'; it must be one of residual, equality"),
        ({"coupling": "equality"}, "coupling='equality' would have no effect at temperature 0"),
    ],
)
def test_arguments_of_speculation_alone(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _call("speculate", _target(), **options)


@CALLS
def test_an_option_that_does_not_exist_is_refused(call: str) -> None:
    with pytest.raises(TypeError, match="top_n"):
        _call(call, _target(), top_n=9)


@CALLS
def test_a_prompt_beyond_the_targets_positions(call: str) -> None:
    target = _target(max_positions=8)
    with pytest.raises(Unsupported, match="the prompt has 9 tokens, the target positions for 8; shorten the prompt"):
        _call(call, target, [1] * 9)
    assert target.widths == []


@CALLS
def test_the_targets_positions_limit_the_output(call: str) -> None:
    target = _target(max_positions=8)
    generation = _call(call, target, [1, 2, 3], max_tokens=100).drain()
    assert (generation.tokens, generation.finish_reason) == ([4, 5, 6, 7, 8], "length")
    assert generation.cache.length + 1 == 8


def test_speculation_on_a_cache_that_cannot_be_trimmed() -> None:
    target = _target(cache="untrimmable")
    with pytest.raises(Unsupported, match=r"can be neither trimmed nor restored: layer 0 \(ScriptedLayer\), layer 1"):
        _call("speculate", target)
    assert target.widths == []


def test_ordinary_decoding_on_a_cache_that_cannot_be_trimmed() -> None:
    """A step ahead, as any other; what is in flight at the end stays in the cache, which says so."""
    script = hashed(9, 30, 3)
    target = ScriptedTarget(script, vocab_size=30, cache="untrimmable")
    generation = decode(target, [1, 2], max_tokens=12, pipelined=True)
    rounds = drain_checked(generation, [1, 2])
    assert generation.tokens == expect(script, [1, 2], max_tokens=12).tokens
    assert [entry.cache_length for entry in rounds] == [*range(3, 14), 13]
    with decode(target, [1, 2], max_tokens=12) as cut_short:
        next(cut_short)
    assert cut_short.cache.tokens == [1, 2, *cut_short.tokens]
    cut_short.cache.check_integrity()


def test_a_kept_cache_refused_for_speculation_is_free_for_decoding() -> None:
    target = _target(cache="untrimmable")
    first = decode(target, [1, 2], max_tokens=3).drain()
    with pytest.raises(Unsupported, match="neither trimmed nor restored"):
        _call("speculate", target, [1, 2, 3, 4], cache=first.cache)
    assert decode(target, [1, 2, 3, 4, 5], max_tokens=3, cache=first.cache).drain().tokens == [6, 7, 8]


def _generate(target: MlxTarget, prompt: list[int], max_tokens: int) -> list[int]:
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    return [int(token) for token, _ in generate_step(mx.array(prompt), target.model, max_tokens=max_tokens)]


@pytest.mark.parametrize("m", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("length", [3, 30])
def test_a_sliding_window_is_right(m: int, length: int) -> None:
    """mlx-lm#1423: a drafter that is always rejected, over and beyond a window of 16."""
    target = tiny_llama(1, sliding_window=16)
    prompt = [(7 * position) % 64 for position in range(length)]
    output = _generate(target, prompt, 60)
    wrong = Wrong(64, {tuple(prompt): output})
    generation = speculate(target, wrong, prompt, draft_length=m, max_tokens=60)
    drain_checked(generation, prompt, draft_length=m)
    ordinary = decode(target, prompt, max_tokens=60)
    drain_checked(ordinary, prompt)
    assert generation.tokens == ordinary.tokens == output


def test_a_warm_sliding_window_gives_what_a_cold_one_does() -> None:
    target = tiny_llama(1, sliding_window=16)
    first = decode(target, [1, 2, 3], max_tokens=25).drain()
    history = [1, 2, 3, *first.tokens, 5, 6]
    warm = decode(target, history, max_tokens=25, cache=first.cache).drain()
    assert warm.tokens == decode(target, history, max_tokens=25).drain().tokens
    changed = [*history[:10], 9]
    cold = decode(target, changed, max_tokens=25).drain().tokens
    assert decode(target, changed, max_tokens=25, cache=warm.cache).drain().tokens == cold


def test_recurrent_layers_are_right() -> None:
    """mlx-lm#846, #1446: their state is put back from a snapshot, which the rounds say."""
    target = tiny_mamba()
    output = _generate(target, [1, 2, 3], 20)
    generation = speculate(target, Wrong(40, {(1, 2, 3): output}), [1, 2, 3], draft_length=2, max_tokens=20)
    rounds = drain_checked(generation, [1, 2, 3], draft_length=2)
    ordinary = decode(target, [1, 2, 3], max_tokens=20)
    drain_checked(ordinary, [1, 2, 3])
    assert generation.tokens == ordinary.tokens == output
    assert [entry.trim_way for entry in rounds] == ["snapshot"] * 19 + ["none"]


@CALLS
def test_quantised_caches_that_cannot_be_right_are_refused_by_name(call: str) -> None:
    """A rotating layer cannot be quantised; a quantised prefix is not what this prompt's own prefill gives."""
    with pytest.raises(Unsupported, match=r"kv_bits is refused: layer 1 \(RotatingKVCache, window of 16\)"):
        _call(call, tiny_llama(1, sliding_window=16), [1], kv_bits=8)
    target = tiny_llama(1, hidden=128)
    plain = decode(target, [1, 2], max_tokens=2).drain().cache
    with pytest.raises(Unsupported, match="kv_bits is refused with a kept cache"):
        _call(call, target, [1, 2, 3], kv_bits=8, kv_group_size=32, cache=plain)
    quantised = decode(target, [1, 2], max_tokens=2, kv_bits=8, kv_group_size=32).drain().cache
    with pytest.raises(Unsupported, match=r"this cache is quantised: layer 0 \(QuantizedKVCache\).* start without it"):
        _call(call, target, [1, 2, 3], cache=quantised)
    assert not plain.in_use
    assert not quantised.in_use


def test_a_drafter_may_refuse_a_target() -> None:
    """`check` is asked before the first forward and before a cache is taken."""

    class Picky(ScriptedDrafter):
        def check(self, target: Any) -> None:
            raise Unsupported("the vocabularies differ at id 3: 'd' and 'D'")

    target = _target()
    kept = decode(target, [1], max_tokens=2).drain().cache
    target.widths.clear()
    with pytest.raises(Unsupported, match="differ at id 3"):
        _call("speculate", target, drafter=Picky(always([1])), cache=kept)
    assert (target.widths, kept.in_use) == ([], False)


def test_what_is_no_drafter_leaves_the_cache_free() -> None:
    target = _target()
    kept = decode(target, [1], max_tokens=2).drain().cache
    with pytest.raises(AttributeError, match="name"):
        _call("speculate", target, drafter=object(), cache=kept)
    assert not kept.in_use


def test_a_prompt_of_one_token_needs_no_prefill() -> None:
    for call in ("decode", "speculate"):
        target = _target()
        generation = _call(call, target, [4], drafter=ScriptedDrafter(guessing(counting(30), 30, percent=100)))
        drain_checked(generation, [4], draft_length=2)
        assert generation.tokens == [5, 6, 7, 8, 9]
        assert target.widths[0] in (1, 3)


def test_text_is_tokenised_as_it_stands() -> None:
    generation = decode(_target(), "abc", max_tokens=3).drain()
    assert (generation.tokens, generation.text) == ([3, 4, 5], "def")


def test_ids_may_be_any_integers() -> None:
    import mlx.core as mx

    for prompt in ((1, 2), range(1, 3), mx.array([1, 2])):
        assert decode(_target(), prompt, max_tokens=2).drain().tokens == [3, 4]


def test_a_lazy_proposal_without_tokens_is_an_ordinary_step() -> None:
    """mlx makes an empty array one of floats; that is no reason to fail."""
    import mlx.core as mx

    class Nothing(ScriptedDrafter):
        def propose(self, history: Any, m: int) -> Proposal:
            return Proposal(mx.array([]))

    generation = speculate(_target(), Nothing(always([])), [0], draft_length=3, max_tokens=3)
    assert [entry.outcome for entry in drain_checked(generation, [0], draft_length=3, max_tokens=3)] == ["step"] * 3
    assert generation.tokens == [1, 2, 3]
