"""Attention of the generator: over everything, or within the units of a 9 x 9 grid.

On CPUs most of attention's time is the exponential, and MLX's power of two is more than twice as fast as its `exp`
there: scores are then in units of log 2. Its fused attention is the same three steps on a CPU.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import mlx.core as mx

from runtime.ncm.cells import SIDE, invert, list_units
from runtime.ncm.config import CELLS, UNIT_KINDS
from runtime.ncm.tally import Tally

if TYPE_CHECKING:
    from runtime.ncm.config import NcmConfig


def attend(
    queries: mx.array, keys: mx.array, values: mx.array, tally: Tally, mask: mx.array | None = None, hidden: int = 0
) -> mx.array:
    """Softmax attention (B, H, ..., L, D) of queries (scaled by `score_scale`) over keys and values (B, H, ..., S, D).

    mask: added to the scores (L, S), minus infinity at the `hidden` pairs a sample that may not be.
    """
    tally.add_attention(queries.shape, keys.shape, hidden)
    scores = queries @ keys.swapaxes(-1, -2)
    if mask is not None:
        scores = scores + mask
    if not _on_cpu():
        return mx.softmax(scores, axis=-1) @ values
    weights = mx.power(2.0, scores - mx.stop_gradient(scores.max(axis=-1, keepdims=True)))
    return (weights @ values) / weights.sum(axis=-1, keepdims=True)


def score_scale(head_dim: int) -> float:
    """What queries are multiplied with: 1 / sqrt(D), and log2(e) where `attend` uses powers of two."""
    return float(head_dim**-0.5 * (math.log2(math.e) if _on_cpu() else 1.0))


def _on_cpu() -> bool:
    return bool(mx.default_device() == mx.Device(mx.cpu))


class Units:
    """Prefix attention of a 9 x 9 grid: a third of the heads each within rows, columns and boxes, nothing masked."""

    def __init__(self, config: NcmConfig) -> None:
        units = [order for order in list_units(config.cell_order) for _ in range(config.n_heads // UNIT_KINDS)]
        self._sort = mx.array([head * CELLS + cell for head, order in enumerate(units) for cell in order])
        self._back = mx.array([head * CELLS + place for head, order in enumerate(units) for place in invert(order)])

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, tally: Tally) -> mx.array:
        """What the prefix's queries read, (B, H, P, D)."""
        attended = attend(self._split(queries), self._split(keys), self._split(values), tally)
        flat = attended.reshape(queries.shape[0], -1, queries.shape[-1])
        return flat[:, self._back].reshape(queries.shape)

    def _split(self, heads: mx.array) -> mx.array:
        batch, n_heads, _, dim = heads.shape
        return heads.reshape(batch, -1, dim)[:, self._sort].reshape(batch, n_heads, SIDE, SIDE, dim)
