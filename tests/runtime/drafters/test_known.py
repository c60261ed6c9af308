"""`none`, `oracle` and `wrong`: what they propose, and that their length follows the convention."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.drafters.known import NoDrafter, Oracle, Wrong
from telemetry.errors import RoundscopeError, UsageError

TOKENS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


def test_none_proposes_nothing_and_keeps_its_length():
    drafter = NoDrafter()
    drafter.reset([1, 2, 3])
    lengths = [drafter.length]
    for tokens in ([4], [5, 6]):
        assert len(drafter.propose([], 8)) == 0
        drafter.commit(tokens)
        lengths.append(drafter.length)
    drafter.rewind(9)
    drafter.rewind(3)
    assert [*lengths, drafter.length] == [2, 3, 5, 3]


@given(prompt=TOKENS, output=TOKENS, m=st.integers(0, 8))
def test_the_oracle_proposes_the_output_from_every_position(prompt, output, m):
    drafter = Oracle({tuple(prompt): output})
    drafter.reset(prompt)
    for done in range(len(output) + 1):
        assert list(drafter.propose(prompt + output[:done], m).tokens) == output[done : done + m]


@given(prompt=TOKENS, output=TOKENS, m=st.integers(0, 8))
def test_wrong_proposes_another_token_at_every_position(prompt, output, m):
    drafter = Wrong(10)
    drafter.learn(prompt, output)
    drafter.reset(prompt)
    for done in range(len(output) + 1):
        proposed = list(drafter.propose(prompt + output[:done], m).tokens)
        expected = output[done : done + m]
        assert proposed == [(token + 1) % 10 for token in expected]
        assert all(a != b for a, b in zip(proposed, expected, strict=True))


def test_prompts_are_told_apart():
    drafter = Oracle({(1, 2): [3, 4], (1,): [7]})
    drafter.reset([1])
    first = drafter.propose([1], 4).tokens
    drafter.reset([1, 2])
    assert (first, drafter.propose([1, 2, 3], 4).tokens, drafter.length) == ((7,), (4,), 1)


@pytest.mark.parametrize("drafter", [Oracle(), Wrong(8)])
def test_a_prompt_it_was_never_told_is_a_clear_error(drafter):
    message = rf"the drafter {drafter.name} was never told .* prompt of 3 tokens: .* call learn\(prompt, output\)"
    with pytest.raises(RoundscopeError, match=message):
        drafter.reset([1, 2, 3])


def test_a_vocabulary_of_one_token_has_no_wrong_one():
    with pytest.raises(UsageError, match="a vocabulary of 1 has no wrong token"):
        Wrong(1)
