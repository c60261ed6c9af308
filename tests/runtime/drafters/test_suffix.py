"""The suffix automaton against a search of the whole text, and the drafter that reads off it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.drafters import make
from runtime.drafters.suffix import Suffix
from runtime.drafters.suffix_automaton import SuffixAutomaton
from runtime.generate import decode, speculate
from runtime.testing import ScriptedTarget
from telemetry.errors import UsageError
from tests.runtime.scripted import drain_checked, expect, hashed

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)
STEPS = st.lists(st.one_of(st.lists(st.integers(0, 2), max_size=6), st.integers(0, 40)), max_size=8)


def find_ends(text: list[int], length: int) -> list[int]:
    """Where the last `length` tokens of `text` occur earlier: the ends of those occurrences, in order."""
    return [end for end in range(length, len(text)) if text[end - length : end] == text[len(text) - length :]]


def find_depth(text: list[int]) -> int:
    """Length of the longest ending of `text` that occurs earlier in it."""
    return next(length for length in range(len(text) - 1, -1, -1) if find_ends(text, length))


def take_in(text: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token in text:
        automaton.mark_match()
        automaton.append(token)
    return automaton


@given(text=TEXTS)
def test_the_match_is_the_longest_ending_seen_before(text):
    """After every append: its length is that of a search, and it does end where it is said to."""
    automaton = SuffixAutomaton()
    for count, token in enumerate(text, 1):
        automaton.mark_match()
        automaton.append(token)
        depth, end = automaton.match()
        assert depth == find_depth(text[:count])
        assert not depth or end in find_ends(text[:count], depth)
    assert automaton.tokens == text


@given(text=TEXTS)
def test_it_is_found_where_it_was_last_the_longest(text):
    longest: dict[tuple[int, ...], int] = {}
    for count in range(1, len(text) + 1):
        depth = find_depth(text[:count])
        ending = tuple(text[count - depth : count])
        if depth and ending in longest:
            assert take_in(text[:count]).match() == (depth, longest[ending])
        longest[ending] = count


@given(history=TEXTS, m=st.integers(0, 8), min_n=st.integers(1, 4))
def test_it_proposes_what_followed_that_ending(history, m, min_n):
    drafter = Suffix(min_n)
    drafter.reset(history)
    proposal = list(drafter.propose(history, m).tokens)
    depth, end = take_in(history).match()
    text = list(history)
    for position in range(end, end + m):
        text.append(text[position])
    assert proposal == (text[len(history) :] if depth >= min_n else [])
    assert list(drafter.propose(history, m + 1).tokens)[:m] == proposal


def test_periodic_text_is_continued_beyond_the_end_of_the_history():
    drafter = make("suffix:min_n=3", ScriptedTarget(len, vocab_size=8))
    drafter.reset([1, 2, 3, 1, 2, 3])
    assert drafter.propose([1, 2, 3, 1, 2, 3], 7).tokens == (1, 2, 3, 1, 2, 3, 1)
    drafter.reset([4, 4, 1, 1])
    assert drafter.propose([4, 4, 1, 1], 2).tokens == ()


@given(prompt=TEXTS, steps=STEPS)
def test_any_commits_and_rewinds_leave_what_a_fresh_start_gives(prompt, steps):
    drafter, fresh = Suffix(1), Suffix(1)
    history = list(prompt)
    drafter.reset(prompt)
    for step in steps:
        if isinstance(step, int):
            drafter.rewind(step)
            del history[step + 1 :]
        else:
            drafter.commit(step)
            history += step
        fresh.reset(history)
        assert vars(drafter._text) == vars(fresh._text)
        assert drafter.length == len(history) - 1
        assert drafter.propose(history, 6).tokens == fresh.propose(history, 6).tokens


class CountingList(list):
    """A list that counts how often an entry is looked at."""

    looks = 0

    def __getitem__(self, index):
        CountingList.looks += 1
        return super().__getitem__(index)


def make_text(kind: str, length: int) -> list[int]:
    numbers = random.Random(5)
    if kind == "random":
        return [numbers.randrange(50) for _ in range(length)]
    if kind == "binary":
        return [numbers.randrange(2) for _ in range(length)]
    if kind == "fibonacci":
        shorter, longer = [0], [0, 1]
        while len(longer) < length:
            shorter, longer = longer, longer + shorter
        return longer[:length]
    period = {"one token": 1, "periodic": 7, "long period": 331}[kind]
    return [position % period for position in range(length)]


@pytest.mark.parametrize("kind", ["random", "binary", "fibonacci", "one token", "periodic", "long period"])
def test_a_token_costs_the_same_however_long_the_text(kind):
    """Counted, not timed: links followed, states and transitions made, at most four of each a token."""
    for length in (500, 8000):
        automaton = SuffixAutomaton()
        automaton._link = CountingList(automaton._link)
        CountingList.looks = 0
        for token in make_text(kind, length):
            automaton.mark_match()
            automaton.append(token)
            automaton.match()
        # Two of the looks are those of mark_match and match, which follow one link each.
        assert CountingList.looks <= (2 + 4) * length
        assert len(automaton._next) <= 2 * length
        assert sum(map(len, automaton._next)) <= 3 * length


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 999),
    vocab_size=st.integers(2, 6),
    m=st.integers(0, 8),
    prompt=st.lists(st.integers(0, 1), min_size=1),
)
def test_in_the_loop_it_changes_nothing_but_the_pace(seed, vocab_size, m, prompt):
    script = hashed(seed, vocab_size, 2)
    target = ScriptedTarget(script, vocab_size=vocab_size)
    generation = speculate(target, "suffix", prompt, draft_length=m, max_tokens=40)
    rounds = drain_checked(generation, prompt, draft_length=m, max_tokens=40)
    assert generation.tokens == expect(script, prompt, max_tokens=40).tokens
    assert [entry.drafter_length for entry in rounds] == [entry.cache_length for entry in rounds]


def test_after_a_failure_it_covers_the_committed_history():
    script = hashed(3, 4, 2)
    drafter = Suffix()
    generation = speculate(
        ScriptedTarget(script, vocab_size=4, fail_at=6), drafter, [0, 1], draft_length=3, max_tokens=40
    )
    with pytest.raises(RuntimeError, match="forward 6 failed"):
        generation.drain()
    history = [0, 1, *generation.tokens]
    assert (drafter._text.tokens, drafter.length) == (history, len(history) - 1)
    again = decode(ScriptedTarget(script, vocab_size=4), history, max_tokens=9).drain().tokens
    assert [*generation.tokens, *again] == expect(script, [0, 1], max_tokens=len(history) + 7).tokens


def test_a_depth_that_makes_no_sense_is_refused():
    with pytest.raises(UsageError, match="suffix needs min_n of 1 or more, not 0"):
        Suffix(0)
