"""A kept cache in a file: it goes on as if it had never left memory, and nobody else's is taken for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.caches import KeptCache
from runtime.caches.files import load_cache, save_cache
from runtime.generate import decode
from runtime.targets import MlxTarget
from runtime.testing import ScriptedTarget
from telemetry.errors import RoundscopeError, UsageError
from telemetry.recorder import Recorder
from tests.models import tiny_llama
from tests.runtime.scripted import counting
from tests.runtime.turns import MODELS, PROMPT, TARGETS, WAYS, ask, count_cached, drain


@MODELS
@pytest.mark.parametrize("way", WAYS)
def test_a_cache_from_a_file_is_warm_what_a_cold_one_is(model: str, way: str, tmp_path: Path) -> None:
    target = TARGETS[model]()
    first = ask(way, target, PROMPT, 11)
    history = [*PROMPT, *drain(first), 4, 6]
    save_cache(first.cache, tmp_path / "turn.safetensors")
    loaded = load_cache(tmp_path / "turn.safetensors", TARGETS[model]())
    assert (loaded.tokens, loaded.in_use) == (first.cache.tokens, False)
    loaded.target = target
    recorder = Recorder()
    second = ask(way, target, history, 20, cache=loaded, recorder=recorder)
    assert drain(second) == decode(target, history, max_tokens=20).drain().tokens
    assert count_cached(recorder) == len(first.cache.tokens)
    assert [path.name for path in tmp_path.iterdir()] == ["turn.safetensors"]


def test_a_cache_goes_through_a_file_between_all_turns(tmp_path: Path) -> None:
    """The same file over and over; a cache that holds nothing is one too."""
    target, history = tiny_llama(1), list(PROMPT)
    save_cache(KeptCache(target), tmp_path / "turn.safetensors")
    for way in ("decode", "suffix", "assistant"):
        cache = load_cache(tmp_path / "turn.safetensors", target)
        generation = ask(way, target, history, 9, cache=cache)
        assert drain(generation) == decode(target, history, max_tokens=9).drain().tokens
        history = [*history, *generation.tokens, 3]
        save_cache(generation.cache, tmp_path / "turn.safetensors")


def _change_a_weight(target: MlxTarget) -> None:
    layer = target.model.model.layers[0].self_attn.q_proj
    layer.weight = layer.weight * 1.01


def _rename(target: MlxTarget) -> None:
    target.name = "another"


def _change_one_number(target: MlxTarget) -> None:
    layer = target.model.model.layers[1].self_attn.o_proj
    layer.weight[3, 4] = layer.weight[4, 3] * 0.5


def _cast(target: MlxTarget) -> None:
    import mlx.core as mx

    target.model.set_dtype(mx.float16)


def _rotate_pairs(target: MlxTarget) -> None:
    target.model.model.layers[0].self_attn.rope.traditional ^= True


def _rotate_slower(target: MlxTarget) -> None:
    target.model.model.layers[1].self_attn.rope.base = 500.0


def _permute_rows(target: MlxTarget) -> None:
    """What the rows of a GGUF file are to those of the original."""
    for name in ("k_proj", "v_proj"):
        layer = target.model.model.layers[0].self_attn[name]
        layer.weight = layer.weight[::-1]


def _configure_otherwise(target: MlxTarget) -> None:
    target.model.args = replace(target.model.args, rms_norm_eps=0.1)


CHANGES = [_change_a_weight, _change_one_number, _rename, _cast]
CHANGES += [_rotate_pairs, _rotate_slower, _permute_rows, _configure_otherwise]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_of_another_target_is_refused(change: Callable[[MlxTarget], None], tmp_path: Path) -> None:
    save_cache(decode(tiny_llama(1), PROMPT, max_tokens=3).drain().cache, tmp_path / "turn.safetensors")
    other = tiny_llama(1)
    change(other)
    with pytest.raises(
        UsageError, match=f"made by another target than {other.name}, or by other weights; start without"
    ):
        load_cache(tmp_path / "turn.safetensors", other)


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _turn_over(content: bytes) -> bytes:
    return content[::-1]


def _other_format(content: bytes) -> bytes:
    return content.replace(b"kept-cache-2", b"kept-cache-9")


def _other_tokens(content: bytes) -> bytes:
    return content.replace(b"[5, 9, 33,", b"[5, 9,    ")


def _flip_a_bit(content: bytes) -> bytes:
    return content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]


def test_positions_in_another_order_are_noticed(tmp_path: Path) -> None:
    """The same numbers in a layer's keys, the other way round."""
    import mlx.core as mx

    target, path = tiny_llama(1), tmp_path / "turn.safetensors"
    save_cache(decode(target, PROMPT, max_tokens=3).drain().cache, path)
    arrays, metadata = mx.load(str(path), return_metadata=True)
    name = next(name for name, array in arrays.items() if array.ndim == 4)
    arrays[name] = arrays[name][:, :, ::-1]
    mx.save_safetensors(str(path), arrays, metadata)
    with pytest.raises(RoundscopeError, match="its content is not what was written"):
        load_cache(path, target)


