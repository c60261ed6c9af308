"""When output ends: EOS, stop ids and stop strings, inside a block or at its edge, over tokens and bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.generate import decode, speculate
from runtime.stopping import Stop, Stopper
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.errors import Unsupported, UsageError
from telemetry.recorder import Recorder
from telemetry.records import GenerationEnd, RoundRecord
from tests.runtime.scripted import counting, drain_checked, guessing, recite, rows

VOCABULARY = 40


class Bytes(ScriptedTarget):
    """A scripted target whose tokens are the bytes of UTF-8."""

    def encode(self, text: str) -> list[int]:
        """Bytes."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Text; a character that is cut is shown as a replacement character."""
        return bytes(ids).decode(errors="replace")


class Silent(ScriptedTarget):
    """A scripted target without text."""

    encode = decode = None


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (1, (3, 1, 2, 1, "stop")),
        (2, (3, 2, 1, 2, "stop")),
        (3, (3, 3, 0, 3, "stop")),
        (4, (3, 3, 0, 4, "bonus")),
    ],
)
@pytest.mark.parametrize("how", ["eos", "id", "string"])
def test_a_stop_inside_an_accepted_block(last: int, expected: tuple[object, ...], how: str, lazy: bool) -> None:
    """transformers#47912, #31301, sglang#39826: output ends there; what follows is neither committed nor counted."""
    target = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY, eos=[last] if how == "eos" else [])
    drafter = ScriptedDrafter(guessing(counting(VOCABULARY), VOCABULARY, percent=100), lazy=lazy)
    stop: list[int | str] = {"eos": [], "id": [last], "string": ["abcde"[last]]}[how]
    recorder = Recorder()
    generation = speculate(target, drafter, [0], draft_length=3, max_tokens=20, stop=stop, recorder=recorder)
    [entry] = drain_checked(generation, [0], draft_length=3, max_tokens=20)
    assert (entry.proposed, entry.accepted, entry.cut, entry.committed, entry.outcome) == expected
    assert generation.tokens == list(range(1, last + 1))
    assert generation.text == "bcde"[: last - 1]
    assert (generation.finish_reason, entry.stop) == ("stop", "abcde"[last] if how == "string" else last)
    [end], [record] = rows(recorder.records, GenerationEnd), rows(recorder.records, RoundRecord)
    kind = {"eos": "eos", "id": "stop_id", "string": "stop_string"}[how]
    assert (end.stop_kind, record.stop_kind, end.n_committed) == (kind, kind, last)


def test_a_stop_that_was_proposed_but_rejected_ends_nothing() -> None:
    """EOS behind a mismatch is not the target's, and neither is a stop string that only the draft completes."""
    target = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY, eos=[30])
    drafter = ScriptedDrafter(lambda history, m: [history[-1] + 1, 30, 30][:m])
    generation = speculate(target, drafter, [0], draft_length=3, max_tokens=9, stop=["b<30>"])
    drain_checked(generation, [0], draft_length=3, max_tokens=9)
    assert (generation.tokens, generation.finish_reason) == (list(range(1, 10)), "length")


def test_a_stop_at_the_correction() -> None:
    target = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY, eos=[2])
    drafter = ScriptedDrafter(lambda history, m: [1, 7, 7][:m])
    generation = speculate(target, drafter, [0], draft_length=3, max_tokens=9)
    [entry] = drain_checked(generation, [0], draft_length=3, max_tokens=9)
    assert (entry.accepted, entry.cut, entry.outcome, entry.stop) == (1, 0, "correction", 2)


def test_eos_at_the_very_limit_is_a_stop() -> None:
    target = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY, eos=[3])
    assert decode(target, [0], max_tokens=3).drain().finish_reason == "stop"
    assert decode(target, [0], max_tokens=2).drain().finish_reason == "length"


def test_eos_given_by_the_caller_replaces_the_targets() -> None:
    target = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY, eos=[3])
    assert decode(target, [0], max_tokens=9, eos=[5]).drain().tokens == [1, 2, 3, 4, 5]
    assert decode(target, [0], max_tokens=9, eos=[]).drain().tokens == list(range(1, 10))


def test_an_eos_of_the_target_that_it_cannot_say_is_no_callers_fault() -> None:
    """A tokenizer may know more ids than the model has logits."""
    target = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY, eos=[3, VOCABULARY + 7])
    assert decode(target, [0], max_tokens=9).drain().tokens == [1, 2, 3]


def test_an_eos_in_the_prompt_stops_nothing() -> None:
    target = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY, eos=[3])
    assert decode(target, [3], max_tokens=2, stop=["d"]).drain().tokens == [4, 5]


