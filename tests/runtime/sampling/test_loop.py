"""The loop at a temperature: ends, limits, caches, faults of drafters, synchronisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.drafters.assistant import Assistant
from runtime.generate import decode, speculate
from runtime.protocols import Drafter, Proposal
from runtime.speculative.contract import DrafterError
from runtime.testing import ScriptedDrafter, ScriptedFailure, ScriptedSampler, ScriptedTarget
from tests.models import tiny_llama
from tests.runtime.recurrent import tiny_mamba
from tests.runtime.scripted import always, describe, drain_checked, draw, expect

PROMPT = [2, 0, 1]


def _logits(history: Sequence[int]) -> list[float]:
    return [draw("logit", tuple(history[-2:]), token) % 30 / 10 for token in range(6)]


def _q(history: Sequence[int]) -> list[float]:
    weights = [1 + draw("q", tuple(history[-2:]), token) % 5 for token in range(6)]
    return [weight / sum(weights) for weight in weights]


def _drafter(kind: str) -> Drafter:
    if kind == "assistant":
        return Assistant(ScriptedTarget(logits=lambda history: [math.log(q) for q in _q(history)], vocab_size=6))
    if kind == "sampler":
        return ScriptedSampler(_q)
    if kind == "lazy":
        return ScriptedSampler(_q, lazy=True)
    return ScriptedDrafter(lambda history, m: [draw(len(history), i) % 6 for i in range(m)])


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["assistant", "sampler", "lazy", "point"]),
    seed=st.integers(0, 2**63 - 1),
    m=st.integers(0, 5),
    limit=st.integers(1, 25),
    eos=st.sets(st.integers(0, 5), max_size=2),
    stop=st.lists(st.sampled_from(["ab", "f", "cde"]), max_size=2, unique=True),
    timing=st.sampled_from(["fused", "attributed"]),
    processed=st.booleans(),
    options=st.fixed_dictionaries(
        {"temperature": st.sampled_from([0.3, 1.0, 2.0]), "top_k": st.sampled_from([0, 1, 4])}
    ),
)
def test_every_round_keeps_the_contract(
    kind: str, seed: int, m: int, limit: int, eos: set[int], stop: list[str], timing: Any, processed: bool, options: Any
) -> None:
    """Counts, budget, caches after each round, and the end: the output is what stops would make of what was drawn."""
    target = ScriptedTarget(logits=_logits, vocab_size=6, eos=eos)
    generation = speculate(
        target,
        _drafter(kind),
        PROMPT,
        draft_length=m,
        max_tokens=limit,
        stop=stop,
        timing=timing,
        seed=seed,
        logits_processors=[lambda tokens, logits: logits] if processed else (),
        **options,
    )
    rounds = drain_checked(generation, PROMPT, draft_length=m, max_tokens=limit)
    said = generation.tokens

    def recite(history: Sequence[int]) -> int:
        place = len(history) - len(PROMPT)
        return said[place] if place < len(said) else 0

    assert describe(generation, rounds) == expect(recite, PROMPT, max_tokens=limit, eos=eos, stop=list(stop))
    if timing == "fused" and not processed:
        assert {each.syncs for each in rounds} == {1}


def test_an_end_inside_an_accepted_block() -> None:
    """transformers#47912: what follows the end of text is neither committed nor counted."""
    target = ScriptedTarget(
        logits=lambda history: [0.0 if t == len(history) % 6 else -math.inf for t in range(6)], vocab_size=6, eos=[5]
    )
    drafter = ScriptedDrafter(lambda history, m: [(len(history) + i) % 6 for i in range(m)])
    generation = speculate(target, drafter, PROMPT, draft_length=8, max_tokens=20, temperature=1.0)
    [only] = drain_checked(generation, PROMPT, draft_length=8)
    assert (only.tokens, only.accepted, only.cut, only.outcome) == ((3, 4, 5), 3, 5, "stop")
    assert generation.finish_reason == "stop"


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_limits_are_exact(limit: int) -> None:
    """transformers PR#47195."""
    for kind in ("assistant", "point"):
        target = ScriptedTarget(logits=_logits, vocab_size=6)
        generation = speculate(target, _drafter(kind), PROMPT, draft_length=8, max_tokens=limit, temperature=1.0)
        assert len(generation.drain().tokens) == limit


