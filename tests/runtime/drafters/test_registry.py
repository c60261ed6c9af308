"""Drafters by name: specs, options, entry points, and the errors that list what there is."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from runtime.drafters import make, names, parse, registry
from runtime.drafters.assistant import Assistant
from runtime.drafters.known import NoDrafter, Oracle, Wrong
from runtime.drafters.prompt_lookup import PromptLookup
from runtime.drafters.requantised import Requantised
from runtime.drafters.suffix import Suffix
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.errors import RoundscopeError, UsageError
from tests.models import tiny_llama

TRAINED = ["ar", "blocks", "ncm"]
"""Their checkpoints are for the default model; the tests of their training make others."""
BUILT_IN = ["none", "oracle", "wrong", "prompt-lookup", "suffix", "assistant", "self-q4", "self-q3", *TRAINED]
MODEL = tiny_llama(0, 8)
TARGET = ScriptedTarget(len, vocab_size=8)


def make_scripted(target, *, depth: int = 1, rate: float = 0.5, label="x", table: dict | None = None):
    drafter = ScriptedDrafter(lambda history, m: [])
    drafter.options = (depth, rate, label, table)
    return drafter


def take_anything(target, **options):
    drafter = ScriptedDrafter(lambda history, m: [])
    drafter.options = options
    return drafter


def return_nonsense(target):
    return SimpleNamespace(name="nonsense", length=0, propose=None)


NOT_CALLABLE = 3


@pytest.fixture
def plugins(monkeypatch):
    """Entry points as an installed package would give them, beside one that tries to take a built-in name."""

    def point(name: str, attribute: str) -> EntryPoint:
        return EntryPoint(name, f"{__name__}:{attribute}", registry.GROUP)

    found = [
        point("scripted", "make_scripted"),
        point("open", "take_anything"),
        point("none", "return_nonsense"),
        point("nonsense", "return_nonsense"),
        point("number", "NOT_CALLABLE"),
        EntryPoint("absent", "no_such_package.drafters:make", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "_find_plugins", lambda: found)


def test_the_built_in_drafters_have_their_names():
    untrained = [name for name in BUILT_IN if name not in TRAINED]
    made = [make(name, MODEL, **({"model": MODEL} if name == "assistant" else {})) for name in untrained]
    assert [drafter.name for drafter in made] + TRAINED == names()[: len(BUILT_IN)] == BUILT_IN
    kinds = [NoDrafter, Oracle, Wrong, PromptLookup, Suffix, Assistant, Requantised, Requantised]
    assert [type(drafter) for drafter in made] == kinds


def test_a_spec_sets_options():
    drafter = make("prompt-lookup:max_n=5,min_n=3", TARGET)
    drafter.reset([1, 2, 3, 4, 1, 2, 3])
    assert parse("prompt-lookup:max_n=5,min_n=3").options == {"max_n": 5, "min_n": 3}
    assert drafter.propose([1, 2, 3, 4, 1, 2, 3], 2).tokens == (4, 1)


def test_options_from_python_go_before_those_of_the_spec():
    drafter = make("prompt-lookup:max_n=2,min_n=2", TARGET, max_n=6)
    assert drafter._sizes == range(6, 1, -1)


def test_oracle_and_wrong_take_outputs():
    outputs = {(1,): [2, 7]}
    proposals = []
    for name in ("oracle", "wrong"):
        drafter = make(name, TARGET, outputs=outputs)
        drafter.reset([1])
        proposals.append(drafter.propose([1], 2).tokens)
    assert proposals == [(2, 7), (3, 0)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lookup", "there is no drafter 'lookup': take one of none, oracle, wrong, prompt-lookup, suffix, "),
        ("", "there is no drafter '': take one of none, oracle"),
        ("prompt-lookup:n=3", "drafter prompt-lookup has no option 'n': its options are max_n, min_n"),
        ("none:n=3", "drafter none has no option 'n': it has none"),
        ("prompt-lookup:max_n=many", "drafter prompt-lookup: option max_n is 'many', which is no int"),
        ("prompt-lookup:max_n", "drafter 'prompt-lookup:max_n': 'max_n' is not of the form key=value"),
        ("prompt-lookup:", "'' is not of the form key=value"),
        ("prompt-lookup:max_n=1", "prompt-lookup needs 1 <= min_n <= max_n, not min_n=2, max_n=1"),
        ("suffix:min_n=0", "suffix needs min_n of 1 or more, not 0"),
        ("suffix:max_n=3", "drafter suffix has no option 'max_n': its options are min_n"),
        ("self-q4:bits=3", "drafter self-q4 has no option 'bits': it has none"),
        ("oracle:outputs=1", "drafter oracle: option outputs can only be given from Python"),
        ("assistant", "needs a draft model with the target's vocabulary: give --draft-model M"),
        ("assistant:model=/no/such/folder", "there is no model folder /no/such/folder"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_there_is(spec, message):
    with pytest.raises(UsageError) as caught:
        make(spec, TARGET)
    assert message in str(caught.value)


def test_an_unknown_option_from_python_is_refused_too():
    with pytest.raises(UsageError, match="drafter none has no option 'model': it has none"):
        make("none", TARGET, model=1)


@pytest.mark.usefixtures("plugins")
def test_entry_points_are_listed_after_the_built_in_drafters():
    assert names() == [*BUILT_IN, "absent", "nonsense", "number", "open", "scripted"]
    assert isinstance(make("none", TARGET), NoDrafter)


@pytest.mark.usefixtures("plugins")
def test_an_entry_point_gets_its_options_converted_as_annotated():
    made = make("scripted:depth=3,rate=0.25,label=a=b", TARGET, table={1: 2})
    assert made.options == (3, 0.25, "a=b", {1: 2})
    assert make("open:anything=1", TARGET).options == {"anything": "1"}


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "the drafter absent (no_such_package.drafters:make of an installed package) cannot be loaded"),
        ("number", "cannot be loaded: an object of type int cannot be called. Repair or remove that package"),
        (
            "nonsense",
            "what makes the drafter nonsense returned a SimpleNamespace without "
            "prefix_consistent, reset, commit, rewind",
        ),
    ],
)
def test_a_broken_entry_point_is_a_clear_error(name, message):
    with pytest.raises(RoundscopeError) as caught:
        make(name, TARGET)
    assert message in str(caught.value)
