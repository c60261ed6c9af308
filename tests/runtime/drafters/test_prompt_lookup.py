"""Prompt lookup against a search of the whole history, which is what its index stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.drafters.prompt_lookup import PromptLookup
from telemetry.errors import UsageError

SIZES = st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted)
HISTORIES = st.lists(st.integers(0, 2), min_size=1, max_size=30)
STEPS = st.lists(st.one_of(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 30)), max_size=8)


def search(history: list[int], m: int, max_n: int, min_n: int) -> list[int]:
    """The proposal by brute force: longest suffix first, latest earlier occurrence, growing the text as it goes."""
    for n in range(min(max_n, len(history) - 1), min_n - 1, -1):
        for end in range(len(history) - 1, n - 1, -1):
            if history[end - n : end] == history[-n:]:
                text = list(history)
                for position in range(end, end + m):
                    text.append(text[position])
                return text[len(history) :]
    return []


@given(history=HISTORIES, m=st.integers(0, 8), sizes=SIZES)
def test_proposes_what_a_search_finds(history, m, sizes):
    min_n, max_n = sizes
    drafter = PromptLookup(max_n, min_n)
    drafter.reset(history)
    assert list(drafter.propose(history, m).tokens) == search(history, m, max_n, min_n)


@given(prompt=HISTORIES, steps=STEPS, sizes=SIZES)
def test_any_commits_and_rewinds_leave_the_index_of_a_fresh_start(prompt, steps, sizes):
    min_n, max_n = sizes
    drafter, fresh = PromptLookup(max_n, min_n), PromptLookup(max_n, min_n)
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
        assert vars(drafter) == vars(fresh)
        assert drafter.length == len(history) - 1
        assert list(drafter.propose(history, 6).tokens) == search(history, 6, max_n, min_n)


@given(history=HISTORIES, m=st.integers(0, 8))
def test_a_shorter_proposal_is_the_beginning_of_a_longer_one(history, m):
    drafter = PromptLookup()
    drafter.reset(history)
    longer = drafter.propose(history, m + 1).tokens
    assert drafter.propose(history, m).tokens == longer[:m]


def test_periodic_text_is_continued_beyond_the_end_of_the_history():
    drafter = PromptLookup()
    drafter.reset([1, 2, 3, 1, 2, 3])
    assert drafter.propose([1, 2, 3, 1, 2, 3], 7).tokens == (1, 2, 3, 1, 2, 3, 1)


def test_the_latest_occurrence_of_the_longest_suffix_is_taken():
    history = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3]
    drafter = PromptLookup(max_n=3, min_n=2)
    drafter.reset(history)
    shorter = PromptLookup(max_n=2, min_n=2)
    shorter.reset(history)
    assert (drafter.propose(history, 2).tokens, shorter.propose(history, 2).tokens) == ((9, 2), (8, 1))


@pytest.mark.parametrize(("max_n", "min_n"), [(2, 3), (2, 0), (0, 0), (1, -1)])
def test_sizes_that_make_no_sense_are_refused(max_n, min_n):
    with pytest.raises(UsageError, match=f"1 <= min_n <= max_n, not min_n={min_n}, max_n={max_n}"):
        PromptLookup(max_n, min_n)


def test_the_work_of_a_round_does_not_grow_with_the_history():
    """Counted in touched entries, not in time: a commit writes one entry a size, whatever was there before."""
    growth = []
    for length in (10, 10_000):
        drafter = PromptLookup(max_n=4, min_n=2)
        drafter.reset(list(range(length)))
        before = len(drafter._follower)
        drafter.commit([length, length + 1])
        growth.append(len(drafter._follower) - before)
    assert growth == [6, 6]
