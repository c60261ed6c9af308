"""The loop's output is distributed as p: chi-square with fixed seeds over scripted targets and a small real model.

transformers PR#33534, DeepSpec#31: drafted with another distribution than the one used in the ratio. Every mutant of
the rule goes through the very same test and must fail it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from runtime.drafters.assistant import Assistant
from runtime.generate import decode, speculate
from runtime.protocols import Drafter, Proposal
from runtime.sampling import Sampling
from runtime.speculative import stochastic, verification
from runtime.targets import MlxTarget
from runtime.testing import ScriptedDrafter, ScriptedSampler, ScriptedTarget
from tests.models import tiny_llama
from tests.runtime.sampling.laws import LIMIT, deviate
from tests.runtime.scripted import drain_checked, draw

PROMPT = [0, 1]
COUNT = 1000
P = {
    (a, b): row
    for (a, b), row in zip(
        [(a, b) for a in range(3) for b in range(3)],
        [
            [0.5, 0.3, 0.2],
            [0.1, 0.6, 0.3],
            [0.0, 0.5, 0.5],
            [0.7, 0.2, 0.1],
            [0.3, 0.3, 0.4],
            [0.2, 0.7, 0.1],
            [0.6, 0.0, 0.4],
            [0.2, 0.2, 0.6],
            [0.4, 0.5, 0.1],
        ],
        strict=True,
    )
}
"""Of the next token, by the last two."""

Q = {(a, b): P[b, (a + 1) % 3] for a, b in P}
"""Another table of the same rows, so that each side lacks tokens that the other may say."""


def _say_p(history: Sequence[int]) -> list[float]:
    a, b = [0, *history][-2:]
    return P[a, b]


def _target(temperature: float = 1.0) -> ScriptedTarget:
    """Its logits give P at `temperature`."""
    return ScriptedTarget(
        logits=lambda history: [temperature * math.log(p) if p else -math.inf for p in _say_p(history)], vocab_size=3
    )


def _sampler(kind: type[ScriptedSampler] = ScriptedSampler) -> ScriptedSampler:
    return kind(lambda history: Q[history[-2], history[-1]])


def _measure(output: Sequence[int]) -> float:
    """How far an output is from P, context by context."""
    history = [*PROMPT, *output]
    contexts = [(history[i], history[i + 1]) for i in range(len(output))]
    return deviate(output, [P[context] for context in contexts], contexts)


def _sample(drafter: Drafter | None, m: int = 3, seed: int = 1, temperature: float = 1.0, count: int = COUNT) -> Any:
    shared: dict[str, Any] = {"max_tokens": count, "temperature": temperature, "seed": seed}
    if drafter is None:
        return decode(_target(temperature), PROMPT, **shared).drain()
    return speculate(_target(temperature), drafter, PROMPT, draft_length=m, **shared).drain()


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_ordinary_sampling_draws_from_p(temperature: float) -> None:
    assert _measure(_sample(None, temperature=temperature).tokens) < LIMIT


@pytest.mark.parametrize(("m", "seed"), [(1, 1), (2, 2), (3, 3), (3, 4)])
def test_speculation_with_a_q_draws_from_p(m: int, seed: int) -> None:
    assert _measure(_sample(_sampler(), m, seed).tokens) < LIMIT


@pytest.mark.parametrize("m", [1, 3])
def test_speculation_with_a_point_mass_draws_from_p(m: int) -> None:
    """Of which as many are accepted as p says: not greedy verification."""
    generation = speculate(
        _target(),
        ScriptedDrafter(lambda history, m: [(history[-1] + 1) % 3] * m),
        PROMPT,
        draft_length=m,
        max_tokens=COUNT,
        temperature=1.0,
        seed=7,
    )
    rounds = drain_checked(generation, PROMPT, draft_length=m, max_tokens=COUNT)
    assert _measure(generation.tokens) < LIMIT
    history = [*PROMPT, *generation.tokens]
    judged, place = [], len(PROMPT)
    for each in rounds:
        if each.proposed:
            judged.append((int(each.accepted > 0), _say_p(history[:place])[(history[place - 1] + 1) % 3]))
        place += each.committed
    assert deviate([hit for hit, _ in judged], [[1 - p, p] for _, p in judged]) < LIMIT


def test_a_sampling_drafter_is_accepted_by_one_less_the_distance() -> None:
    """Of first positions, those accepted are 1 - TV(p, q): the rule loses nothing."""
    generation = speculate(_target(), _sampler(), PROMPT, draft_length=2, max_tokens=COUNT, temperature=1.0, seed=3)
    rounds = list(generation)
    history, place, judged = [*PROMPT, *generation.tokens], len(PROMPT), []
    for each in rounds:
        if each.proposed:
            context = (history[place - 2], history[place - 1])
            overlap = sum(map(min, P[context], Q[context]))
            judged.append((int(each.accepted > 0), [1 - overlap, overlap]))
        place += each.committed
    assert deviate([hit for hit, _ in judged], [row for _, row in judged]) < LIMIT


class _Hot(ScriptedSampler):
    """Gives another q than it drew from: that of another temperature."""

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        drawn = super().propose(history, m)
        if drawn.q is None:
            return drawn
        squares = np.square(np.array(drawn.q))
        return Proposal(drawn.tokens, (squares / squares.sum(axis=-1, keepdims=True)).tolist())


def _share_chances(self: Sampling, positions: Sequence[int]) -> list[float]:
    return [self._digest("acceptance", positions[0])[0] / 256] * len(positions)


_OWN_DIGEST = Sampling._digest
MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "no residual": (stochastic, "find_residual", lambda p, q: p),
    "p and q swapped in the ratio": (
        stochastic,
        "is_accepted",
        lambda p, q, chance: verification.is_accepted(q, p, chance),
    ),
    "p and q swapped in the residual": (
        stochastic,
        "find_residual",
        lambda p, q: verification.find_residual(q, p),
    ),
    "one number used twice": (Sampling, "chances", _share_chances),
    "accept everything": (stochastic, "is_accepted", lambda p, q, chance: p == p),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    assert _measure(_sample(_sampler()).tokens) > LIMIT


@pytest.mark.parametrize("mixed", [False, True])
def test_drafter_and_target_must_not_draw_by_the_same_numbers(mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token 0 is always rejected, and what it won against in the draft is then unlikely to win the correction."""
    if mixed:
        monkeypatch.setattr(Sampling, "_digest", lambda self, stream, position: _OWN_DIGEST(self, "target", position))
    p = [0.0, 0.7, 0.3]
    target = ScriptedTarget(logits=lambda _: [math.log(value) if value else -math.inf for value in p], vocab_size=3)
    drafter = ScriptedSampler(lambda _: [0.5, 0.5, 0.0])
    generation = speculate(target, drafter, [1], draft_length=3, max_tokens=COUNT, temperature=1.0, seed=6).drain()
    assert (deviate(generation.tokens, [p] * COUNT) > LIMIT) == mixed


