"""The prefix cache: the same codes and logits as without it, and nothing served that it was not filled for."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.backend import prepare
from runtime.ncm.config import NcmConfig, load_config
from runtime.ncm.experiment.comparison import LOGIT_TOLERANCE
from runtime.ncm.generation import generate
from runtime.ncm.model import NcmModel, init_model
from runtime.ncm.prefix_cache import PrefixCache, StalePrefix
from telemetry.errors import Unsupported
from tests.conftest import ROOT, run_python
from tests.runtime.ncm.test_ncm_generation import Script
from tests.runtime.ncm.tiny import GRID, TINY, draw_conditioning, tiny_model, watch_forwards

TOLERANCE = LOGIT_TOLERANCE["float32"]
"""Most that float32 logits of the two paths may differ where widths go through different matrix products."""
USERS_BLAS = """
import json, pytest
from runtime.backend import prepare
blas = prepare().blas
from runtime.ncm import load_model
from tests.runtime.ncm.test_prefix_cache import compare
found = []
for name, batch in (("sudoku-e20", 1), ("sudoku-e20", 3), ("sudoku-demo", 1), ("sudoku-demo", 3)):
    with pytest.MonkeyPatch.context() as patch:
        found.append((name, batch, *compare(load_model(name), patch, batch)))
print(json.dumps([blas, found]))
"""


def compare(
    model: NcmModel, patch: pytest.MonkeyPatch, batch: int = 1, spoil: Any = None, **options: Any
) -> tuple[bool, list[bool], float]:
    """Whether codes are equal with and without cache, at which levels logits are to the bit, and the largest gap."""
    conditioning = draw_conditioning(model.config, batch)
    with watch_forwards(patch, spoil) as cached:
        ours = generate(model, conditioning, cache=True, **options)
    with watch_forwards(patch) as uncached:
        theirs = generate(model, conditioning, cache=False, **options)
    pairs = list(zip(cached, uncached, strict=True))
    gap = max(float(mx.abs(one - other).max().item()) for one, other in pairs)
    return ours.codes == theirs.codes, [bool(mx.array_equal(*pair)) for pair in pairs], gap


def is_stock() -> bool:
    return prepare().blas == "stock"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("config", [TINY, GRID, load_config("tinyworld")], ids=lambda config: config.name)
def test_the_cache_changes_nothing(
    config: NcmConfig, batch: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (0, 1):
        model = init_model(config, seed)
        equal, bitwise, gap = compare(model, monkeypatch, batch, temperature=temperature, seed=seed)
        assert equal
        assert gap <= TOLERANCE
        assert not is_stock() or all(bitwise)


def test_the_published_size_is_equal_at_all_twelve_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    equal, bitwise, gap = compare(init_model(load_config("sudoku-e20")), monkeypatch)
    assert equal
    assert gap <= TOLERANCE
    assert not is_stock() or bitwise == [True] * 12


def test_the_documented_tolerances_are_these() -> None:
    told = (ROOT / "docs" / "ncm.md").read_text(encoding="utf-8")
    assert "The tolerance is 2e-5 in float32 (2e-2 in float16, 2e-1 in bfloat16)." in told
    assert LOGIT_TOLERANCE == {"float32": 2e-5, "float16": 2e-2, "bfloat16": 2e-1}


def test_on_the_blas_that_users_have_gaps_are_within_the_tolerance() -> None:
    child = run_python(USERS_BLAS, env={"ROUNDSCOPE_BLAS": "auto"})
    assert child.returncode == 0, child.stderr
    blas, found = json.loads(child.stdout)
    assert blas == "openblas" or sys.platform != "linux"
    assert len(found) == 4
    for name, batch, equal, bitwise, gap in found:
        assert (name, batch, equal, len(bitwise)) == (name, batch, True, load_config(name).n_levels)
        assert gap <= TOLERANCE


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("config", [TINY, GRID], ids=lambda config: config.name)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_cache_changes_nothing_in_half_the_width(
    dtype: str, config: NcmConfig, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(0, config, dtype=dtype)
    equal, bitwise, gap = compare(model, monkeypatch, 2, temperature=temperature)
    assert equal
    assert gap <= LOGIT_TOLERANCE[dtype]
    assert not is_stock() or all(bitwise)


@st.composite
def draw_configs(draw: st.DrawFn) -> NcmConfig:
    heads, half = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    lengths = tuple(sorted(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))))
    blocks = draw(st.integers(1, 2))
    return msgspec.structs.replace(
        TINY,
        prefix_length=draw(st.sampled_from([lengths[-1], 1, 6])),
        lengths=lengths,
        width=heads * half * 2,
        n_heads=heads,
        n_blocks=blocks,
        n_layers=blocks * draw(st.integers(1, 2)),
        rotary_dims=2 * draw(st.integers(0, half)),
        upsampling=draw(st.sampled_from(["linear", "area"])),
    )


@settings(max_examples=40)
@given(draw_configs(), st.integers(1, 3), st.integers(0, 99), st.sampled_from([0.0, 0.7, 2.0]), st.booleans())
def test_the_cache_changes_nothing_whatever_the_configuration(
    config: NcmConfig, batch: int, seed: int, temperature: float, cells: bool
) -> None:
    if cells and config.prefix_length == config.output_length:
        config = msgspec.structs.replace(config, level_attention="cells")
    with pytest.MonkeyPatch.context() as patch:
        equal, bitwise, gap = compare(init_model(config, seed), patch, batch, temperature=temperature, seed=seed)
    assert equal
    assert gap <= TOLERANCE
    assert not is_stock() or all(bitwise)


@pytest.mark.parametrize("make", [np.array, mx.array, tuple], ids=["numpy", "mlx", "tuple"])
def test_conditioning_may_be_an_array(make: Any) -> None:
    model, conditioning = tiny_model(), draw_conditioning(TINY, 2)
    expected = generate(model, conditioning, keep_prefix=True)
    assert generate(model, make(conditioning), prefix=expected.prefix).codes == expected.codes
    assert generate(model, make(conditioning), cache=False).codes == expected.codes


def test_an_array_that_changes_is_noticed() -> None:
    conditioning = np.array(draw_conditioning(TINY, 2))

    def check(tokens: list[list[int]], samples: list[int]) -> list[bool]:
        conditioning[1, 0] = (conditioning[1, 0] + 1) % 7
        return [False for _ in samples]

    with pytest.raises(StalePrefix, match="the conditioning has changed"):
        generate(tiny_model(), conditioning, exit="verified", check=check)


@pytest.mark.parametrize("kind", ["_keys", "_values"])
@pytest.mark.parametrize("layer", [0, 1])
def test_one_wrong_value_in_the_cache_is_noticed(kind: str, layer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(level: int, store: PrefixCache) -> None:
        if level == 1:
            held = getattr(store, kind)[layer]
            held[0, 1, 4, 2] = held[0, 1, 4, 2] + 1.0

    _, bitwise, gap = compare(tiny_model(), monkeypatch, spoil=spoil)
    assert bitwise[0]
    assert not any(bitwise[1:])
    assert gap > 10 * TOLERANCE


def test_a_wrong_cache_can_change_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(level: int, store: PrefixCache) -> None:
        if level == 1:
            store._values[0][0, :, 2] = 9.0

    equal, _, _ = compare(tiny_model(), monkeypatch, spoil=spoil)
    assert not equal


def mutate_weight(model: NcmModel) -> None:
    weight = model.generator.blocks[1].project.weight
    model.generator.blocks[1].project.weight = weight + 0.5


def mutate_in_place(model: NcmModel) -> None:
    model.generator.blocks[1].project.weight[0] = 0.5


def change_policy(model: NcmModel) -> None:
    model.config = msgspec.structs.replace(model.config, policy="block_causal")


def replace_block(model: NcmModel) -> None:
    model.generator.blocks[0] = tiny_model(5).generator.blocks[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (mutate_weight, "the weights are others"),
        (replace_block, "the weights are others"),
        (mutate_in_place, "changed in place"),
        (lambda model: model.train(), "training mode"),
        (lambda model: model.generator.blocks[1].train(), "training mode"),
        (change_policy, "policy, positions or dtype"),
    ],
    ids=["weight", "block", "in place", "training", "training of a part", "policy"],
)
def test_a_changed_model_raises_and_leaves_nothing_behind(
    change: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    conditioning = draw_conditioning(TINY, 2)

    def spoil(level: int, store: PrefixCache) -> None:
        if level == 1:
            change(model)

    with watch_forwards(monkeypatch, spoil), pytest.raises(StalePrefix, match=message):
        generate(model, conditioning)
    model.eval()
    if message != "policy, positions or dtype":
        assert generate(model, conditioning).codes == generate(model, conditioning, cache=False).codes


def test_changed_conditioning_raises() -> None:
    model = tiny_model()
    conditioning = draw_conditioning(TINY, 2)

    def check(tokens: list[list[int]], samples: list[int]) -> list[bool]:
        conditioning[1][0] = (conditioning[1][0] + 1) % 7
        return [False for _ in samples]

    with pytest.raises(StalePrefix, match="the conditioning has changed"):
        generate(model, conditioning, exit="verified", check=check)


def test_a_cache_serves_one_model_and_one_batch_until_it_is_closed() -> None:
    model, other = tiny_model(), tiny_model()
    cache = PrefixCache(model, draw_conditioning(TINY, 2))
    cache.check(model, 2)
    with pytest.raises(StalePrefix, match="the model is another"):
        cache.check(other, 2)
    with pytest.raises(StalePrefix, match="the batch has 3 samples, not 2"):
        cache.check(model, 3)
    cache.close()
    with pytest.raises(StalePrefix, match="ended with its generation"):
        cache.check(model, 2)


@pytest.mark.parametrize(("n_keys", "n_values"), [(6, 6), (8, 6), (6, 4)], ids=["as they should be", "more", "fewer"])
def test_bytes_are_those_of_the_keys_and_values_that_came(n_keys: int, n_values: int) -> None:
    model = tiny_model()
    cache = PrefixCache(model, draw_conditioning(TINY, 3))
    assert cache.nbytes == 0
    for layer in range(TINY.n_layers):
        cache.extend(layer, mx.zeros((3, 2, n_keys, 8)), mx.zeros((3, 2, n_values, 8)))
    # One position of each is the first level's; the room of five for the longest level is nobody's.
    kept = 2 * 2 * 8 * 4 * (n_keys - 1 + n_values - 1)
    assert cache.nbytes == 3 * kept
    assert sum(array.nbytes for array in cache.arrays) == 3 * 2 * 2 * 8 * 4 * 2 * (5 + 5)
    cache.compact(mx.array([0, 2]), 2)
    assert cache.nbytes == 2 * kept


def test_another_device_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, conditioning = tiny_model(), draw_conditioning(TINY, 2)
    kept = generate(model, conditioning, keep_prefix=True).prefix
    cache = PrefixCache(model, conditioning)
    other = mx.Device(mx.gpu if mx.default_device() == mx.Device(mx.cpu) else mx.cpu)
    monkeypatch.setattr(mx, "default_device", lambda: other)
    with pytest.raises(StalePrefix, match="the device is another"):
        cache.check(model, 2)
    with pytest.raises(StalePrefix, match="the device is another"):
        generate(model, conditioning, prefix=kept)


def test_a_generation_empties_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = []
    with watch_forwards(monkeypatch, lambda level, store: stores.append(store)):
        generate(tiny_model(), draw_conditioning(TINY, 1), keep_prefix=True)
    assert len({id(store) for store in stores}) == 1
    assert (stores[0].arrays, stores[0].nbytes, stores[0]._copies) == ([], 0, None)


def test_training_changes_the_next_generation_s_state_only() -> None:
    model = tiny_model()
    before = model.state()
    assert model.state() is before
    mutate_in_place(model)
    assert model.state().digest != before.digest
    assert generate(model, draw_conditioning(TINY, 1)).n_levels == [4]


def test_a_kept_prefix_serves_the_identical_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    model, conditioning = tiny_model(), draw_conditioning(TINY, 2)
    kept = generate(model, conditioning, keep_prefix=True).prefix
    assert generate(model, conditioning).prefix is None
    with watch_forwards(monkeypatch) as reusing:
        again = generate(model, conditioning, prefix=kept, seed=4, temperature=1.0)
    with watch_forwards(monkeypatch) as anew:
        assert generate(model, conditioning, cache=False, seed=4, temperature=1.0).codes == again.codes
    assert all(mx.allclose(one, other, rtol=0, atol=TOLERANCE) for one, other in zip(reusing, anew, strict=True))
    assert not is_stock() or all(mx.array_equal(*pair) for pair in zip(reusing, anew, strict=True))


@pytest.mark.parametrize("plan", [{1: 0}, {0: 0, 1: 0, 2: 0}], ids=["one leaves", "all leave"])
def test_a_kept_prefix_is_that_of_the_whole_batch(plan: dict[int, int]) -> None:
    model, conditioning = tiny_model(), draw_conditioning(TINY, 3)
    kept = generate(model, conditioning, exit="verified", check=Script(plan), keep_prefix=True).prefix
    assert kept is not None
    assert {array.shape for array in (*kept.keys, *kept.values)} == {(3, 2, 5, 8)}
    reusing = generate(model, conditioning, prefix=kept, seed=3, temperature=1.0)
    assert reusing.codes == generate(model, conditioning, cache=False, seed=3, temperature=1.0).codes


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_samples_leave_a_generation_with_a_kept_prefix(temperature: float) -> None:
    model, conditioning = tiny_model(), draw_conditioning(TINY, 3)
    kept = generate(model, conditioning, keep_prefix=True).prefix
    outputs = [
        generate(model, conditioning, temperature=temperature, exit="verified", check=Script({0: 0, 2: 2}), **options)
        for options in ({"prefix": kept, "keep_prefix": True}, {"cache": False})  # type: ignore[arg-type]
    ]
    assert [output.n_levels for output in outputs] == [[1, 4, 3]] * 2
    assert outputs[0].codes == outputs[1].codes
    assert outputs[0].tokens == outputs[1].tokens
    again = outputs[0].prefix
    assert again is not None
    assert generate(model, conditioning, prefix=again).codes == generate(model, conditioning, cache=False).codes


def test_a_kept_prefix_of_fewer_samples_is_noticed() -> None:
    model, conditioning = tiny_model(), draw_conditioning(TINY, 2)
    kept = generate(model, conditioning, keep_prefix=True).prefix
    assert kept is not None
    fewer = replace(kept, keys=[keys[:1] for keys in kept.keys], values=[values[:1] for values in kept.values])
    with pytest.raises(StalePrefix, match="it holds 1 of 2 samples"):
        generate(model, conditioning, prefix=fewer)


def test_a_kept_prefix_serves_nothing_else() -> None:
    model, conditioning = tiny_model(), draw_conditioning(TINY, 2)
    kept = generate(model, conditioning, keep_prefix=True).prefix
    assert kept is not None
    other = [row[:] for row in conditioning]
    other[1][4] = (other[1][4] + 1) % 7
    for changed in (other, conditioning[:1], [*conditioning, conditioning[0]]):
        with pytest.raises(Unsupported, match="no part of it can be reused"):
            generate(model, changed, prefix=kept)
    kept.values[0][0, 0, 0, 0] = 3.0
    with pytest.raises(StalePrefix, match="keys and values have changed"):
        generate(model, conditioning, prefix=kept)
    kept = generate(model, conditioning, keep_prefix=True).prefix
    mutate_in_place(model)
    with pytest.raises(StalePrefix, match="the weights are others"):
        generate(model, conditioning, prefix=kept)
    with pytest.raises(StalePrefix, match="the configuration"):
        generate(tiny_model(upsampling="area"), conditioning, prefix=kept)
    with pytest.raises(StalePrefix, match="the weights are others"):
        generate(tiny_model(7), conditioning, prefix=kept)
