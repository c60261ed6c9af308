"""Batched decoding against one row at a time, and what it draws."""

from __future__ import annotations

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.distillation.batches import BatchDecoder
from telemetry.errors import Unsupported
from tests.models import greedy, tiny_llama
from tests.runtime.recurrent import tiny_mamba

TARGET = tiny_llama(1, eos=(7, 9))
PROMPTS = st.lists(st.lists(st.integers(0, 63), min_size=1, max_size=9), min_size=1, max_size=12)


@settings(max_examples=25)
@given(PROMPTS, st.integers(1, 24))
def test_greedy_answers_are_those_of_one_row_at_a_time(prompts, max_tokens):
    answers = BatchDecoder(TARGET).write(prompts, [[0.0]] * len(prompts), max_tokens, mx.random.key(0))
    assert [answer for [answer] in answers] == [greedy(TARGET, prompt, max_tokens) for prompt in prompts]


def test_a_prompt_longer_than_a_chunk_is_taken_in_whole():
    prompts = [[(3 * i + j) % 64 for i in range(n)] for j, n in enumerate((150, 64, 65, 1))]
    answers = BatchDecoder(TARGET).write(prompts, [[0.0]] * 4, 12, mx.random.key(0))
    assert [answer for [answer] in answers] == [greedy(TARGET, prompt, 12) for prompt in prompts]


def test_drawn_answers_do_not_disturb_greedy_ones_and_repeat_with_their_key():
    prompts, temperatures = [[1, 2, 3], [4]], [[0.0, 1.0], [1.0, 0.0]]
    once, again = (BatchDecoder(TARGET).write(prompts, temperatures, 10, mx.random.key(5)) for _ in range(2))
    other = BatchDecoder(TARGET).write(prompts, temperatures, 10, mx.random.key(6))
    assert once == again
    assert once != other
    assert (once[0][0], once[1][1]) == (greedy(TARGET, [1, 2, 3], 10), greedy(TARGET, [4], 10))


def test_draws_follow_the_targets_distribution_at_the_temperature():
    n, temperature = 4000, 0.7
    logits = TARGET.forward(mx.array([[1, 2, 3]]), TARGET.make_cache())[0, -1]
    p = np.array(mx.softmax(logits / temperature))
    answers = BatchDecoder(TARGET).write([[1, 2, 3]], [[temperature] * n], 1, mx.random.key(3))
    counts = Counter(answer[0] for answer in answers[0])
    expected = n * p
    often = expected >= 5
    chi_square = sum((counts[i] - expected[i]) ** 2 / expected[i] for i in np.flatnonzero(often))
    # 99.9 % of chi-square with k degrees of freedom lies below k + 4.5 sqrt(k) for the k seen here.
    assert chi_square < often.sum() + 4.5 * np.sqrt(often.sum())
    at_one = n * np.array(mx.softmax(logits))
    assert sum((counts[i] - at_one[i]) ** 2 / at_one[i] for i in np.flatnonzero(at_one >= 5)) > 3 * often.sum()


def test_a_cache_that_cannot_be_padded_is_refused():
    with pytest.raises(Unsupported, match="cannot write in batches"):
        BatchDecoder(tiny_mamba(1))
