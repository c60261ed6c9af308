"""The codec: from tokens to levels of codes, and from any first levels back to tokens.

Residual quantisation over levels, as in next-scale prediction (VAR, arXiv 2404.02905), along one dimension: what is
left of the latent is averaged down to the level's length, each position takes the nearest vector of one shared
codebook, and the vectors, brought up to full length, are subtracted before the next level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as nn

from runtime.ncm.cells import arrange_cells, invert
from runtime.ncm.resizing import resize_by_area, resize_linearly, to_array

if TYPE_CHECKING:
    from runtime.ncm.config import NcmConfig

NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class Quantised:
    """What became of latents (B, N, code_dim).

    codes: (B, l[k]) of each level. pooled: (B, l[k], code_dim), what each level looked nearest vectors up for.
    partials: (B, N, code_dim), the cumulative reconstruction after each level.
    """

    codes: list[mx.array]
    pooled: list[mx.array]
    partials: list[mx.array]


class Codec(nn.Module):
    """Encoder, shared codebook and decoder. Positions are in the configuration's cell order inside, in the tokens'
    own order outside. The codebook is no parameter of gradients: `runtime.ncm.codebook` updates it.
    """

    def __init__(self, config: NcmConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        hidden, dim = config.codec_width, config.code_dim
        self.embedding = nn.Embedding(config.vocab, hidden)
        self.encode_in, self.encode_out = nn.Linear(hidden, hidden), nn.Linear(hidden, dim)
        self.codebook = mx.random.normal((config.codebook_size, dim))
        self.decode_in, self.decode_out = nn.Linear(dim, hidden), nn.Linear(hidden, config.vocab)
        self.freeze(keys="codebook", recurse=False)
        self.set_constants(config)

    def set_constants(self, config: NcmConfig) -> None:
        """Make the resizing matrices and the cell order, in the configuration's type."""
        dtype, full = getattr(mx, config.dtype), config.output_length
        enlarge = resize_linearly if config.upsampling == "linear" else resize_by_area
        self._dim, self._dtype, self._lengths = config.code_dim, dtype, config.lengths
        self._down = [None if n == full else to_array(resize_by_area(full, n), dtype) for n in config.lengths]
        self._up = [None if n == full else to_array(enlarge(n, full), dtype) for n in config.lengths]
        order = arrange_cells(config.cell_order, full)
        moved = config.cell_order != "rows"
        self._order = mx.array(order) if moved else None
        self._back = mx.array(invert(order)) if moved else None

    @property
    def n_levels(self) -> int:
        """Levels of the hierarchy (K)."""
        return len(self._lengths)

    def encode(self, tokens: mx.array) -> mx.array:
        """Latents (B, N, code_dim) of tokens (B, N), of mean square one: they cannot outgrow the codebook."""
        if self._order is not None:
            tokens = tokens[:, self._order]
        latent: mx.array = self.encode_out(_squared_relu(self.encode_in(self.embedding(tokens))))
        return latent * mx.rsqrt(mx.square(latent).mean(axis=-1, keepdims=True) + NORM_EPSILON)

    def quantise(self, latent: mx.array) -> Quantised:
        """All levels of codes for latents (B, N, code_dim), without gradients."""
        found = Quantised([], [], [])
        partial = mx.zeros_like(latent)
        latent = mx.stop_gradient(latent)
        for level in range(len(self._lengths)):
            pooled = self._pool(level, latent - partial)
            codes = self.find_nearest(pooled)
            partial = self.add_level(level, partial, codes)
            found.pooled.append(pooled)
            found.codes.append(codes)
            found.partials.append(partial)
        return found

    def find_nearest(self, vectors: mx.array) -> mx.array:
        """The code whose vector is nearest to each of `vectors` (..., code_dim); the lowest one on ties."""
        book = mx.stop_gradient(self.codebook)
        return mx.argmax(vectors @ book.T - mx.square(book).sum(axis=-1) / 2, axis=-1)

    def start(self, batch: int) -> mx.array:
        """The cumulative reconstruction (batch, N, code_dim) before any level: nothing."""
        return mx.zeros((batch, self._lengths[-1], self._dim), self._dtype)

    def make_input(self, level: int, partial: mx.array) -> mx.array:
        """What the generator is given at `level`, (B, l[level], code_dim): the reconstruction so far, scaled down."""
        return self._pool(level, partial)

    def add_level(self, level: int, partial: mx.array, codes: mx.array) -> mx.array:
        """The cumulative reconstruction (B, N, code_dim) after the codes (B, l[level]) of `level`."""
        vectors = mx.stop_gradient(self.codebook)[codes]
        up = self._up[level]
        return partial + (vectors if up is None else up @ vectors)

    def make_inputs(self, partials: Sequence[mx.array]) -> list[mx.array]:
        """The generator's inputs at every level, from the reconstructions after each (teacher forcing)."""
        before = [mx.zeros_like(partials[0]), *partials[:-1]]
        return [self.make_input(level, partial) for level, partial in enumerate(before)]

    def decode(self, partial: mx.array) -> mx.array:
        """Token logits (B, N, vocab) of a cumulative reconstruction (B, N, code_dim), whichever levels are in it."""
        logits: mx.array = self.decode_out(_squared_relu(self.decode_in(partial)))
        return logits if self._back is None else logits[:, self._back]

    def _pool(self, level: int, values: mx.array) -> mx.array:
        down = self._down[level]
        return values if down is None else down @ values


def let_gradients_through(latent: mx.array, quantised: mx.array) -> mx.array:
    """`quantised` in value, `latent` for gradients (the straight-through estimator)."""
    return latent + mx.stop_gradient(quantised - latent)


def draw_depths(key: mx.array, batch: int, n_levels: int, share: float) -> mx.array:
    """Quantiser dropout: how many levels each sample keeps, (batch,). All of them, but for a `share` of the samples,
    for which any number from 1 on is as probable as another (as in SoundStream, arXiv 2107.03312).
    """
    which, depth = mx.random.split(key)
    shortened = mx.random.uniform(shape=(batch,), key=which) < share
    return mx.where(shortened, mx.random.randint(1, n_levels + 1, (batch,), key=depth), n_levels)


def keep_depths(partials: Sequence[mx.array], depths: mx.array) -> mx.array:
    """Each sample's reconstruction (B, N, code_dim) after `depths` (B,) levels."""
    index = (depths - 1)[None, :, None, None]
    return mx.take_along_axis(mx.stack(list(partials)), index, axis=0)[0]


def _squared_relu(values: mx.array) -> mx.array:
    return mx.square(mx.maximum(values, 0))
