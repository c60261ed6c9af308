"""Vocabularies that differ are refused before a forward, naming the first id that means something else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runtime import speculate
from runtime.drafters.assistant import Assistant
from runtime.testing import ScriptedTarget
from runtime.vocabulary import check_same
from telemetry.errors import Unsupported
from tests.models import tiny_llama

ANIMALS = {"ant": 0, "bee": 1, "cat": 2, "dog": 3}


def speak(tokens: dict[str, int] | None, vocab_size: int = 4, name: str | None = None) -> SimpleNamespace:
    """As much of a target as matters here; a name and a tokenizer are optional."""
    target = SimpleNamespace(vocab_size=vocab_size)
    if tokens is not None:
        target.tokenizer = SimpleNamespace(get_vocab=lambda: tokens)
    if name is not None:
        target.name = name
    return target


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (speak(ANIMALS), speak(dict(reversed(ANIMALS.items())))),
        (speak(ANIMALS, vocab_size=8), speak(ANIMALS, vocab_size=64)),
        (speak(None), speak(None)),
        (speak(ANIMALS), speak(None)),
    ],
    ids=["same", "padded otherwise", "no tokenizers", "one tokenizer"],
)
def test_the_same_ids_are_let_through(ours, theirs):
    check_same(ours, theirs)


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        (
            speak(ANIMALS, name="big"),
            speak({"ant": 0, "cat": 1, "bee": 2, "dog": 3}, name="small"),
            "the target (big) and the draft model (small) have different vocabularies: id 1 is 'bee' in the one "
            "and 'cat' in the other (2 ids differ).",
        ),
        (speak(ANIMALS), speak({"ant": 0, "bee": 1}), "id 2 is 'cat' in the one and no token in the other"),
        (speak({"ant": 0}), speak(ANIMALS), "id 1 is no token in the one and 'bee' in the other (3 ids differ)"),
        (
            speak(None, 8),
            speak(ANIMALS, 6),
            "the target has 8 token ids and the draft model 6: id 6 exists only in the target.",
        ),
        (speak(None, 6), speak(None, 8), "id 6 exists only in the draft model."),
    ],
)
def test_the_first_id_that_differs_is_named(ours, theirs, message):
    with pytest.raises(Unsupported) as caught:
        check_same(ours, theirs)
    assert message in str(caught.value)


def test_speculate_refuses_another_vocabulary_before_any_forward():
    target = ScriptedTarget(len, vocab_size=32)
    with pytest.raises(Unsupported, match="id 32 exists only in the draft model"):
        speculate(target, Assistant(tiny_llama(0, 64)), [1, 2], draft_length=2, max_tokens=4)
    assert target.widths == []


def test_a_pair_is_compared_once(monkeypatch):
    compared = []
    monkeypatch.setattr("runtime.drafters.assistant.check_same", lambda *pair: compared.append(pair))
    drafter, first, second = Assistant(tiny_llama(0)), tiny_llama(1), tiny_llama(2)
    for target in (first, first, second):
        drafter.check(target)
    assert compared == [(first, drafter.model), (second, drafter.model)]
