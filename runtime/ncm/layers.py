"""One transformer layer of the generator: per-position LayerNorm, heads with rotary positions, feed-forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import mlx.core as mx
import mlx.nn as nn

from runtime.ncm.layouts import Layout

if TYPE_CHECKING:
    from runtime.ncm.config import NcmConfig


class KeyValueStore(Protocol):
    """Where a layer's keys and values (B, H, L, D) go; what comes back is all that level queries read."""

    def extend(self, layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Take the keys and values just made in layer application `layer`."""


class Block(nn.Module):
    """The weights of a layer; several applications may share one block."""

    def __init__(self, config: NcmConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        width = config.width
        self.attention_norm, self.ffn_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.merge = nn.Linear(width, width, bias=False)
        self.ffn_in, self.ffn_out = nn.Linear(width, config.ffn_width), nn.Linear(config.ffn_width, width)
        self.dropout = nn.Dropout(config.dropout)
        self._heads = config.n_heads

    def make_heads(self, x: mx.array, layout: Layout) -> tuple[mx.array, mx.array, mx.array]:
        """Queries, keys, values (B, H, L, D) of x (B, L, width): normalised, projected, and the former two rotated.

        The projection's outputs are the first halves of all heads of queries and keys, their second halves, and the
        values: so that rotation is two products and a sum over everything at once.
        """
        batch, length, width = x.shape
        heads, dim = self._heads, width // self._heads
        projected = self.project(self.attention_norm(x))
        halves = projected[..., : 2 * width].reshape(batch, length, 2, width)
        rotated = halves * layout.cos + halves[:, :, ::-1] * layout.sin
        rotated = rotated.reshape(batch, length, 2, 2, heads, dim // 2).transpose(3, 0, 4, 1, 2, 5)
        queries, keys = rotated.reshape(2, batch, heads, length, dim)
        values = projected[..., 2 * width :].reshape(batch, length, heads, dim).swapaxes(1, 2)
        return queries, keys, values

    def finish(self, x: mx.array, attended: mx.array) -> mx.array:
        """The layer's output (B, L, width) from its input and what its heads attended to (B, L, H, D)."""
        x = x + self.dropout(self.merge(attended.reshape(x.shape)))
        hidden = mx.square(mx.maximum(self.ffn_in(self.ffn_norm(x)), 0))
        output: mx.array = x + self.dropout(self.ffn_out(hidden))
        return output
