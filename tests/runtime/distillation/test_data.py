"""Examples, splits, the frequent-token subset and the manifest, as files and as objects."""

from __future__ import annotations

from hashlib import sha256

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.distillation import Example, FrequentTokens, choose_split, load_examples, load_manifest
from telemetry.errors import RoundscopeError, UsageError


def make_example(output, document="d", split="train"):
    return Example(document=document, split=split, prompt=[1], output=output, temperature=0.0)


def test_a_documents_split_is_read_off_its_hash_alone():
    for document in ("subject:a judge", "code:os.walk", "", "ä"):
        number = int(sha256(document.encode()).hexdigest()[:16], 16) % 100
        assert choose_split(document) == ("test" if number < 5 else "validation" if number < 10 else "train")
    counts = [choose_split(str(i)) for i in range(4000)]
    assert 140 < counts.count("test") < 260
    assert 140 < counts.count("validation") < 260


def test_examples_come_back_by_split_and_a_torn_line_is_left_out(tmp_path):
    examples = [make_example([i], split=split) for i, split in enumerate(("train", "test", "train", "validation"))]
    lines = b"".join(msgspec.json.encode(example) + b"\n" for example in examples)
    (tmp_path / "examples.ndjson").write_bytes(lines + b'{"document":"x","spl')
    assert load_examples(tmp_path, "train") == [examples[0], examples[2]]
    assert load_examples(tmp_path, "test") == [examples[1]]
    (tmp_path / "examples.ndjson").write_bytes(lines + b'{"document":"x"}\n' + lines)
    with pytest.raises(RoundscopeError, match=r"examples\.ndjson:5 is no example"):
        load_examples(tmp_path, "test")


def test_a_folder_without_data_says_how_to_make_some(tmp_path):
    with pytest.raises(UsageError, match="roundscope distill"):
        load_examples(tmp_path, "train")
    with pytest.raises(UsageError, match="roundscope distill"):
        load_manifest(tmp_path)


def test_the_most_frequent_tokens_come_first_ties_by_id_and_the_ends_always():
    examples = [make_example([5, 5, 3, 9, 9, 2]), make_example([9, 8])]
    tokens = FrequentTokens.choose(examples, 4, 12, always=(11,))
    assert tokens.ids.tolist() == [11, 9, 5, 2]
    assert FrequentTokens.choose(examples, 100, 12).ids.tolist() == [9, 5, 2, 3, 8]
    assert tokens.coverage([11, 9, 3, 4]) == 0.5


@given(st.lists(st.integers(0, 40), min_size=1, max_size=20, unique=True), st.lists(st.integers(0, 60), max_size=30))
def test_the_map_is_exact_in_both_directions(ids, given_ids):
    tokens = FrequentTokens(ids, 41)
    mapped = tokens.to_subset(given_ids)
    for token, subset in zip(given_ids, mapped.tolist(), strict=True):
        assert subset == (ids.index(token) if token in ids else tokens.other)
    inside = mapped[mapped != tokens.other]
    assert tokens.to_target(inside).tolist() == [token for token in given_ids if token in ids]


def test_q_is_zero_outside_the_subset():
    tokens = FrequentTokens([4, 0, 2], 6)
    wide = np.array(tokens.widen(mx.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])))
    assert wide.tolist() == [[0.25, 0, 0.25, 0, 0.5, 0], [1, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize("ids", [[], [1, 1], [-1], [6]])
def test_ids_that_are_no_subset_are_refused(ids):
    with pytest.raises(UsageError, match="frequent-token subset"):
        FrequentTokens(ids, 6)


def test_other_stands_for_no_one_token():
    with pytest.raises(IndexError):
        FrequentTokens([3, 1], 6).to_target([2])