def test_a_stop_string_does_not_reach_back_into_the_prompt() -> None:
    target = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY)
    generation = decode(target, "abc", max_tokens=4, stop=["cd"]).drain()
    assert (generation.text, generation.finish_reason) == ("defg", "length")


@pytest.mark.parametrize(
    ("stop", "text", "ended_by"),
    [
        (["<3", "zz"], "xyz<26><27><28><29>", "<3"),
        (["8><", "28>"], "xyz<26><27><", "28>"),
        (["<29", "<2"], "xyz", "<2"),
        (["z<", "z<2"], "xy", "z<"),
    ],
)
def test_the_text_is_cut_before_the_first_of_several_strings(stop: list[str], text: str, ended_by: str) -> None:
    """A token may bring several characters, and complete several strings at once."""
    target = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY)
    drafter = ScriptedDrafter(guessing(counting(VOCABULARY), VOCABULARY, percent=100))
    generation = speculate(target, drafter, [22], draft_length=4, max_tokens=15, stop=stop)
    rounds = drain_checked(generation, [22], draft_length=4, max_tokens=15)
    assert (generation.text, rounds[-1].stop) == (text, ended_by)


def test_a_stop_string_over_characters_of_several_bytes() -> None:
    said = "Größe: 12 µm — fertig. Ende"
    ids = list(said.encode())
    target = Bytes(recite(ids), vocab_size=256)
    drafter = ScriptedDrafter(guessing(recite(ids), 256, percent=80))
    generation = speculate(target, drafter, [0], draft_length=5, max_tokens=200, stop=["m — f"])
    rounds = drain_checked(generation, [0], draft_length=5, max_tokens=200)
    assert generation.text == "Größe: 12 µ"
    assert bytes(generation.tokens).decode() == "Größe: 12 µm — f"
    assert rounds[-1].stop == "m — f"


@settings(max_examples=200)
@given(
    text=st.text(alphabet="aé—😀", min_size=1, max_size=40),
    strings=st.lists(st.text(alphabet="aé—😀", min_size=1, max_size=3), min_size=1, max_size=3),
    chunks=st.lists(st.integers(1, 7), min_size=1),
)
def test_strings_are_found_at_the_token_that_completes_them(text: str, strings: list[str], chunks: list[int]) -> None:
    """Whatever the calls they are spread over, and however long the output before them is."""
    ids = list(text.encode())
    stopper = Stopper((), (), strings, lambda held: bytes(held).decode(errors="replace"))
    ends = [len(text[: text.find(string) + len(string)].encode()) for string in strings if string in text]
    start, found = 0, None
    while start < len(ids) and found is None:
        part = ids[start : start + chunks[start % len(chunks)]]
        found = stopper.find(part)
        start += len(part) if found is None else found[0]
    assert (start if found else None) == (min(ends) - 1 if ends else None)
    if found:
        said = bytes(ids[: start + 1]).decode(errors="replace")
        expected = min((said.find(s), said[: said.find(s)]) for s in strings if s in said)[1]
        assert stopper.text_before(said, found[1]) == expected


def test_a_string_that_shows_only_in_the_window_cuts_nothing() -> None:
    """A tokenizer may write the same tokens otherwise at the beginning of a text; the whole text decides the cut."""
    assert Stopper((), (), ["x"], lambda ids: "").text_before("abc", Stop("x", "stop_string")) == "abc"


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ([-1], "stop id -1 is not in the target's vocabulary of 40"),
        ([40], "stop id 40 is not in the target's vocabulary of 40"),
        ([""], "an empty stop string would stop at once"),
        ("end", r"stop is the string 'end'; pass a list: stop=\['end'\]"),
    ],
)
def test_stops_that_make_no_sense(stop: list[int | str], message: str) -> None:
    target = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY)
    with pytest.raises(UsageError, match=message):
        decode(target, [0], max_tokens=3, stop=stop)


def test_a_target_without_text_refuses_strings_and_goes_without() -> None:
    target = Silent(counting(VOCABULARY), vocab_size=VOCABULARY)
    tokenless = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY)
    tokenless.tokenizer = None
    for each in (tokenless, target):
        with pytest.raises(Unsupported, match="stop strings need a target that can decode its tokens"):
            decode(each, [0], max_tokens=3, stop=["a"])
        recorder = Recorder(record_text=True)
        generation = decode(each, [0], max_tokens=3, stop=[2], recorder=recorder)
        assert [entry.tokens for entry in generation] == [(1,), (2,)]
        assert [end.text for end in rows(recorder.records, GenerationEnd)] == [None]
        with pytest.raises(Unsupported, match="read `tokens` instead"):
            _ = generation.text
