"""Forecasts: counts that every draft length follows from, and that are the same whichever way they are found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import decode, speculate
from runtime.drafters.assistant import Assistant
from runtime.drafters.known import Oracle
from runtime.drafters.prompt_lookup import PromptLookup
from runtime.experiment.forecast import can_forecast, forecast
from runtime.protocols import Drafter, Proposal
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.records import ForecastRecord
from tests.models import tiny_llama
from tests.queries.recompute_forecast import replay
from tests.runtime.scripted import guessing, hashed

VOCABULARY = 8
TARGET = tiny_llama(1)


class Pure(ScriptedDrafter):
    """A scripted drafter that says that its proposals are functions of the history."""

    pure_in_history = True


class Unpredicting:
    """An assistant that does not say that it can predict, so that it has to propose."""

    def __init__(self, assistant: Assistant) -> None:
        self._assistant = assistant
        self.prefix_consistent = self.pure_in_history = True

    @property
    def length(self) -> int:
        return self._assistant.length

    def reset(self, prompt: Sequence[int]) -> None:
        self._assistant.reset(prompt)

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        return self._assistant.propose(history, m)

    def commit(self, tokens: Sequence[int]) -> None:
        self._assistant.commit(tokens)

    def rewind(self, length: int) -> None:
        self._assistant.rewind(length)


def count(drafter: Drafter, prompt: Sequence[int], output: Sequence[int], longest: int) -> tuple[list[int], list[int]]:
    record = forecast(drafter, "spec", prompt, output, "g", longest)
    return record.offered, record.right


def test_counts_of_a_script() -> None:
    """After 1 it offers what comes next and one wrong; after 2 nothing; else what is wrong at once."""
    offers = {1: [2, 3, 9], 2: [], 3: [9, 9]}
    drafter = Pure(lambda history, m: offers[history[-1]][:m])
    record = forecast(drafter, "scripted:x=1", [5, 1], [2, 3, 1, 2], "g", 2)
    assert record == ForecastRecord(
        generation_id="g", spec="scripted:x=1", longest=2, prompt_tokens=2, offered=[2, 0, 2, 2], right=[2, 0, 0, 1]
    )


def test_an_output_of_nothing() -> None:
    assert count(Pure(lambda history, m: [1] * m), [1], [], 4) == ([], [])


@given(st.integers(0, 10_000), st.integers(0, 100), st.sampled_from(["full", "short", "empty", "periodic"]))
def test_every_draft_length_takes_the_rounds_that_are_replayed(seed: int, percent: int, shape: str) -> None:
    script = hashed(seed, VOCABULARY, 3)
    drafter = Pure(guessing(script, VOCABULARY, percent=percent, seed=seed, shape="full"))
    if shape != "full":
        # Offers a beginning of the same proposal, whatever is asked for.
        offer = guessing(script, VOCABULARY, percent=percent, seed=seed, shape=shape)
        drafter = Pure(lambda history, m: offer(history, 6)[:m])
    budget, prompt = 20, [1, 2, 3]
    ends = {seed % VOCABULARY} if seed % 3 == 0 else set()
    target = ScriptedTarget(script, vocab_size=VOCABULARY, eos=ends)
    output = decode(target, prompt, max_tokens=budget).drain().tokens
    offered, right = count(drafter, prompt, output, 6)
    for m in range(1, 7):
        rounds = list(speculate(target, drafter, prompt, draft_length=m, max_tokens=budget))
        assert [(r.proposed, r.accepted, r.committed) for r in rounds] == replay(offered, right, m, budget)


@pytest.mark.parametrize("positions", [512, 20])
@pytest.mark.parametrize("prompt", [[5], [5, 6, 7, 8, 5, 6, 7]])
def test_predicting_says_what_proposing_does(positions: int, prompt: list[int]) -> None:
    output: list[int] = []
    while len(output) < 18:  # what the assistant would say, but for every fourth token
        output += decode(TARGET, [*prompt, *output], max_tokens=3, eos=()).drain().tokens
        output.append((output[-1] + 7) % 64)
    assistant = Assistant(tiny_llama(1, max_positions=positions))
    predicted = count(assistant, prompt, output, 5)
    assert predicted == count(Unpredicting(Assistant(assistant.model)), prompt, output, 5)
    assert {0, 1, 2, 3} <= set(predicted[1])
    assert assistant.length == 0


def test_a_drafter_that_was_forecast_drafts_as_before() -> None:
    prompt = [5, 6, 7, 8]
    output = decode(TARGET, prompt, max_tokens=9).drain().tokens
    assistant = Assistant(tiny_llama(2))
    before = [r.accepted for r in speculate(TARGET, assistant, prompt, draft_length=3, max_tokens=9)]
    count(assistant, prompt, output, 5)
    assert [r.accepted for r in speculate(TARGET, assistant, prompt, draft_length=3, max_tokens=9)] == before


def test_which_drafters_can_be_forecast() -> None:
    def propose(history: Sequence[int], m: int) -> list[int]:
        return [0] * m

    assert [can_forecast(drafter) for drafter in (PromptLookup(3, 1), Oracle(), Assistant(TARGET))] == [True] * 3
    assert can_forecast(Pure(propose))
    # One whose proposal for m + 1 may begin otherwise, and one that says nothing of itself.
    assert not can_forecast(Pure(propose, prefix_consistent=False))
    assert not can_forecast(ScriptedDrafter(propose))
