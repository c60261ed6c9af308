"""Drafts never move the target's numbers: with nothing proposed a generation is ordinary sampling's, and each can be
repeated. What was drawn, and how, is in the record.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.sample_utils import make_logits_processors

from runtime.drafters.assistant import Assistant
from runtime.generate import decode, speculate
from runtime.protocols import Drafter
from runtime.testing import ScriptedDrafter, ScriptedSampler, ScriptedTarget
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord
from tests.models import tiny_llama
from tests.runtime.recurrent import tiny_mamba
from tests.runtime.scripted import drain_checked, draw, rows

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.4, "seed": 0},
    {"temperature": 1.0, "seed": 1, "top_k": 5},
    {"temperature": 1.3, "seed": 2, "top_p": 0.8},
    {"temperature": 0.9, "seed": 3, "min_p": 0.1, "top_k": 9, "top_p": 0.95},
]
PROMPT = [3, 1, 4, 1, 5]
TARGETS = {
    "llama": lambda: tiny_llama(1),
    "window": lambda: tiny_llama(1, sliding_window=8),
    "mamba": tiny_mamba,
}


def _scripted(history: Any) -> list[float]:
    return [draw("logit", tuple(history[-3:]), token) % 40 / 10 for token in range(7)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", TARGETS)
def test_nothing_proposed_is_ordinary_sampling(kind: str, options: dict[str, Any]) -> None:
    """For every cache kind, pipelined or not."""
    target, shared = TARGETS[kind](), {"max_tokens": 20, **options}
    ordinary = decode(target, PROMPT, **shared).drain().tokens
    assert decode(target, PROMPT, pipelined=False, **shared).drain().tokens == ordinary
    assert speculate(target, "none", PROMPT, draft_length=4, **shared).drain().tokens == ordinary
    empty = ScriptedDrafter(lambda history, m: [])
    generation = speculate(target, empty, PROMPT, draft_length=4, **shared)
    assert [each.outcome for each in drain_checked(generation, PROMPT, draft_length=4)] == ["step"] * 20
    assert generation.tokens == ordinary
    assert decode(target, PROMPT, **{**shared, "seed": 99}).drain().tokens != ordinary


def test_the_target_of_a_round_without_a_proposal_draws_as_ordinary_does_there() -> None:
    """A position's numbers are its own, whatever drafts came before: a proposal at two places in the output moves
    nothing behind them as long as the history is the same.
    """
    target = ScriptedTarget(logits=_scripted, vocab_size=7)
    shared: dict[str, Any] = {"max_tokens": 60, "temperature": 1.0, "seed": 4}
    ordinary = decode(target, PROMPT, **shared).drain().tokens

    def propose(history: Any, m: int) -> list[int]:
        place = len(history) - len(PROMPT)
        return ordinary[place : place + m] if place in (7, 20) else []

    drafter = ScriptedDrafter(propose)
    output = speculate(target, drafter, PROMPT, draft_length=1, **shared).drain().tokens
    at = next((i for i, pair in enumerate(zip(output, ordinary, strict=True)) if pair[0] != pair[1]), 60)
    assert at in (7, 20, 60)  # a rejection says another token there; an acceptance, and the bonus after it, do not


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["assistant", "scripted", "prompt-lookup:min_n=1"])
def test_a_generation_can_be_repeated(kind: str, options: dict[str, Any]) -> None:
    """With the same drafter object, a fresh one, and lists of ids instead of a lazy array."""
    target = tiny_llama(1)

    def make(lazy: bool) -> Drafter | str:
        if kind == "assistant":
            return Assistant(tiny_llama(2))
        if kind == "scripted":
            return ScriptedSampler(lambda history: [1 / 64] * 64, lazy=lazy)
        return kind

    def run(drafter: Drafter | str) -> list[tuple[Any, ...]]:
        generation = speculate(target, drafter, PROMPT, draft_length=3, max_tokens=30, **options)
        return [(each.tokens, each.accepted, each.proposed, each.outcome) for each in generation]

    drafter = make(False)
    first = run(drafter)
    assert run(drafter) == run(make(True)) == first
    speculate(target, drafter, PROMPT, draft_length=3, max_tokens=30).drain()  # greedy in between leaves no trace
    assert run(drafter) == first
    assert {each[3] for each in first} & {"correction", "bonus", "step"}


def test_a_greedy_generation_after_a_sampled_one_is_greedy() -> None:
    target, drafter = tiny_llama(1), Assistant(tiny_llama(2))
    wanted = decode(target, PROMPT, max_tokens=12).drain().tokens
    for temperature in (1.0, 0.0):
        generation = speculate(target, drafter, PROMPT, draft_length=3, max_tokens=12, temperature=temperature).drain()
    assert generation.tokens == wanted


@pytest.mark.parametrize("options", OPTIONS)
def test_processors_and_a_temperature(options: dict[str, Any]) -> None:
    """mlx-lm#1175: with nothing proposed, a repetition penalty and sampling give ordinary's tokens; a processor sees
    ordinary's histories.
    """
    target, shared = tiny_llama(1), {"max_tokens": 24, **options}
    seen: dict[str, list[list[int]]] = {}

    def processors(way: str) -> list[Any]:
        def note(tokens: mx.array, logits: mx.array) -> mx.array:
            seen.setdefault(way, []).append(tokens.tolist())  # type: ignore[arg-type]
            return logits

        return [*make_logits_processors(repetition_penalty=1.3), note]

    ordinary = decode(target, PROMPT, pipelined=False, logits_processors=processors("ordinary"), **shared).drain()
    none = speculate(target, "none", PROMPT, draft_length=3, logits_processors=processors("none"), **shared).drain()
    assert none.tokens == ordinary.tokens
    assert none.tokens != decode(target, PROMPT, **shared).drain().tokens
    speculation = speculate(
        target,
        Assistant(tiny_llama(2)),
        PROMPT,
        draft_length=3,
        logits_processors=processors("assistant"),
        **shared,
    )
    drain_checked(speculation, PROMPT, draft_length=3)
    assert seen["none"] == seen["ordinary"]
    assert seen["assistant"] == [[*PROMPT, *speculation.tokens[:n]] for n in range(24)]


def test_a_block_and_its_rows_one_by_one_are_judged_alike() -> None:
    """A processor that changes nothing changes nothing, although rows are then verified one after another."""
    target, drafter = tiny_llama(1), Assistant(tiny_llama(2))
    shared: dict[str, Any] = {"draft_length": 3, "max_tokens": 40, "temperature": 1.0, "seed": 8}
    block = [each.tokens for each in speculate(target, drafter, PROMPT, **shared)]
    one_by_one = speculate(target, drafter, PROMPT, logits_processors=[lambda tokens, logits: logits], **shared)
    assert [each.tokens for each in one_by_one] == block


@pytest.mark.parametrize(
    ("drafter", "source"),
    [(None, None), ("prompt-lookup", "point"), (ScriptedSampler(lambda history: [1 / 7] * 7), "drafter")],
)
def test_the_record_says_what_was_asked_for(drafter: Drafter | str | None, source: str | None) -> None:
    target = ScriptedTarget(logits=_scripted, vocab_size=7)
    asked = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.01}
    for options in ({**asked, "seed": 9}, asked, {}):
        recorder = Recorder()
        shared: dict[str, Any] = {"max_tokens": 4, "recorder": recorder, **options}
        if drafter is None:
            decode(target, PROMPT, **shared).drain()
        else:
            speculate(target, drafter, PROMPT, draft_length=2, **shared).drain()
        [record] = rows(recorder.records, GenerationRecord)
        assert record.policy == ("stochastic" if options else "greedy")
        assert record.q_source == (source if options else None)
        for name in asked:
            assert getattr(record, name) == options.get(name)
        assert (record.seed is None) == (not options)
        if "seed" in options:
            assert record.seed == 9


def test_a_fresh_seed_repeats_the_generation() -> None:
    target, recorder = ScriptedTarget(logits=_scripted, vocab_size=7), Recorder()
    output = decode(target, PROMPT, max_tokens=30, temperature=1.0, recorder=recorder).drain().tokens
    seed = rows(recorder.records, GenerationRecord)[0].seed
    assert decode(target, PROMPT, max_tokens=30, temperature=1.0, seed=seed).drain().tokens == output


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("kind", TARGETS)
def test_coupled_by_equality_a_generation_is_ordinary_samplings(
    kind: str, processed: bool, options: dict[str, Any]
) -> None:
    """mlx-lm's way: the target draws for every position by its own numbers, and a proposal stands where it is equal."""
    target, recorder = TARGETS[kind](), Recorder()
    shared: dict[str, Any] = {"max_tokens": 24, **options}
    shared["logits_processors"] = make_logits_processors(repetition_penalty=1.2) if processed else []
    ordinary = decode(target, PROMPT, **shared).drain().tokens

    def propose(history: Any, m: int) -> list[int]:
        place = len(history) - len(PROMPT)
        return [*ordinary[place : place + m - 1], 3][:m]  # right, but for the last one as a rule

    drafter = ScriptedDrafter(propose)
    generation = speculate(target, drafter, PROMPT, draft_length=3, coupling="equality", recorder=recorder, **shared)
    rounds = drain_checked(generation, PROMPT, draft_length=3)
    assert generation.tokens == ordinary
    assert {each.outcome for each in rounds} & {"correction", "bonus"}
    [record] = rows(recorder.records, GenerationRecord)
    assert (record.arm, record.policy, record.coupling, record.q_source) == (
        "scripted m=3 equality",
        "stochastic",
        "equality",
        None,
    )


def test_equality_accepts_less_than_the_residual_rule() -> None:
    """By sum(p q) instead of sum(min(p, q)): for uniform p and q over 8 tokens one in eight, instead of all."""
    target = ScriptedTarget(logits=lambda history: [0.0] * 8, vocab_size=8)
    accepted = {}
    for coupling in ("residual", "equality"):
        generation = speculate(
            target,
            ScriptedSampler(lambda history: [1 / 8] * 8),
            PROMPT,
            draft_length=1,
            max_tokens=400,
            temperature=1.0,
            seed=2,
            coupling=coupling,  # type: ignore[arg-type]
        )
        rounds = [each for each in generation if each.proposed]
        accepted[coupling] = sum(each.accepted for each in rounds) / len(rounds)
    assert accepted["residual"] == 1
    assert 0.07 < accepted["equality"] < 0.19
