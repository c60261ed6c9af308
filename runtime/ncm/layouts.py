"""What a forward's positions are: which of prefix and levels, their rotations, who may see whom.

Constants, made once for each device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import mlx.core as mx

from runtime.ncm.attention import score_scale
from runtime.ncm.resizing import find_covered

if TYPE_CHECKING:
    from runtime.ncm.config import NcmConfig


@dataclass(frozen=True)
class Layout:
    """The positions (L) of one forward: the prefix's, if it is processed, and then those of levels.

    prefix: how many of the prefix's. level_of: the level of each other position. cos, sin: (L, 2, width), for the
    halves of queries and keys; queries are scaled by them too. mask: what is added to the scores of the levels'
    queries over prefix and levels, None where they may see all; hidden: how many pairs it takes out.
    """

    prefix: int
    level_of: mx.array
    cos: mx.array
    sin: mx.array
    mask: mx.array | None
    hidden: int

    def cut(self, start: int, stop: int) -> Layout:
        """This layout with the rotations of these positions only."""
        return replace(self, cos=self.cos[start:stop], sin=self.sin[start:stop])


class Layouts:
    """The layouts of a configuration's forwards, each made when it is first wanted."""

    def __init__(self, config: NcmConfig) -> None:
        self._config = config
        self._get = cache(self._make)

    def get(self, levels: tuple[int, ...], *, prefix: bool) -> Layout:
        """The layout of a forward over these levels on this device, after the prefix or without it."""
        return self._get(levels, prefix, score_scale(self._config.head_dim))

    def _make(self, levels: tuple[int, ...], prefix: bool, scale: float) -> Layout:
        config = self._config
        lengths = [config.lengths[level] for level in levels]
        places = [place for length in lengths for place in range(length)]
        if prefix:
            places = [*range(config.prefix_length), *places]
        cos, sin = _rotate(config, places, scale)
        mask, hidden = _mask(config, levels)
        level_of = mx.array([level for level, length in zip(levels, lengths, strict=True) for _ in range(length)])
        return Layout(config.prefix_length if prefix else 0, level_of, cos, sin, mask, hidden)


def _rotate(config: NcmConfig, places: list[int], scale: float) -> tuple[mx.array, mx.array]:
    """Cosines and signed sines for positions `places`, laid out as `Block.make_heads` multiplies them; those of the
    queries times `scale`.
    """
    half, rotary = config.head_dim // 2, config.rotary_dims
    speeds = [config.rotary_base ** (-2 * pair / rotary) if pair < rotary // 2 else 0.0 for pair in range(half)]
    angles = mx.array([[place * speed for speed in speeds] for place in places])
    scales = mx.array([scale, 1.0])

    def spread(values: mx.array) -> mx.array:
        """(L, D/2) to (L, queries and keys * H * D/2), the queries' part scaled."""
        heads = mx.tile(values[:, None, None], (1, 1, config.n_heads, 1))
        return (scales[None, :, None, None] * heads).reshape(len(places), config.width)

    cos, sin = spread(mx.cos(angles)), spread(mx.sin(angles))
    dtype = getattr(mx, config.dtype)
    return mx.stack([cos, cos], axis=1).astype(dtype), mx.stack([-sin, sin], axis=1).astype(dtype)


def _mask(config: NcmConfig, levels: tuple[int, ...]) -> tuple[mx.array | None, int]:
    """The mask of level queries over prefix and levels, and how many pairs it hides."""
    rows = [
        [*prefix, *own] for prefix, own in zip(_see_prefix(config, levels), _see_levels(config, levels), strict=True)
    ]
    hidden = sum(row.count(False) for row in rows)
    if not hidden:
        return None, 0
    return mx.where(mx.array(rows), 0.0, -mx.inf).astype(getattr(mx, config.dtype)), hidden


def _see_prefix(config: NcmConfig, levels: tuple[int, ...]) -> list[list[bool]]:
    cells = range(config.prefix_length)
    lengths = [config.lengths[level] for level in levels]
    if config.level_attention == "all":
        return [[True for _ in cells] for _ in range(sum(lengths))]
    covered = [cover for length in lengths for cover in find_covered(config.prefix_length, length)]
    return [[cell in cover for cell in cells] for cover in covered]


def _see_levels(config: NcmConfig, levels: tuple[int, ...]) -> list[list[bool]]:
    level_of = [level for level in levels for _ in range(config.lengths[level])]
    earlier = config.policy == "block_causal"
    return [[theirs == ours or (earlier and theirs < ours) for theirs in level_of] for ours in level_of]
