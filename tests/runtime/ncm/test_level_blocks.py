"""Blocks of the levels' own: the prefix is processed without them, and everything else holds as with shared ones."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import msgspec
import pytest

from runtime.ncm.config import NcmConfig
from runtime.ncm.generation import generate
from runtime.ncm.prefix_cache import PrefixCache
from telemetry.errors import UsageError
from tests.runtime.ncm.tiny import GRID, TINY, draw_conditioning, tiny_model

CONFIGS = [msgspec.structs.replace(TINY, level_blocks=1), msgspec.structs.replace(GRID, level_blocks=2)]


def scale(weights: Any, by: float) -> None:
    weights.weight = weights.weight * by


def read_cache(base: NcmConfig, spoil: bool) -> tuple[Any, Any]:
    """The prefix's keys and values in every layer after the first level, and that level's logits."""
    model = tiny_model(base=base)
    if spoil:
        for block in model.generator.level_blocks:
            scale(block.project, 2)
    conditioning = draw_conditioning(base, 2)
    cache = PrefixCache(model, conditioning)
    logits = model.generator.forward_level(0, mx.ones((2, 1, base.code_dim)), mx.array(conditioning), cache)
    kept = cache.keep()
    return [array.tolist() for array in (*kept.keys, *kept.values)], logits.tolist()


@pytest.mark.parametrize("base", CONFIGS, ids=lambda config: config.name)
def test_the_prefix_is_processed_without_them(base: NcmConfig) -> None:
    (prefix, logits), (spoilt_prefix, spoilt_logits) = read_cache(base, spoil=False), read_cache(base, spoil=True)
    assert spoilt_prefix == prefix
    assert spoilt_logits != logits


@pytest.mark.parametrize("base", CONFIGS, ids=lambda config: config.name)
def test_levels_read_what_the_prefix_s_blocks_made(base: NcmConfig) -> None:
    model = tiny_model(base=base)
    conditioning = mx.array(draw_conditioning(base, 2))
    inputs = mx.ones((2, 1, base.code_dim))
    before = model.generator.forward_level(0, inputs, conditioning)
    scale(model.generator.blocks[0].project, 2)
    assert not mx.allclose(model.generator.forward_level(0, inputs, conditioning), before)


@pytest.mark.parametrize("base", CONFIGS, ids=lambda config: config.name)
def test_cached_codes_are_the_uncached_ones(base: NcmConfig) -> None:
    model, conditioning = tiny_model(base=base), draw_conditioning(base, 3)
    cached, uncached = (generate(model, conditioning, cache=cache, temperature=1.0, seed=5) for cache in (True, False))
    assert cached.codes == uncached.codes
    assert len({str(codes) for codes in cached.codes}) == 3


def test_applications_share_them_in_turn() -> None:
    with pytest.raises(UsageError, match="n_layers 4 must be a multiple of level_blocks 3"):
        msgspec.structs.replace(GRID, level_blocks=3).__post_init__()
    with pytest.raises(UsageError, match="level_blocks must not be negative"):
        msgspec.structs.replace(GRID, level_blocks=-1).__post_init__()
    assert len(tiny_model(base=GRID, level_blocks=2).generator.level_blocks) == 2
