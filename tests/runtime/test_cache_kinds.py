"""Every cache class of the installed mlx-lm is classed, and what its kind takes back was never there."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models import cache as caches
from mlx_lm.models.base import create_attention_mask, scaled_dot_product_attention
from mlx_lm.models.deepseek_v41 import LayerCache

from runtime.caches import CacheError, Undo, kind_of, require_undo
from runtime.caches.kinds import KINDS, REFUSED, flatten
from telemetry.errors import Unsupported

SIZE = 8
DIM = 32

MAKERS: dict[str, Callable[[], Any]] = {
    "KVCache": caches.KVCache,
    "QuantizedKVCache": lambda: caches.QuantizedKVCache(group_size=DIM, bits=8),
    "ConcatenateKVCache": caches.ConcatenateKVCache,
    "RotatingKVCache": lambda: caches.RotatingKVCache(max_size=SIZE),
    "ChunkedKVCache": lambda: caches.ChunkedKVCache(SIZE),
    "ArraysCache": lambda: caches.ArraysCache(size=2),
    "CacheList": lambda: caches.CacheList(caches.ArraysCache(size=2), caches.RotatingKVCache(max_size=SIZE)),
}
"""One layer of every class that can be brought back."""

TRIMMED = [name for name in MAKERS if name not in ("ArraysCache", "CacheList")]
rounds = st.lists(st.integers(1, 6).flatmap(lambda w: st.tuples(st.just(w), st.integers(0, w))), min_size=1, max_size=6)
profile = settings(max_examples=60, deadline=None, derandomize=True)


def test_every_cache_class_of_mlx_lm_is_classed() -> None:
    classes = {
        name
        for name, member in vars(caches).items()
        if isinstance(member, type) and issubclass(member, caches._BaseCache) and member is not caches._BaseCache
    }
    assert classes == {*KINDS, *REFUSED, "CacheList"}
    assert set(KINDS) == set(MAKERS) - {"CacheList"}
    assert not set(KINDS) & set(REFUSED)


def test_no_model_of_mlx_lm_has_a_cache_class_that_nobody_looked_at() -> None:
    """Read, not imported: a hundred modules. `LayerCache` says that it cannot be trimmed, and is refused for it."""
    folder = Path(caches.__file__).parent
    found = {
        f"{source.stem}.{node.name}"
        for source in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Cache") and source.name != Path(caches.__file__).name
    }
    assert found == {"deepseek_v41.LayerCache"}
    with pytest.raises(Unsupported, match=r"layer 0 \(LayerCache\)"):
        require_undo([LayerCache(SIZE)], "it")


@functools.cache
def _entries() -> Any:
    return mx.random.normal((1, 1, 512, DIM), key=mx.random.key(3))


def feed(layer: Any, start: int, width: int) -> Any:
    """What a forward over `width` positions from `start` on computes with the layer: (1, 1, width, DIM)."""
    entries = _entries()[..., start : start + width, :]
    if isinstance(layer, caches.CacheList):
        return sum(feed(member, start, width) for member in layer.caches)
    if isinstance(layer, caches.ArraysCache):
        return _recur(layer, entries)
    assert layer.offset == start
    if isinstance(layer, caches.ChunkedKVCache):
        layer.maybe_trim_front()
        seen, asking = mx.arange(layer.start_position, start + width), mx.arange(start, start + width)[:, None]
        mask = (seen // SIZE == asking // SIZE) & (seen <= asking)
    else:
        mask = create_attention_mask(entries[0], layer)
    keys, values = layer.update_and_fetch(entries, entries)
    return scaled_dot_product_attention(entries, keys, values, cache=layer, scale=1.0, mask=mask)


def _recur(layer: Any, entries: Any) -> Any:
    state = mx.zeros((1, 1, DIM)) if layer[0] is None else layer[0]
    output = []
    for position in range(entries.shape[2]):
        state = 0.5 * state + entries[..., position, :]
        output.append(state)
    layer[0], layer[1] = state, entries[..., -1, :]
    return mx.stack(output, axis=2)


def see(layer: Any) -> list[list[float]]:
    """What the next forward can see of the layer, in order of position."""
    if isinstance(layer, caches.CacheList):
        return [row for member in layer.caches for row in see(member)]
    if isinstance(layer, caches.ArraysCache):
        return [[] if array is None else array.flatten().tolist() for array in layer.cache]
    if layer.keys is None or layer.offset == 0:
        return []
    if isinstance(layer, caches.RotatingKVCache):
        return layer._temporal_order(layer.keys)[0, 0].tolist()[-min(layer.offset, SIZE - 1) :]
    keys = layer.keys_and_values()[0]
    if isinstance(layer, caches.QuantizedKVCache):
        keys = mx.dequantize(*keys, group_size=layer.group_size, bits=layer.bits)
    rows = keys[0, 0].tolist()
    if isinstance(layer, caches.ChunkedKVCache):
        return rows[layer.offset // SIZE * SIZE - layer.start_position :]
    return rows


def assert_same(layer: Any, twin: Any, length: int, width: int) -> None:
    """Both show the same, and the next forward computes the same with either."""
    assert see(layer) == see(twin)
    assert mx.allclose(feed(layer, length, width), feed(twin, length, width), rtol=0, atol=1e-5).item()
    assert see(layer) == see(twin)


@pytest.mark.parametrize("name", TRIMMED)
@profile
@given(prefill=st.integers(0, 20), rounds=rounds, width=st.integers(1, 3))
def test_what_is_trimmed_was_never_there(
    name: str, prefill: int, rounds: Sequence[tuple[int, int]], width: int
) -> None:
    """Round after round, before and after the window wraps or a chunk ends."""
    layer, twin = MAKERS[name](), MAKERS[name]()
    undo = Undo([layer])
    assert undo.way == "trim"
    length = prefill
    for each in (layer, twin) if prefill else ():
        feed(each, 0, prefill)
    for fed, rejected in rounds:
        feed(layer, length, fed)
        if undo.can_trim(rejected):
            undo.trim(rejected)
            fed -= rejected
        else:
            assert fed == 1
            assert length + 1 > SIZE - 1
            assert name == "RotatingKVCache"
        if fed:
            feed(twin, length, fed)
        length += fed
        assert see(layer) == see(twin)
    assert_same(layer, twin, length, width)
    assert_same(layer, twin, length + width, 1)


@pytest.mark.parametrize("stepwise", [False, True], ids=["block", "stepwise"])
@pytest.mark.parametrize("name", list(MAKERS))
@profile
@given(
    prefill=st.integers(0, 20),
    grown=st.integers(2, 8),
    steps=st.integers(0, 3),
    width=st.integers(1, 3),
    announced=st.booleans(),
)
def test_what_is_undone_was_never_there(
    stepwise: bool, name: str, prefill: int, grown: int, steps: int, width: int, announced: bool
) -> None:
    """By trim or snapshot, also a second time from the same snapshot."""
    layer, twin = MAKERS[name](), MAKERS[name]()
    undo = Undo([layer], stepwise=stepwise)
    for each in (layer, twin):
        if prefill:
            feed(each, 0, prefill)
        for position in range(prefill, prefill + steps):
            feed(each, position, 1)
    length = prefill + steps
    undo.begin(length, grown if announced and stepwise else None)
    for _ in range(2):
        for start in range(length, length + grown, 1 if stepwise else grown):
            feed(layer, start, 1 if stepwise else grown)
        undo.back(grown)
        assert see(layer) == see(twin)
    undo.end()
    assert undo.snapshot_bytes == 0
    assert_same(layer, twin, length, width)
    assert_same(layer, twin, length + width, 1)


def test_ways() -> None:
    """omlx PR#3416: no snapshot where a trim is exact."""
    assert {name: (Undo([make()]).way, Undo([make()], stepwise=True).way) for name, make in MAKERS.items()} == {
        "KVCache": ("trim", "trim"),
        "QuantizedKVCache": ("trim", "trim"),
        "ConcatenateKVCache": ("trim", "trim"),
        "RotatingKVCache": ("trim", "snapshot"),
        "ChunkedKVCache": ("trim", "snapshot"),
        "ArraysCache": ("snapshot", "snapshot"),
        "CacheList": ("snapshot", "snapshot"),
    }