@pytest.mark.parametrize("kind", ["llama", "window", "mamba", "quantised"])
@pytest.mark.parametrize("drafter", ["assistant", "mamba", "prompt-lookup:min_n=1", "wrong"])
def test_with_one_token_to_choose_from_it_is_greedy(kind: str, drafter: str) -> None:
    """For every cache kind: p and q are then point masses, so that every token is known, whatever is rejected."""
    make: Any = {"window": lambda: tiny_llama(1, 40, sliding_window=8), "mamba": tiny_mamba}
    target = make.get(kind, lambda: tiny_llama(1, 40))()
    prompt = [1, 2, 3, 1, 2, 3, 1, 2]
    shared: dict[str, Any] = {"max_tokens": 30}
    if kind == "quantised":
        target = tiny_llama(1, 40, hidden=128)
        shared |= {"kv_bits": 8, "kv_group_size": 32}
    wanted = decode(target, prompt, **shared).drain().tokens
    proposer: Any = drafter
    if drafter == "assistant":
        proposer = Assistant(tiny_llama(2, 40))
    elif drafter == "mamba":
        proposer = Assistant(tiny_mamba(4, 40))
    elif drafter == "wrong":
        proposer = ScriptedDrafter(lambda history, m: [39 - history[-1]] * m)
    for processors in ([], [lambda tokens, logits: logits]):
        generation = speculate(
            target, proposer, prompt, draft_length=3, temperature=0.8, top_k=1, logits_processors=processors, **shared
        )
        drain_checked(generation, prompt, draft_length=3)
        assert generation.tokens == wanted


class _Claiming(ScriptedSampler):
    """Gives whatever q it is told to, with tokens that it is told to propose."""

    def __init__(self, tokens: list[int], q: Any) -> None:
        super().__init__(_q)
        self._claim = Proposal(tokens, q)

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        return self._claim if m else Proposal(())


@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize(
    ("tokens", "q", "message"),
    [
        ([1, 2], [[0.5, 0.5, 0.0, 0.0, 0.0, 0.0]], r"gave q of shape \(1, 6\) where \(2, 6\) was wanted"),
        ([1], [[0.1] * 10], r"gave q of shape \(1, 10\) where \(1, 6\) was wanted"),
        ([1], [0.1] * 6, r"gave q of shape \(6,\) where \(1, 6\) was wanted"),
        ([5], [[0.5, 0.5]], "proposed a token that its own q gives no mass"),
        ([5], [[0.5, 0.5, 0.0, 0.0, 0.0, 0.0]], "proposed a token that its own q gives no mass"),
    ],
)
def test_a_q_that_cannot_be_what_was_drawn_from(tokens: list[int], q: Any, message: str, processed: bool) -> None:
    target = ScriptedTarget(logits=_logits, vocab_size=6)
    processors = [lambda tokens, logits: logits] if processed else []
    generation = speculate(
        target,
        _Claiming(tokens, q),
        PROMPT,
        draft_length=2,
        max_tokens=9,
        temperature=1.0,
        logits_processors=processors,
    )
    with pytest.raises(DrafterError, match=f"drafter 'scripted' {message}"):
        generation.drain()
    assert (generation.finish_reason, generation.tokens) == ("error", [])
    generation.cache.check_integrity()


def test_a_q_needs_sample_with() -> None:
    """Whether a drafter draws is in the record before it proposes anything."""

    class Silent(ScriptedDrafter):
        def propose(self, history: Sequence[int], m: int) -> Proposal:
            return Proposal([1], [[1 / 6] * 6])

    target = ScriptedTarget(logits=_logits, vocab_size=6)
    with pytest.raises(DrafterError, match=r"gave a q, but has no sample_with\(sampling\)"):
        speculate(target, Silent(always([1])), PROMPT, draft_length=2, max_tokens=9, temperature=1.0).drain()
    assert speculate(target, Silent(always([1])), PROMPT, draft_length=2, max_tokens=9).drain().tokens  # greedy: unused


def test_a_drafter_of_a_narrower_vocabulary() -> None:
    """Ids that only padding of the target has have no mass by q, and are still drawn."""
    target = ScriptedTarget(logits=lambda history: [0.0] * 6, vocab_size=6)
    drafter = _Claiming([0], mx.array([[1.0, 0.0, 0.0]]))
    output = speculate(target, drafter, PROMPT, draft_length=1, max_tokens=60, temperature=1.0, seed=1).drain().tokens
    assert set(output) == set(range(6))


@pytest.mark.parametrize("kind", ["target", "drafter"])
def test_a_failure_in_the_middle(kind: str) -> None:
    """Tokens already committed stay, caches come back to them."""
    target = ScriptedTarget(logits=_logits, vocab_size=6, fail_at=4 if kind == "target" else None)
    drafter = ScriptedSampler(_q, fail_at=3 if kind == "drafter" else None)
    generation = speculate(target, drafter, PROMPT, draft_length=2, max_tokens=30, temperature=1.0, seed=1)
    with pytest.raises(ScriptedFailure):
        generation.drain()
    assert len(generation.tokens) >= 3
    assert generation.finish_reason == "error"
    generation.cache.check_integrity()
