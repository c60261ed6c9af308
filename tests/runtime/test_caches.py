"""Kept caches: trimming is checked in every layer, and damage is never passed on."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.caches import CacheError, KeptCache, find_untrimmable, require_trimmable, trim_layers
from runtime.testing import ScriptedLayer, ScriptedTarget
from telemetry.errors import Unsupported


def _kept(tokens: list[int], kind: Any = "plain", ahead: tuple[int, ...] = (0, 0)) -> KeptCache:
    cache = KeptCache(ScriptedTarget(lambda history: 0, vocab_size=2, cache=kind))
    for layer, extra in zip(cache.layers, ahead, strict=True):
        layer.tokens = [*tokens, *[7] * extra]
    cache.tokens = list(tokens)
    return cache


def test_trimming_takes_the_newest_positions_out_of_every_layer() -> None:
    cache = _kept([1, 2, 3, 4])
    cache.trim_to(1)
    assert (cache.tokens, [layer.tokens for layer in cache.layers]) == ([1], [[1], [1]])
    cache.check_integrity()


def test_one_layer_that_trims_another_number_is_named() -> None:
    layers = [ScriptedLayer("plain"), ScriptedLayer("sluggish")]
    for layer in layers:
        layer.tokens = [1, 2, 3]
    with pytest.raises(CacheError, match=r"layer 1 \(ScriptedLayer\) removed 1 of 2 positions and went from 3 to 2"):
        trim_layers(layers, 2)


def test_a_layer_that_says_otherwise_than_it_does_is_named() -> None:
    class Liar(ScriptedLayer):
        def trim(self, n: int) -> int:
            super().trim(n - 1)
            return n

    layer = Liar("plain")
    layer.tokens = [1, 2, 3]
    with pytest.raises(CacheError, match=r"layer 0 \(Liar\) removed 2 of 2 positions and went from 3 to 2"):
        trim_layers([layer], 2)


def test_a_layer_that_does_otherwise_than_it_says_is_named() -> None:
    class Silent(ScriptedLayer):
        def trim(self, n: int) -> int:
            super().trim(n)
            return 0

    layer = Silent("plain")
    layer.tokens = [1, 2, 3]
    with pytest.raises(CacheError, match=r"layer 0 \(Silent\) removed 0 of 2 positions and went from 3 to 1"):
        trim_layers([layer], 2)


def test_a_failed_trim_damages_the_cache() -> None:
    cache = _kept([1, 2, 3, 4], "sluggish")
    with pytest.raises(CacheError, match="removed 1 of 2"):
        cache.trim_to(2)
    with pytest.raises(CacheError, match="removed 1 of 2"):
        cache.check_integrity()
    with pytest.raises(ValueError, match="damaged"):
        cache.acquire(cache.target)


@pytest.mark.parametrize("ahead", [(0, 0), (3, 0), (4, 4), (5, 1)])
def test_restoring_brings_back_layers_that_got_differently_far(ahead: tuple[int, int]) -> None:
    cache = _kept([1, 2, 3, 4], ahead=ahead)
    cache.restore(3)
    assert (cache.tokens, [layer.tokens for layer in cache.layers]) == ([1, 2, 3], [[1, 2, 3]] * 2)
    cache.check_integrity()
    cache.acquire(cache.target)


def test_restoring_never_pretends_to_hold_more_than_there_is() -> None:
    cache = _kept([1, 2])
    cache.restore(9)
    assert cache.tokens == [1, 2]
    cache.check_integrity()
    del cache.layers[1].tokens[1:]
    cache.restore(2)
    with pytest.raises(CacheError, match=r"layer 1 \(ScriptedLayer\) cannot be brought back to 2 positions"):
        cache.check_integrity()


def test_restoring_what_cannot_be_trimmed_damages_it_unless_nothing_happened() -> None:
    cache = _kept([1, 2, 3], "untrimmable")
    cache.restore(3)
    cache.check_integrity()
    cache.layers[0].tokens.append(4)
    cache.restore(3)
    with pytest.raises(CacheError, match="layer 0"):
        cache.check_integrity()


def test_a_rotating_cache_is_not_taken_for_restored() -> None:
    """Its `trim` says yes although the oldest entries have been overwritten."""
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache, RotatingKVCache

    cache = _kept([])
    cache.layers = [KVCache(), RotatingKVCache(max_size=4)]
    for position in range(7):
        for layer in cache.layers:
            layer.update_and_fetch(mx.full((1, 1, 1, 2), position), mx.full((1, 1, 1, 2), position))
    cache.tokens = [0] * 6
    cache.restore(6)
    with pytest.raises(CacheError, match=r"layer 1 \(RotatingKVCache, window of 4\) cannot be brought back"):
        cache.check_integrity()


def test_integrity_is_counted_in_every_layer() -> None:
    _kept([1, 2], ahead=(1, 1)).check_integrity(ahead=1)
    with pytest.raises(CacheError, match=r"layer 1 \(ScriptedLayer\) holds 3 positions instead of 2"):
        _kept([1, 2], ahead=(0, 1)).check_integrity()


def test_untrimmable_layers_are_named_up_to_three() -> None:
    layers = [ScriptedLayer("untrimmable" if index % 2 else "plain") for index in range(9)]
    assert find_untrimmable(layers) == (
        "layer 1 (ScriptedLayer), layer 3 (ScriptedLayer), layer 5 (ScriptedLayer) and 1 more"
    )
    with pytest.raises(Unsupported, match=r"the drafter has a cache that cannot be trimmed: layer 1 .* and 1 more"):
        require_trimmable(layers, "the drafter")


def test_only_plain_caches_of_mlx_lm_count_as_trimmable() -> None:
    """`is_trimmable` alone is not asked: a rotating one says yes until its window is full."""
    from mlx_lm.models import cache as kinds

    layers = [
        kinds.KVCache(),
        kinds.RotatingKVCache(max_size=16),
        kinds.ArraysCache(size=2),
        kinds.ConcatenateKVCache(),
    ]
    assert find_untrimmable(layers) == (
        "layer 1 (RotatingKVCache, window of 16), layer 2 (ArraysCache), layer 3 (ConcatenateKVCache)"
    )
    assert find_untrimmable(layers[:1]) is None


def test_bytes_are_those_of_all_layers() -> None:
    assert _kept([1, 2, 3]).nbytes == 2 * 3 * 8