@pytest.mark.parametrize("name", ["RotatingKVCache", "ChunkedKVCache"])
def test_no_snapshot_is_kept_of_what_steps_can_be_trimmed_from(name: str) -> None:
    """A window that is not full, a chunk that goes on: the announced steps decide it, round by round."""
    layer = MAKERS[name]()
    undo = Undo([layer], stepwise=True)
    feed(layer, 0, 4)
    undo.begin(4, SIZE - 4)
    assert (undo.way, undo.snapshot_bytes) == ("trim", 0)
    undo.begin(4, SIZE)
    assert undo.way == "snapshot"
    assert undo.snapshot_bytes > 0


@pytest.mark.parametrize("name", list(MAKERS))
def test_more_than_there_is_cannot_be_trimmed(name: str) -> None:
    layer = MAKERS[name]()
    feed(layer, 0, 3)
    undo = Undo([layer])
    before = see(layer)
    assert not undo.can_trim(4)
    with pytest.raises(CacheError, match=r"layer 0 \(\w+.*\) cannot give back 4 positions"):
        undo.trim(4)
    assert see(layer) == before


def test_a_full_window_gives_nothing_back_after_a_single_step() -> None:
    """Its own `trim` says yes as long as the window is not full, and then overwrites."""
    layer = MAKERS["RotatingKVCache"]()
    feed(layer, 0, SIZE - 1)
    feed(layer, SIZE - 1, 1)
    kind = kind_of(layer)
    assert kind is not None
    assert kind.can_trim(layer, 1)
    feed(layer, SIZE, 1)
    assert not kind.can_trim(layer, 1)
    assert kind.can_trim(layer, 0)


def test_a_chunk_gives_nothing_back_beyond_its_beginning() -> None:
    layer = MAKERS["ChunkedKVCache"]()
    for position in range(SIZE + 3):
        feed(layer, position, 1)
    kind = kind_of(layer)
    assert kind is not None
    assert [kind.can_trim(layer, n) for n in range(6)] == [True, True, True, True, False, False]


def test_a_list_of_caches_stands_for_its_members() -> None:
    layers = [caches.KVCache(), caches.CacheList(caches.KVCache(), caches.CacheList(caches.ArraysCache(size=1)))]
    assert [type(layer).__name__ for layer in flatten(layers)] == ["KVCache", "KVCache", "ArraysCache"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_batches_are_refused_by_layer_and_with_the_cure(name: str) -> None:
    batch = getattr(caches, name)(*([SIZE] if "Rotating" in name else []), [0, 0])
    with pytest.raises(Unsupported, match=rf"the target has a cache .*: layer 1 \({name}.*Use ordinary decoding"):
        require_undo([caches.KVCache(), batch], "the target")
    assert kind_of(batch) is None


def test_a_window_that_keeps_its_first_entries_is_refused() -> None:
    """Its mask of a block is by place, so that later rows would miss some of the entries kept for good."""
    with pytest.raises(Unsupported, match=r"the draft model has a cache .*: layer 0 \(RotatingKVCache, window of 8\)"):
        require_undo([caches.RotatingKVCache(max_size=SIZE, keep=2), caches.KVCache()], "the draft model")
