"""Turns of a conversation on small real models, by any way of decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from runtime.drafters import make
from runtime.generate import decode, speculate
from runtime.generation import Generation
from runtime.targets import MlxTarget
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord
from tests.models import tiny_llama
from tests.runtime.recurrent import tiny_mamba
from tests.runtime.scripted import rows

PROMPT = [5, 9, 33, 5, 9, 33, 5, 9]
TARGETS: dict[str, Callable[[], MlxTarget]] = {
    "llama": lambda: tiny_llama(1),
    "window": lambda: tiny_llama(1, sliding_window=8),
    "recurrent": tiny_mamba,
}
MODELS = pytest.mark.parametrize("model", TARGETS)
WAYS = ["decode", "suffix", "assistant", "none"]


def ask(way: str, target: MlxTarget, prompt: Sequence[int], limit: int, **options: Any) -> Generation:
    """A generation by ordinary decoding, or with the drafter `way`."""
    if way == "decode":
        return decode(target, prompt, max_tokens=limit, **options)
    drafter = make(way, target, **({"model": target} if way == "assistant" else {}))
    return speculate(target, drafter, prompt, draft_length=4, max_tokens=limit, **options)


def drain(generation: Generation) -> list[int]:
    """Its tokens; its cache holds the history less its last token, or all of it where nothing can be taken back."""
    generation.drain()
    generation.cache.check_integrity()
    history = generation._session.history
    assert generation.cache.tokens in (history[:-1], history)
    return generation.tokens


def count_cached(recorder: Recorder) -> int:
    """How many tokens of its prompt a generation found in its cache."""
    return int(rows(recorder.records, GenerationRecord)[0].cached_tokens)