def test_a_q_of_another_temperature_is_caught() -> None:
    assert _measure(_sample(_sampler(_Hot)).tokens) > LIMIT


def test_a_processor_is_part_of_p() -> None:
    """A penalty on the last token, at a temperature, with a drafter that knows nothing of it."""

    def discourage(tokens: mx.array, logits: mx.array) -> mx.array:
        return logits - mx.where(mx.arange(3) == tokens[-1], 1.0, 0.0)

    generation = speculate(
        _target(),
        _sampler(),
        PROMPT,
        draft_length=3,
        max_tokens=600,
        temperature=1.0,
        seed=2,
        logits_processors=[discourage],
    ).drain()
    history = [*PROMPT, *generation.tokens]
    contexts = [(history[i], history[i + 1]) for i in range(600)]
    rows = [[p * (math.exp(-1) if token == b else 1) for token, p in enumerate(P[a, b])] for a, b in contexts]
    expected = [[weight / sum(row) for weight in row] for row in rows]
    assert deviate(generation.tokens, expected, contexts) < LIMIT
    assert _measure(generation.tokens) > LIMIT


def _score(target: MlxTarget, prompt: list[int], output: Sequence[int], temperature: float) -> list[list[float]]:
    """p of every output token from one forward over all of it, in float64."""
    logits = np.array(target.forward(mx.array([[*prompt, *output[:-1]]]), target.make_cache())[0], np.float64)
    scaled = logits[len(prompt) - 1 :] / temperature
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return [list(row) for row in weights / weights.sum(axis=-1, keepdims=True)]


