"""The codec: quantising by levels, beside the same thing written out in numpy; its codebook's learning."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from runtime.ncm.codebook import CodebookState, start_codebook, update_codebook
from runtime.ncm.codec import Quantised, draw_depths, keep_depths, let_gradients_through
from runtime.ncm.resizing import resize_by_area, resize_linearly
from tests.runtime.ncm.tiny import GRID, TINY, tiny_model


def as_numpy(matrix: Any) -> Any:
    return np.array([[float(value) for value in row] for row in matrix])


@pytest.mark.parametrize("upsampling", ["linear", "area"])
def test_quantising_subtracts_level_by_level(upsampling: str) -> None:
    codec = tiny_model(3, upsampling=upsampling).codec
    latent = mx.random.normal((3, 5, 4), key=mx.random.key(1))
    found = codec.quantise(latent)
    book, residual, total = np.array(codec.codebook, np.float64), np.array(latent, np.float64), np.zeros((3, 5, 4))
    enlarge = resize_linearly if upsampling == "linear" else resize_by_area
    for level, length in enumerate(TINY.lengths):
        pooled = as_numpy(resize_by_area(5, length)) @ residual
        codes = np.argmin(((pooled[:, :, None] - book) ** 2).sum(-1), axis=-1)
        step = as_numpy(enlarge(length, 5)) @ book[codes]
        residual, total = residual - step, total + step
        assert found.codes[level].tolist() == codes.tolist()
        np.testing.assert_allclose(np.array(found.pooled[level]), pooled, atol=1e-5)
        np.testing.assert_allclose(np.array(found.partials[level]), total, atol=1e-5)


def test_adding_the_codes_gives_the_same_reconstructions_and_inputs() -> None:
    codec = tiny_model(3).codec
    found = codec.quantise(mx.random.normal((2, 5, 4), key=mx.random.key(2)))
    partial = codec.start(2)
    for level, inputs in enumerate(codec.make_inputs(found.partials)):
        assert mx.array_equal(codec.make_input(level, partial), inputs)
        partial = codec.add_level(level, partial, found.codes[level])
        assert mx.array_equal(partial, found.partials[level])


def test_the_nearest_vector_with_the_lowest_code_wins_a_tie() -> None:
    codec = tiny_model().codec
    codec.codebook = mx.array([[5.0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
    assert codec.find_nearest(mx.array([[0.9, 0, 0, 0], [4, 0, 0, 0], [0, 3, 0, 0]])).tolist() == [1, 0, 3]


def test_any_first_levels_can_be_decoded() -> None:
    codec = tiny_model().codec
    found = codec.quantise(codec.encode(mx.zeros((2, 5), mx.int32)))
    assert [codec.decode(partial).shape for partial in found.partials] == [(2, 5, 6)] * 4


def test_cell_order_is_inside_only() -> None:
    """With one token changed, the decoded logits change where that token is, wherever the cell lies inside."""
    codec = tiny_model(1, GRID).codec
    tokens = mx.zeros((2, 81), mx.int32)
    tokens[1, 12] = 3
    logits = codec.decode(codec.encode(tokens))
    changed = mx.abs(logits[0] - logits[1]).max(axis=-1) > 0
    assert [place for place, is_changed in enumerate(changed.tolist()) if is_changed] == [12]


def test_gradients_pass_straight_through() -> None:
    codec = tiny_model(2).codec

    def loss(latent: mx.array) -> mx.array:
        return (3 * let_gradients_through(latent, codec.quantise(latent).partials[-1])).sum()

    latent = mx.random.normal((1, 5, 4), key=mx.random.key(0))
    value, gradient = mx.value_and_grad(loss)(latent)
    assert gradient.tolist() == mx.full(latent.shape, 3.0).tolist()
    assert value.item() == pytest.approx((3 * codec.quantise(latent).partials[-1].sum()).item(), rel=1e-5)
    assert "codebook" not in codec.trainable_parameters()


def test_quantiser_dropout_keeps_some_first_levels() -> None:
    depths: Any = draw_depths(mx.random.key(5), 4000, 4, 0.5).tolist()
    counts = [depths.count(depth) for depth in (1, 2, 3, 4)]
    assert sum(counts) == 4000
    assert all(abs(count - 500) < 100 for count in counts[:3])
    assert draw_depths(mx.random.key(5), 50, 4, 0.0).tolist() == [4] * 50
    partials = [mx.full((2, 3, 1), float(level)) for level in range(4)]
    assert keep_depths(partials, mx.array([1, 4]))[:, :, 0].tolist() == [[0.0] * 3, [3.0] * 3]


def test_codes_move_to_the_mean_of_what_they_stand_for() -> None:
    vectors = mx.array([[[2.0], [4.0], [6.0]]])
    seen = Quantised([mx.array([[0, 0, 1]])], [vectors], [])
    state = CodebookState(mx.array([1.0, 1.0]), mx.array([[1.0], [1.0]]))
    book, after = update_codebook(state, seen, mx.random.key(0), decay=0.5)
    assert after.counts.tolist() == [1.5, 1.0]
    assert after.sums.tolist() == [[3.5], [3.5]]
    assert book.tolist() == [[pytest.approx(3.5 / 1.5)], [3.5]]


def test_a_dead_code_moves_to_a_vector_of_the_step() -> None:
    vectors = mx.array([[[2.0], [4.0]], [[6.0], [8.0]]])
    seen = Quantised([mx.array([[0, 0], [0, 0]])], [vectors], [])
    state = CodebookState(mx.array([1.0, 0.05]), mx.array([[1.0], [-100.0]]))
    book, after = update_codebook(state, seen, mx.random.key(0), decay=0.9)
    assert book[1].item() in (2.0, 4.0, 6.0, 8.0)
    assert after.counts[1].item() == 1.0


def test_a_codebook_starts_evenly_used() -> None:
    state = start_codebook(mx.array([[1.0, 2.0], [3.0, 4.0]]))
    assert (state.counts.tolist(), state.sums.tolist()) == ([1.0, 1.0], [[1.0, 2.0], [3.0, 4.0]])
