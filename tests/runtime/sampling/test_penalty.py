"""The repetition penalty as an option: mlx-lm's processor, in ordinary decoding and in verification, and recorded."""

from __future__ import annotations

from typing import Any

import pytest
from mlx_lm.sample_utils import make_logits_processors

from runtime.drafters.assistant import Assistant
from runtime.generate import decode, speculate
from telemetry.errors import UsageError
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord
from tests.models import tiny_llama
from tests.runtime.scripted import drain_checked, rows

PROMPT = [3, 1, 4, 1, 5]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_k": 20, "seed": 3}])
@pytest.mark.parametrize("context", [20, 3])
def test_it_is_mlx_lms_processor(options: dict[str, Any], context: int) -> None:
    target, shared = tiny_llama(1), {"max_tokens": 40, **options}
    processors = make_logits_processors(repetition_penalty=1.4, repetition_context_size=context)
    wanted = decode(target, PROMPT, logits_processors=processors, **shared).drain().tokens
    penalised = {**shared, "repetition_penalty": 1.4, "repetition_context": context}
    assert decode(target, PROMPT, **penalised).drain().tokens == wanted
    assert wanted != decode(target, PROMPT, **shared).drain().tokens
    assert speculate(target, "none", PROMPT, draft_length=3, **penalised).drain().tokens == wanted
    generation = speculate(target, Assistant(tiny_llama(1)), PROMPT, draft_length=3, **penalised)
    drain_checked(generation, PROMPT, draft_length=3)
    if not options:
        assert generation.tokens == wanted


def test_it_comes_before_the_callers_processors() -> None:
    seen: list[Any] = []

    def note(tokens: Any, logits: Any) -> Any:
        seen.append(logits[0, 1].item())
        return logits

    target = tiny_llama(1)
    decode(target, [1], max_tokens=1, logits_processors=[note]).drain()
    decode(target, [1], max_tokens=1, logits_processors=[note], repetition_penalty=2.0).drain()
    plain, penalised = seen
    assert penalised == pytest.approx(plain / 2 if plain > 0 else plain * 2, rel=1e-6)


@pytest.mark.parametrize("drafted", [False, True])
def test_it_is_recorded(drafted: bool) -> None:
    target = tiny_llama(1)
    for options, wanted in (
        ({}, (None, None, 0)),
        ({"repetition_penalty": 1.25}, (1.25, 20, 1)),
        ({"repetition_penalty": 0.5, "repetition_context": 7, "temperature": 1.0}, (0.5, 7, 1)),
    ):
        recorder = Recorder()
        shared: dict[str, Any] = {"max_tokens": 3, "recorder": recorder, **options}
        if drafted:
            speculate(target, "prompt-lookup", PROMPT, draft_length=2, **shared).drain()
        else:
            decode(target, PROMPT, **shared).drain()
        [record] = rows(recorder.records, GenerationRecord)
        assert (record.repetition_penalty, record.repetition_context, record.n_processors) == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be a number above 0"),
        ({"repetition_penalty": -1.0}, "repetition_penalty is -1.0"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty is nan"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is inf"),
        ({"repetition_penalty": 1.1, "repetition_context": 0}, "repetition_context is 0; it must be a whole number, 1"),
        ({"repetition_context": 5}, "repetition_context would have no effect"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decode(tiny_llama(1), PROMPT, max_tokens=3, **options)
