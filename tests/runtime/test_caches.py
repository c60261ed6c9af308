"""Kept caches: trimming is checked in every layer, and damage is never passed on."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.caches import CacheError, KeptCache, Undo, require_undo
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
    with pytest.raises(CacheError, match=r"layer 1 \(ScriptedLayer\) removed 1 of 2 positions"):
        Undo(layers).trim(2)


def test_a_layer_that_says_otherwise_than_it_does_is_named() -> None:
    class Liar(ScriptedLayer):
        def trim(self, n: int) -> int:
            super().trim(n - 1)
            return n

    layer = Liar("plain")
    layer.tokens = [1, 2, 3]
    with pytest.raises(CacheError, match=r"layer 0 \(Liar\) removed 1 of 2 positions"):
        Undo([layer]).trim(2)


def test_what_a_layer_does_counts_and_not_what_it_says() -> None:
    class Silent(ScriptedLayer):
        def trim(self, n: int) -> int:
            super().trim(n)
            return 0

    layer = Silent("plain")
    layer.tokens = [1, 2, 3]
    Undo([layer]).trim(2)
    assert layer.tokens == [1]


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
    layers = [KVCache(), RotatingKVCache(max_size=4)]
    for position in range(7):
        for layer in layers:
            layer.update_and_fetch(mx.full((1, 1, 1, 2), position), mx.full((1, 1, 1, 2), position))
    cache.adopt(layers, [0] * 6)
    cache.restore(6)
    with pytest.raises(CacheError, match=r"layer 1 \(RotatingKVCache, window of 4\) cannot give back 1 positions"):
        cache.check_integrity()


def test_integrity_is_counted_in_every_layer() -> None:
    _kept([1, 2], ahead=(1, 1)).check_integrity(ahead=1)
    with pytest.raises(CacheError, match=r"layer 1 \(ScriptedLayer\) holds 3 positions instead of 2"):
        _kept([1, 2], ahead=(0, 1)).check_integrity()


def test_layers_that_cannot_be_brought_back_are_named_up_to_three() -> None:
    layers = [ScriptedLayer("untrimmable" if index % 2 else "plain") for index in range(9)]
    named = r"layer 1 \(ScriptedLayer\), layer 3 \(ScriptedLayer\), layer 5 \(ScriptedLayer\) and 1 more\. .* ordinary"
    with pytest.raises(
        Unsupported, match=rf"the drafter has a cache that can be neither trimmed nor restored: {named}"
    ):
        require_undo(layers, "the drafter")
    require_undo(layers[::2], "the drafter")


def test_bytes_are_those_of_all_layers() -> None:
    assert _kept([1, 2, 3]).nbytes == 2 * 3 * 8
