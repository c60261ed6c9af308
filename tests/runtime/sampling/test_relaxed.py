"""Relaxed acceptance: exactly the rule that is stated, and told to be not exact wherever it is recorded.

Limits are computed here in numpy from the scripted logits; nothing of the rule is taken from the package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.drafters.assistant import Assistant
from runtime.generate import decode, speculate
from runtime.speculative.relaxed import Relaxed, parse_policy
from runtime.testing import ScriptedDrafter, ScriptedSampler, ScriptedTarget
from telemetry.errors import UsageError
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord, RoundRecord
from tests.models import tiny_llama
from tests.runtime.recurrent import tiny_mamba
from tests.runtime.sampling.laws import LIMIT, deviate
from tests.runtime.scripted import drain_checked, draw, rows

PROMPT = [2, 0, 1]
RULES = {
    "relaxed:threshold=0.2": lambda p: 0.2,
    "relaxed:threshold=0": lambda p: 0.0,
    "relaxed:typical": lambda p: min(0.09, 0.3 * math.exp(-_entropy(p))),
    "relaxed:typical,delta=0.9,epsilon=0.5": lambda p: min(0.5, 0.9 * math.exp(-_entropy(p))),
}

TARGETS: dict[str, Any] = {
    "llama": lambda: tiny_llama(1),
    "mamba": tiny_mamba,
    "window": lambda: tiny_llama(1, sliding_window=8),
}


def _entropy(p: np.ndarray) -> float:
    return float(-sum(value * math.log(value) for value in p if value))


def _logits(history: Sequence[int]) -> list[float]:
    return [draw("logit", tuple(history[-2:]), token) % 30 / 8 for token in range(6)]


def _say_p(history: Sequence[int], temperature: float = 1.0) -> np.ndarray:
    weights = np.exp(np.array(_logits(history)) / temperature)
    return weights / weights.sum()


def _propose(history: Sequence[int], m: int) -> list[int]:
    return [draw(len(history), i) % 6 for i in range(m)]


def _target(**options: Any) -> ScriptedTarget:
    return ScriptedTarget(logits=_logits, vocab_size=6, **options)


@pytest.mark.parametrize("policy", RULES)
@pytest.mark.parametrize("processed", [False, True])
def test_greedy_every_round_is_what_the_rule_says(policy: str, processed: bool) -> None:
    """The argmax or a p above the limit stands; the rest is the argmax. Processors row by row change nothing."""
    generation = speculate(
        _target(),
        ScriptedDrafter(_propose),
        PROMPT,
        draft_length=4,
        max_tokens=80,
        policy=policy,
        logits_processors=[lambda tokens, logits: logits] if processed else [],
    )
    rounds = drain_checked(generation, PROMPT, draft_length=4, max_tokens=80)
    history, relaxed = list(PROMPT), 0
    for each in rounds:
        wanted: list[int] = []
        for token in _propose(history, each.proposed):
            p = _say_p([*history, *wanted])
            best = int(np.argmax(p))
            if token != best and p[token] <= RULES[policy](p):
                break
            relaxed += token != best
            wanted.append(token)
        accepted = len(wanted)
        wanted.append(int(np.argmax(_say_p([*history, *wanted]))))
        assert (each.accepted, list(each.tokens)) == (accepted, wanted)
        history += wanted
    assert relaxed > 3
    assert generation.tokens != decode(_target(), PROMPT, max_tokens=80).drain().tokens


@pytest.mark.parametrize("policy", RULES)
def test_at_a_temperature_a_token_stands_by_p_alone(policy: str) -> None:
    """p is that of the temperature, q is not looked at, and what follows is a draw from p."""
    temperature, count = 0.7, 400

    drafter = ScriptedSampler(lambda history: [float(t == np.argsort(_logits(history))[-2]) for t in range(6)])
    generation = speculate(
        _target(), drafter, PROMPT, draft_length=3, max_tokens=count, policy=policy, temperature=temperature, seed=3
    )
    history, own, n_accepted = list(PROMPT), [], 0
    for each in generation:
        for index, token in enumerate(each.tokens):
            p = _say_p(history, temperature)
            if index < each.accepted:
                assert p[token] > RULES[policy](p)
                n_accepted += 1
            else:
                own.append((token, list(p)))
            history.append(token)
    assert n_accepted > 50
    assert deviate([token for token, _ in own], [p for _, p in own]) < LIMIT
    places = range(len(PROMPT), len(history))
    contexts = [tuple(history[place - 2 : place]) for place in places]
    whole = [list(_say_p(history[:place], temperature)) for place in places]
    assert deviate(history[len(PROMPT) :], whole, contexts) > LIMIT  # not the target's distribution


@pytest.mark.parametrize("make", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 4}, {"repetition_penalty": 1.3}])
def test_nothing_proposed_is_ordinary_decoding(make: Any, options: dict[str, Any]) -> None:
    shared: dict[str, Any] = {"max_tokens": 20, **options}
    ordinary = decode(make(), PROMPT, **shared).drain().tokens
    empty = ScriptedDrafter(lambda history, m: [])
    generation = speculate(make(), empty, PROMPT, draft_length=3, policy="relaxed:typical", **shared)
    assert generation.drain().tokens == ordinary


@pytest.mark.parametrize("processed", [False, True])
def test_a_limit_that_nothing_reaches_leaves_greedy_decoding(processed: bool) -> None:
    """With a real target and drafter: the argmax stands whatever the limit."""
    shared: dict[str, Any] = {"max_tokens": 30, "logits_processors": [lambda tokens, logits: logits] * processed}
    target, drafter = tiny_llama(1), Assistant(tiny_llama(1))
    wanted = decode(target, PROMPT, **shared).drain().tokens
    generation = speculate(target, drafter, PROMPT, draft_length=3, policy="relaxed:threshold=0.9999", **shared)
    assert generation.drain().tokens == wanted


@settings(max_examples=40, deadline=None)
@given(
    policy=st.sampled_from(sorted(RULES)),
    temperature=st.sampled_from([0.0, 0.4, 1.0]),
    m=st.integers(1, 5),
    limit=st.integers(1, 25),
    eos=st.sets(st.integers(0, 5), max_size=2),
    timing=st.sampled_from(["fused", "attributed"]),
)
def test_every_round_keeps_the_contract(
    policy: str, temperature: float, m: int, limit: int, eos: set[int], timing: Any
) -> None:
    """Counts, budget, caches after each round; the end is where ends are; one synchronisation in fused timing."""
    generation = speculate(
        _target(eos=eos),
        ScriptedDrafter(_propose),
        PROMPT,
        draft_length=m,
        max_tokens=limit,
        policy=policy,
        temperature=temperature,
        timing=timing,
    )
    rounds = drain_checked(generation, PROMPT, draft_length=m, max_tokens=limit)
    assert not set(generation.tokens[:-1]) & eos
    assert timing == "attributed" or {each.syncs for each in rounds} == {1}


def test_limits() -> None:
    p = np.array([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]])
    found: Any = Relaxed("typical").find_limits(mx.array(p.tolist())).tolist()
    assert found == [[pytest.approx(0.09)], [pytest.approx(0.09)]]
    found = Relaxed("typical", epsilon=0.9).find_limits(mx.array(p.tolist())).tolist()
    assert found == [[pytest.approx(0.3 * math.exp(-_entropy(row)))] for row in p]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5, "seed": 9}])
def test_the_record_says_that_it_is_not_exact(options: dict[str, Any]) -> None:
    recorder = Recorder()
    shared: dict[str, Any] = {"max_tokens": 6, "recorder": recorder, "timing": "attributed", **options}
    drafter = ScriptedDrafter(_propose)
    speculate(_target(), drafter, PROMPT, draft_length=2, policy="relaxed:typical,delta=0.5", **shared).drain()
    [record] = rows(recorder.records, GenerationRecord)
    assert (record.policy, record.relaxation) == ("relaxed", "typical,epsilon=0.09,delta=0.5")
    assert record.arm == "scripted m=2 (not exact, relaxed:typical,epsilon=0.09,delta=0.5)"
    assert (record.coupling, record.q_source, record.temperature) == (None, None, options.get("temperature"))
    assert {each.overlap for each in rows(recorder.records, RoundRecord)} == {None}


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("relaxed", "policy 'relaxed' is none"),
        ("relaxed:", "is none: write exact, relaxed:threshold=T, or relaxed:typical"),
        ("relaxed:threshold", "threshold is '', which is no number"),
        ("relaxed:threshold=x", "threshold is 'x', which is no number"),
        ("relaxed:threshold=1", "threshold is 1; it must be from 0 to below 1"),
        ("relaxed:threshold=nan", "threshold is nan"),
        ("relaxed:threshold=0.1,epsilon=0.1", "is none"),
        ("relaxed:typical,gamma=0.1", "is none"),
        ("relaxed:typical,delta=0.1,delta=0.2", "is none"),
        ("relaxed:typical=0.1", "is none"),
        ("loose", "is none"),
    ],
)
def test_what_is_no_policy(policy: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_policy(policy)


def test_a_policy_and_a_coupling_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="coupling='equality' has no effect with the policy relaxed:typical,"):
        speculate(
            _target(),
            ScriptedDrafter(_propose),
            PROMPT,
            draft_length=2,
            max_tokens=4,
            temperature=1.0,
            coupling="equality",
            policy="relaxed:typical",
        )