@pytest.mark.parametrize("damage", [_cut, _turn_over, _other_format, _other_tokens, _flip_a_bit, lambda content: b""])
def test_a_damaged_file_is_an_error_that_names_it(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    target, path = tiny_llama(1), tmp_path / "turn.safetensors"
    save_cache(decode(target, PROMPT, max_tokens=3).drain().cache, path)
    content = path.read_bytes()
    assert damage(content) != content
    path.write_bytes(damage(content))
    with pytest.raises(
        RoundscopeError, match=r"turn.safetensors holds no kept cache that can be read .*; start without it"
    ):
        load_cache(path, target)


def test_a_file_that_is_no_kept_cache_is_an_error(tmp_path: Path) -> None:
    from mlx_lm.models.cache import save_prompt_cache

    target = tiny_llama(1)
    save_prompt_cache(str(tmp_path / "other.safetensors"), decode(target, PROMPT, max_tokens=3).drain().cache.layers)
    for name in ("other.safetensors", "missing.safetensors"):
        with pytest.raises(RoundscopeError, match=f"{name} holds no kept cache that can be read"):
            load_cache(tmp_path / name, target)


def test_only_a_whole_cache_of_a_model_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "turn.safetensors"
    path.write_text("what was there")
    target = tiny_llama(1)
    generation = decode(target, PROMPT, max_tokens=5)
    next(generation)
    with pytest.raises(UsageError, match="this cache is in use by a generation that is not finished"):
        save_cache(generation.cache, path)
    generation.drain()
    generation.cache.layers[1].offset -= 1
    with pytest.raises(UsageError, match=r"this cache is damaged \(layer 1 .* holds 11 positions instead of 12\)"):
        save_cache(generation.cache, path)
    scripted = decode(ScriptedTarget(counting(9), vocab_size=9), [1], max_tokens=3).drain()
    with pytest.raises(UsageError, match="a cache of scripted cannot be kept in a file: it is no model of mlx-lm"):
        save_cache(scripted.cache, path)
    with pytest.raises(UsageError, match=r"kept in .*turn.txt: give a path that ends in .safetensors"):
        save_cache(KeptCache(target), tmp_path / "turn.txt")
    assert (path.read_text(), [entry.name for entry in tmp_path.iterdir()]) == ("what was there", ["turn.safetensors"])


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced as a whole, or not at all."""
    import mlx_lm.models.cache

    target, path = tiny_llama(1), tmp_path / "turn.safetensors"
    first = decode(target, PROMPT, max_tokens=3).drain()
    save_cache(first.cache, path)
    content = path.read_bytes()

    def fail(file_name: str, *rest: Any) -> None:
        Path(file_name).write_bytes(b"half")
        raise OSError("no space left, as scripted")

    monkeypatch.setattr(mlx_lm.models.cache, "save_prompt_cache", fail)
    with pytest.raises(OSError, match="no space left"):
        save_cache(first.cache, path)
    assert (path.read_bytes(), [entry.name for entry in tmp_path.iterdir()]) == (content, ["turn.safetensors"])
