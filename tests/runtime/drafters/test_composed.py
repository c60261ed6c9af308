"""Two drafters as one: who proposes, whose state goes where, and that the record says so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime import decode, speculate
from runtime.drafters import make, names, parse, registry
from runtime.drafters.assistant import Assistant
from runtime.drafters.composed import Composed
from runtime.drafters.prompt_lookup import PromptLookup
from runtime.drafters.suffix import Suffix
from telemetry.errors import UsageError
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord, RoundRecord
from tests.models import tiny_llama
from tests.runtime.scripted import rows

TARGET, MODEL = tiny_llama(1), tiny_llama(1, layers=1)
PROMPTS = st.lists(st.integers(0, 9), min_size=1, max_size=14)


def compose():
    return Composed(PromptLookup(4, 2), Assistant(MODEL))


def read(proposal):
    return list(proposal.tokens) if isinstance(proposal.tokens, tuple) else proposal.tokens.tolist()


@settings(max_examples=40)
@given(PROMPTS, st.integers(0, 5), st.data())
def test_the_first_that_proposes_is_taken_and_named(prompt, m, data):
    composed, history = compose(), list(prompt)
    composed.reset(prompt)
    for _ in range(4):
        alone = []
        for part in (PromptLookup(4, 2), Assistant(MODEL)):
            part.reset(history)
            alone.append((part.name, read(part.propose(history, m))))
        expected = next(((name, tokens) for name, tokens in alone if tokens), (None, []))
        proposed = read(composed.propose(history, m))
        assert (composed.proposer, proposed) == expected
        committed = [*proposed[: data.draw(st.integers(0, m))], data.draw(st.integers(0, 9))]
        composed.commit(committed)
        history += committed
        if composed.length > len(history) - 1:
            composed.rewind(len(history) - 1)
        assert all(part.length <= len(history) - 1 for part in composed.parts)


@settings(max_examples=20)
@given(PROMPTS, st.integers(0, 5))
def test_the_output_is_ordinary_decodings_and_every_round_says_who(prompt, m):
    with decode(TARGET, prompt, max_tokens=20) as ordinary:
        ordinary.drain()
    with speculate(TARGET, compose(), prompt, draft_length=m, max_tokens=20) as generation:
        rounds = list(generation)
    assert generation.tokens == ordinary.tokens
    for each in rounds:
        assert (each.proposer is None) == (each.proposed == 0)
        assert each.proposer in (None, "prompt-lookup", "assistant")


def test_both_propose_in_one_generation():
    prompt = [1, 2, 3, 4, 5, 1, 2]
    with speculate(TARGET, compose(), prompt, draft_length=3, max_tokens=30) as generation:
        proposers = [each.proposer for each in generation]
    assert {"prompt-lookup", "assistant"} <= set(proposers)


def test_drafters_that_are_not_composed_name_nobody():
    with speculate(TARGET, "prompt-lookup", [1, 2, 1, 2], draft_length=3, max_tokens=6) as generation:
        assert {each.proposer for each in generation} == {None}


def test_sampling_goes_to_the_part_that_draws():
    with speculate(
        TARGET, compose(), [1, 2, 3, 1, 2], draft_length=3, max_tokens=20, temperature=1.0, seed=4
    ) as generation:
        assert sum(each.committed for each in generation) == 20


def record(drafter, **options):
    recorder = Recorder()
    with speculate(TARGET, drafter, [1, 2, 3, 1, 2], draft_length=3, max_tokens=30, recorder=recorder, **options) as it:
        it.drain()
    [start] = rows(recorder.records, GenerationRecord)
    return start.q_source, [(one.proposer, one.q_source) for one in rows(recorder.records, RoundRecord)]


def test_every_round_says_what_its_proposal_was_judged_by():
    source, said = record(compose(), temperature=1.0, seed=4)
    assert source == "drafter"
    assert set(said) - {(None, None)} == {("prompt-lookup", "point"), ("assistant", "drafter")}
    for options in ({}, {"temperature": 1.0, "seed": 4, "coupling": "equality"}):
        assert {source for _, source in record(compose(), **options)[1]} == {None}


def test_a_composition_of_point_masses_is_one():
    source, said = record(make("prompt-lookup:min_n=1+suffix", TARGET), temperature=1.0, seed=4)
    assert source == "point"
    assert {source for name, source in said if name} == {"point"}


def test_a_part_that_is_composed_itself_stands_for_its_parts():
    composed = Composed(Suffix(5), Composed(PromptLookup(4, 2), Assistant(MODEL)))
    assert composed.name == "suffix+prompt-lookup+assistant"
    history = [1, 2, 9, 1, 2]
    composed.reset(history)
    assert len(composed.propose(history, 2))
    assert composed.proposer == "prompt-lookup"
    assert not len(composed.propose_by(0, history, 2))
    assert composed.proposer == "suffix"


def test_a_spec_joins_two_with_their_options():
    made = make("prompt-lookup:max_n=5,min_n=3+suffix:min_n=4", TARGET)
    assert made.name == "prompt-lookup+suffix"
    assert [type(part) for part in made.parts] == [PromptLookup, Suffix]
    made.reset([1, 2, 9, 1, 2])
    assert not len(made.propose([1, 2, 9, 1, 2], 2))
    assert parse("prompt-lookup+suffix").name == "prompt-lookup+suffix"
    three = make("prompt-lookup:min_n=3+suffix+prompt-lookup", TARGET)
    assert three.name == "prompt-lookup+suffix+prompt-lookup"


def test_a_plus_in_a_files_name_joins_nothing(monkeypatch):
    taken = []
    monkeypatch.setitem(registry._BUILT_IN, "ar", lambda target, *, checkpoint=None: taken.append(checkpoint))
    monkeypatch.setattr(registry, "_list_options", lambda factory: {"checkpoint": "str"})
    parsed = parse("ar:checkpoint=a+b/c+ar.safetensors")
    assert parsed.options == {"checkpoint": "a+b/c+ar.safetensors"}
    assert "ar" in names()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("oracle+suffix", "knows the output beforehand"),
        ("suffix+wrong", "knows the output beforehand"),
        ("prompt-lookup+nothing", "there is no drafter 'prompt-lookup+nothing'"),
        ("nothing+suffix", "there is no drafter 'nothing'"),
        ("suffix:min_n=0+prompt-lookup", "suffix needs min_n of 1 or more"),
    ],
)
def test_what_cannot_be_composed_is_refused(spec, message):
    with pytest.raises(UsageError, match=message.replace("+", r"\+")):
        make(spec, TARGET)


def test_options_from_python_belong_to_no_part():
    with pytest.raises(UsageError, match="has no option 'model'"):
        make("prompt-lookup+suffix", TARGET, model=TARGET)
