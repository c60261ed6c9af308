"""1 - TV(p, q) of judged positions: held against the tables that p and q are scripted by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import make_logits_processors

from runtime.drafters.assistant import Assistant
from runtime.generate import speculate
from runtime.protocols import Drafter
from runtime.speculative.overlap import measure_overlap
from runtime.testing import ScriptedDrafter, ScriptedSampler, ScriptedTarget
from telemetry.recorder import Recorder
from telemetry.records import RoundRecord
from tests.models import tiny_llama
from tests.runtime.sampling.laws import LIMIT, deviate
from tests.runtime.scripted import draw, rows

PROMPT = [0, 1]
SIZE = 5


def _table(name: str, history: Sequence[int]) -> np.ndarray:
    weights = np.array([draw(name, tuple(history[-2:]), token) % 7 for token in range(SIZE)], float)
    weights[draw(name, tuple(history[-2:])) % SIZE] += 1
    return weights / weights.sum()


def _target(**options: Any) -> ScriptedTarget:
    logits = lambda history: [math.log(p) if p else -math.inf for p in _table("p", history)]  # noqa: E731
    return ScriptedTarget(logits=logits, vocab_size=SIZE, **options)


def _drafter(kind: str) -> Drafter:
    if kind == "point":
        return ScriptedDrafter(lambda history, m: [draw(len(history), i) % SIZE for i in range(m)])
    return ScriptedSampler(lambda history: _table("q", history).tolist(), lazy=kind == "lazy")


def _record(kind: str, **options: Any) -> list[RoundRecord]:
    recorder = Recorder(record_text=True)
    shared: dict[str, Any] = {"max_tokens": 300, "timing": "attributed", "temperature": 1.0, "seed": 5} | options
    speculate(
        _target(eos=options.pop("eos", ())),
        _drafter(kind),
        PROMPT,
        draft_length=3,
        recorder=recorder,
        **{name: value for name, value in shared.items() if name != "eos"},
    ).drain()
    return rows(recorder.records, RoundRecord)


@pytest.mark.parametrize("kind", ["point", "sampler", "lazy"])
@pytest.mark.parametrize("coupling", ["residual", "equality"])
@pytest.mark.parametrize("processed", [False, True])
def test_it_is_what_the_tables_say(kind: str, coupling: Any, processed: bool) -> None:
    """Over the accepted tokens and the one that was rejected, and no further; a processor is part of p."""
    processors: list[Any] = []
    if processed:
        processors = [lambda tokens, logits: logits - mx.where(mx.arange(SIZE) == tokens[-1], 1.0, 0.0)]
    history, accepted, means = list(PROMPT), [], []
    for each in _record(kind, coupling=coupling, logits_processors=processors):
        proposal = each.proposal or []
        n = min(each.accepted + 1, each.proposed)
        wanted = []
        for i in range(n):
            said = [*history, *proposal[:i]]
            p = _table("p", said)
            if processed:
                p = p * np.where(np.arange(SIZE) == said[-1], math.exp(-1), 1)
                p /= p.sum()
            q = np.eye(SIZE)[proposal[i]] if kind == "point" else _table("q", said)
            wanted.append(1 - np.abs(p - q).sum() / 2)
            accepted.append(int(i < each.accepted))
        means += wanted
        assert each.overlap_positions == (n or None)
        assert each.overlap == (pytest.approx(sum(wanted), abs=1e-5) if n else None)
        history += each.tokens or []
    if coupling == "residual" or kind == "point":
        assert deviate(accepted, [[1 - mean, mean] for mean in means]) < LIMIT
    else:
        assert np.mean(accepted) < np.mean(means) - 0.1


@pytest.mark.parametrize("options", [{"timing": "fused"}, {"temperature": 0.0, "seed": None}])
def test_it_is_measured_in_attributed_rounds_that_draw(options: dict[str, Any]) -> None:
    assert {(each.overlap, each.overlap_positions) for each in _record("point", **options)} == {(None, None)}


def test_what_is_cut_was_not_judged() -> None:
    target = ScriptedTarget(
        logits=lambda history: [0.0 if t == len(history) % 6 else -math.inf for t in range(6)], vocab_size=6, eos=[5]
    )
    drafter, recorder = ScriptedDrafter(lambda history, m: [(len(history) + i) % 6 for i in range(m)]), Recorder()
    shared: dict[str, Any] = {"temperature": 1.0, "timing": "attributed", "recorder": recorder}
    speculate(target, drafter, [2, 0, 1], draft_length=8, max_tokens=20, **shared).drain()
    [only] = rows(recorder.records, RoundRecord)
    assert (only.accepted, only.cut, only.overlap, only.overlap_positions) == (3, 5, 3.0, 3)


def test_it_moves_nothing() -> None:
    """The same tokens with and without it, for a real model with a penalty; its time is in no round."""
    target = tiny_llama(1)
    outputs, rounds = [], []
    for timing in ("fused", "attributed"):
        recorder = Recorder()
        shared: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "seed": 2, "max_tokens": 30, "recorder": recorder}
        shared["logits_processors"] = make_logits_processors(repetition_penalty=1.2)
        generation = speculate(target, Assistant(tiny_llama(2)), [3, 1, 4], draft_length=3, timing=timing, **shared)  # type: ignore[arg-type]
        outputs.append(generation.drain().tokens)
        rounds.append(rows(recorder.records, RoundRecord))
    assert outputs[0] == outputs[1]
    assert all(0 <= each.overlap <= each.overlap_positions for each in rounds[1] if each.overlap is not None)  # type: ignore[operator]
    assert any(each.overlap for each in rounds[1])
    for before, after in zip(rounds[1], rounds[1][1:], strict=False):
        assert after.start_ns > before.start_ns + before.t_round_ns


def test_it_is_one_for_equal_distributions_and_never_more() -> None:
    p = mx.softmax(mx.random.normal((40, 1000), key=mx.random.key(1)), axis=-1)
    found: Any = measure_overlap(p, mx.zeros(40, mx.int32), p).tolist()
    assert found == pytest.approx([1.0] * 40, abs=1e-5)
    assert max(found) <= 1
