"""A kept cache in a file: mlx-lm's own format, with the tokens it holds and whose it is beside the arrays.

It is taken back only by the target that made it: name, weights, what they are stored as, and the settings of every
module must be the same, or the next turn would go on from states that another model computed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.caches.kept import KeptCache
from runtime.caches.kinds import CacheError
from runtime.protocols import Target
from telemetry.errors import RoundscopeError, UsageError

if TYPE_CHECKING:
    import mlx.core as mx

_FORMAT = "roundscope-kept-cache-2"
_SPREAD = 2_654_435_761
"""An odd number near 2 ** 32 over the golden ratio: multiples of it tell neighbouring places apart."""
_NO_SETTINGS = ("_training", "_no_grad")


def save_cache(cache: KeptCache, path: Path | str) -> None:
    """Write `cache`, of a finished generation, to `path` (*.safetensors); an existing file is replaced as a whole.

    Raises UsageError if it is in use, damaged or of a target that is no model of mlx-lm, or for another kind of path.
    """
    from mlx_lm.models.cache import save_prompt_cache

    path = Path(path)
    if path.suffix != ".safetensors":
        raise UsageError(f"a cache cannot be kept in {path}: give a path that ends in .safetensors")
    if cache.in_use:
        raise UsageError("this cache is in use by a generation that is not finished; close that one first")
    try:
        cache.check_integrity()
    except CacheError as error:
        raise UsageError(f"this cache is damaged ({error}) and is not saved") from error
    layers = cache.layers if cache.tokens else []
    target = identify(cache.target)
    owner = {
        "format": _FORMAT,
        "target": target,
        "tokens": json.dumps(cache.tokens),
        "content": _digest(layers, cache.tokens),
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}.safetensors")
    try:
        save_prompt_cache(str(partial), layers, owner)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_cache(path: Path | str, target: Target) -> KeptCache:
    """The cache in `path`, to go on with `target`.

    Raises RoundscopeError if the file cannot be read, UsageError if another target made it.
    """
    from mlx_lm.models.cache import load_prompt_cache

    try:
        layers, owner = load_prompt_cache(str(path), return_metadata=True)
        tokens = json.loads(owner["tokens"])
        if owner["format"] != _FORMAT:
            raise ValueError(f"its format is {owner['format']}")
        if owner["content"] != _digest(layers, tokens):
            raise ValueError("its content is not what was written")
    except Exception as error:
        raise RoundscopeError(f"{path} holds no kept cache that can be read ({error}); start without it") from error
    if owner["target"] != identify(target):
        raise UsageError(
            f"{path} was made by another target than {_name(target)}, or by other weights; start without it"
        )
    cache = KeptCache(target)
    if tokens:
        cache.adopt(layers, tokens)
    cache.check_integrity()
    return cache


def identify(target: Target) -> str:
    """Name, weights and settings of a target as one line."""
    model: Any = getattr(target, "model", None)
    if model is None:
        raise UsageError(f"a cache of {_name(target)} cannot be kept in a file: it is no model of mlx-lm")
    described = [model.parameters(), [_describe_module(name, module) for name, module in model.named_modules()]]
    return f"{_name(target)} {_digest_tree(described)}"


def _describe_module(name: str, module: Any) -> list[Any]:
    """What a module computes with besides its parameters: numbers, flags, configurations and its constant arrays."""
    import mlx.core as mx

    settings = [
        f"{key}={value!r}"
        for key, value in sorted(vars(module).items())
        if key not in _NO_SETTINGS and (value is None or isinstance(value, (bool, int, float, str)) or key == "args")
    ]
    constants = [module[key] for key in sorted(module) if key.startswith("_") and isinstance(module[key], mx.array)]
    return [name, type(module).__name__, *settings, *constants]


def _digest(layers: Sequence[Any], tokens: Sequence[int]) -> str:
    return _digest_tree([list(tokens), [layer.state for layer in layers]])


def _digest_tree(tree: Any) -> str:
    """A digest of the names, shapes and contents of a tree's arrays, and of its other leaves."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    leaves: Any = tree_flatten(tree)
    arrays = [(name, leaf) for name, leaf in leaves if isinstance(leaf, mx.array)]
    shapes = [(name, str(array.dtype), array.shape) for name, array in arrays]
    others = [(name, str(leaf)) for name, leaf in leaves if not isinstance(leaf, mx.array)]
    contents = [_sum_up(array) for _, array in arrays]
    return hashlib.sha256(json.dumps([shapes, others, contents]).encode()).hexdigest()


def _sum_up(array: mx.array) -> int:
    """The bits as integers, each times a number of its place, summed modulo 2 ** 32: exact in any order, anywhere."""
    import mlx.core as mx

    word = {1: mx.uint8, 2: mx.uint16}.get(array.itemsize, mx.uint32)
    bits = mx.view(mx.contiguous(array), word).reshape(-1).astype(mx.uint32)
    places = mx.arange(bits.size, dtype=mx.uint32) * mx.array(_SPREAD, mx.uint32) + 1
    total: Any = mx.sum(bits * places).astype(mx.uint32).item()
    return int(total)


def _name(target: Target) -> str:
    return str(getattr(target, "name", type(target).__name__))