@pytest.mark.parametrize("way", ["ordinary", "assistant", "prompt-lookup:min_n=1", "accept everything"])
def test_a_real_model_with_an_assistant(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward that scores the output is not the loop's. The last way is the negative control."""
    target, prompt, temperature = tiny_llama(1, vocab_size=8, layers=1, hidden=16), [1, 2, 3], 0.7
    if way == "accept everything":
        monkeypatch.setattr(stochastic, "is_accepted", lambda p, q, chance: p == p)
    shared: dict[str, Any] = {"max_tokens": 450, "temperature": temperature, "seed": 5}
    if way == "ordinary":
        generation = decode(target, prompt, **shared).drain()
    else:
        drafter: Drafter | str = way if ":" in way else Assistant(tiny_llama(2, vocab_size=8, layers=1, hidden=16))
        generation = speculate(target, drafter, prompt, draft_length=3, **shared)
        accepted = sum(each.accepted for each in generation)
        assert 30 < accepted < 450
    deviation = deviate(generation.tokens, _score(target, prompt, generation.tokens, temperature))
    assert deviation > LIMIT if way == "accept everything" else deviation < LIMIT


OPTIONS: dict[str, dict[str, Any]] = {
    "top_k": {"temperature": 0.9, "top_k": 3},
    "top_p": {"temperature": 1.4, "top_p": 0.8},
    "min_p": {"temperature": 1.2, "min_p": 0.15},
    "penalty": {"temperature": 0.8, "repetition_penalty": 1.6, "repetition_context": 4},
    "all": {"temperature": 1.1, "top_k": 6, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 0.7},
}
WAYS = ("ordinary", "drawn", "point", "equality")


def _filter(logits: Sequence[float], history: Sequence[int], options: dict[str, Any]) -> list[float]:
    """p in numpy, by what the options mean: tokens are kept by the untempered distribution."""
    values = np.array(logits, np.float64)
    penalty = options.get("repetition_penalty", 1.0)
    for token in set(history[-options.get("repetition_context", 20) :]):
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    plain = np.exp(values - values.max()) / np.exp(values - values.max()).sum()
    order = np.argsort(-plain)
    above = np.cumsum(plain[order]) - plain[order]
    keep = np.zeros(len(values), bool)
    keep[order] = above < options.get("top_p", 1.1)
    keep[order[options.get("top_k") or len(values) :]] = False
    keep &= plain >= options.get("min_p", 0.0) * plain.max()
    weights = np.where(keep, np.exp((values - values.max()) / options["temperature"]), 0.0)
    return list(weights / weights.sum())


def _start(target: Any, way: str, drawn: Drafter, options: dict[str, Any], count: int) -> Any:
    shared: dict[str, Any] = {"max_tokens": count, "seed": 11, **options}
    if way == "ordinary":
        return decode(target, [1, 2, 3], **shared).drain()
    drafter = ScriptedDrafter(lambda history, m: [history[-2]] * m) if way == "point" else drawn
    coupling: Any = "equality" if way == "equality" else "residual"
    generation = speculate(target, drafter, [1, 2, 3], draft_length=3, coupling=coupling, **shared)
    assert 20 < sum(each.accepted for each in generation) < count
    return generation


@pytest.mark.parametrize("way", [*WAYS, "accept everything"])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_defines_what_a_scripted_target_says(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Context by context, of which there are 6 x 6; the last way is the negative control."""
    options, count = OPTIONS[name], 400

    def say(history: Sequence[int]) -> list[float]:
        return [draw("p", tuple(history[-2:]), token) % 41 / 10 - 1 + 0.013 * token for token in range(6)]

    if way == "accept everything":
        monkeypatch.setattr(stochastic, "is_accepted", lambda p, q, chance: p == p)
    target = ScriptedTarget(logits=say, vocab_size=6)
    history = [1, 2, 3, *_start(target, way, ScriptedSampler(lambda history: [1 / 6] * 6), options, count).tokens]
    expected = [_filter(say(history[:place]), history[:place], options) for place in range(3, len(history))]
    contexts = [history[place - 1] for place in range(3, len(history))]
    deviation = deviate(history[3:], expected, contexts)
    assert deviation > LIMIT if way == "accept everything" else deviation < LIMIT


@pytest.mark.parametrize("way", [*WAYS, "accept everything"])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_defines_what_a_real_model_says(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, count, target = OPTIONS[name], 250, tiny_llama(1, vocab_size=8, layers=1, hidden=16)
    if way == "accept everything":
        monkeypatch.setattr(stochastic, "is_accepted", lambda p, q, chance: p == p)
    drawn = Assistant(tiny_llama(2, vocab_size=8, layers=1, hidden=16))
    history = [1, 2, 3, *_start(target, way, drawn, options, count).tokens]
    logits = np.array(target.forward(mx.array([history[:-1]]), target.make_cache())[0], np.float64)
    expected = [_filter(logits[place - 1], history[:place], options) for place in range(3, len(history))]
    deviation = deviate(history[3:], expected)
    assert deviation > LIMIT if way == "accept everything" else deviation < LIMIT
