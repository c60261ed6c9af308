"""Whether a model is still what it was: held references at every level, contents at both ends of a generation.

MLX arrays do not change in place: an assignment, even to an item, leaves the model with another array or another
buffer. So the weights are hashed once for each state of a model, and a state is the same while every module holds the
same arrays with the same buffers, which are kept from being freed and reused. (Writing through a buffer's raw memory
from outside MLX is the one change that goes unseen.)
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from runtime.device import barrier, find_address, view_bytes


class WeightsState:
    """The weights of a model, and the modules that hold them, as they are when this is made."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = model.modules()
        self._links = list(_list_links(model))
        weights = list_weights(model)
        self._arrays = [array for _, array in weights]
        self._buffers = [mx.stop_gradient(array) for array in self._arrays]
        barrier(self._buffers)
        self._addresses = [find_address(array) for array in self._arrays]
        digest = sha256()
        for name, array in weights:
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(view_bytes(array))
        self.digest = digest.hexdigest()

    def holds_references(self) -> bool:
        """Whether every module holds the very same modules and arrays."""
        return all(holder[key] is held for holder, key, held in self._links)

    def holds_contents(self) -> bool:
        """Whether, besides, every array still has its buffer."""
        return self.holds_references() and [find_address(array) for array in self._arrays] == self._addresses

    def is_evaluating(self) -> bool:
        """Whether no module is in training mode."""
        return not any(module.training for module in self._modules)


def list_weights(model: nn.Module) -> list[tuple[str, mx.array]]:
    """The parameters of `model` by name, in a fixed order."""
    named: Any = tree_flatten(model.parameters())
    return list(named)


def _list_links(holder: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Who holds what under which key, from a module down to its arrays."""
    items = holder.items() if isinstance(holder, dict) else enumerate(holder)
    for key, held in items:
        if isinstance(held, (mx.array, dict, list)):
            yield holder, key, held
        if isinstance(held, (dict, list)):
            yield from _list_links(held)
