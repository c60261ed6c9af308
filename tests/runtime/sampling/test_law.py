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
from tests.runtime.scripted import drain_checked

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
