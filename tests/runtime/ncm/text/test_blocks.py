"""Blocks against a plain reading of the examples, and the shares that training draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.distillation import Example
from runtime.distillation.labels import Labels
from runtime.ncm.text.blocks import Blocks, BlockSource
from runtime.ncm.text.model import fit_config
from telemetry.errors import UsageError
from tests.runtime.ncm.text.tiny_text import SHAPE, make_tokens

TOKENS = make_tokens()
CONFIG = fit_config(TOKENS, SHAPE)
IDS = st.lists(st.integers(0, 7), min_size=1, max_size=9)


def _example(prompt: list[int], output: list[int], temperature: float = 0.0) -> Example:
    return Example(document="d", split="train", prompt=prompt, output=output, temperature=temperature)


@given(texts=st.lists(st.tuples(IDS, IDS), min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_a_block_for_every_token(texts: list[tuple[list[int], list[int]]]) -> None:
    blocks = Blocks([_example(*text) for text in texts], TOKENS, CONFIG)
    batch, row = blocks.take(slice(None)), 0
    for prompt, output in texts:
        for place in range(len(output)):
            known = [7 - token if token >= 2 else 6 for token in [*prompt, *output[:place]]]
            assert batch.windows[row].tolist() == ([7] * 4 + known)[-4:]
            left = output[place : place + 3]
            assert blocks.count_left(row) == len(output) - place
            assert batch.known[row].tolist() == [True] * len(left) + [False] * (3 - len(left))
            assert batch.sayable[row].tolist() == [token >= 2 for token in left] + [False] * (3 - len(left))
            said = [7 - token if token >= 2 else 0 for token in left]
            assert batch.blocks[row].tolist() == said + [0] * (3 - len(left))
            row += 1
    assert len(blocks) == row


def test_labels_stand_at_their_tokens_and_any_other_token_is_known_alone() -> None:
    examples = [_example([7, 1], [2, 3]), _example([4], [0, 6, 5])]
    soft = [
        Labels(np.array([[2, 5], [1, 3]], np.int32), np.array([[0.6, 0.3], [0.5, 0.4]], np.float32)),
        Labels(np.array([[5, 6]], np.int32), np.array([[0.75, 0.25]], np.float32)),  # of its last token
    ]
    found = Blocks(examples, TOKENS, CONFIG, soft).take_labels(np.array([1, 2]), -2, 5)
    nothing = [0, 0]
    # Token t is 7 - t of the subset from 2 on; 0 and 1 cannot be said, nor can padding or what follows a text.
    assert found.ids.tolist() == [
        [nothing, [5, 2], [0, 4], nothing, nothing],
        [nothing, [3, 0], nothing, [1, 0], [2, 1]],
    ]
    wanted = [
        [nothing, [0.6, 0.3], [0, 0.4], nothing, nothing],
        [nothing, [1, 0], nothing, [1, 0], [0.75, 0.25]],
    ]
    assert np.allclose(found.p, wanted)


def test_shares_of_greedy_outputs() -> None:
    blocks = Blocks([_example([7], [2, 3, 4]), _example([7], [5, 6, 7], 0.7)], TOKENS, CONFIG)
    rng = np.random.default_rng(0)
    for share, kinds in ((1.0, {0}), (0.0, {1}), (None, {0, 1})):
        seen = BlockSource(blocks, share).draw_batch(60, rng).blocks[:, 0]
        assert {int(token <= 2) for token in seen} == kinds  # 5, 6 and 7 are 2, 1 and 0 of the subset
    with pytest.raises(UsageError, match=r"no sampled outputs to take a share of 0\.50 from"):
        BlockSource(Blocks([_example([7], [2])], TOKENS, CONFIG), 0.5)
    with pytest.raises(UsageError, match="there is no output"):
        Blocks([], TOKENS, CONFIG)
