"""Quantised K/V: layers are converted once they hold enough positions, as mlx-lm's ordinary loop does after each
forward.

A forward over several positions must then end where ordinary decoding would convert, or the positions beyond would
attend to other values than there; `limit_width` says how far it may reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime.caches.kinds import MLX_LM_CACHES, describe_layer, flatten
from telemetry.errors import Unsupported, UsageError

BITS = (2, 3, 4, 6, 8)


@dataclass(frozen=True)
class Quantising:
    """Convert layers to `bits` bits in groups of `group_size` once they hold `start` positions."""

    bits: int
    group_size: int = 64
    start: int = 0

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise UsageError(f"kv_bits is {self.bits}; it must be one of {', '.join(map(str, BITS))}")
        if self.start < 0:
            raise UsageError(f"quantized_kv_start is {self.start}; it must be 0 or more")

    def check(self, layers: Sequence[Any]) -> None:
        """Raise Unsupported, naming it, if a layer of this cache cannot be quantised."""
        for index, layer in enumerate(layers):
            plain = type(layer).__module__ == MLX_LM_CACHES and type(layer).__name__ in ("KVCache", "ArraysCache")
            if not plain:
                raise Unsupported(
                    f"kv_bits is refused: layer {index} ({describe_layer(layer)}) cannot be quantised; leave it out"
                )
        if not any(type(layer).__name__ == "KVCache" for layer in layers):
            raise Unsupported("kv_bits is refused: no layer holds keys and values; leave it out")

    def apply(self, layers: list[Any]) -> None:
        """Convert, in place, the layers that hold enough."""
        for index, layer in enumerate(layers):
            if hasattr(layer, "to_quantized") and layer.offset >= self.start:
                layers[index] = layer.to_quantized(group_size=self.group_size, bits=self.bits)

    def limit_width(self, length: int) -> int | None:
        """Most positions that a forward may add to a cache of `length`; None if any number."""
        return self.start - length if length < self.start else None


def refuse_quantised(layers: Sequence[Any]) -> None:
    """Raise Unsupported, naming it, if a layer of a kept cache is quantised: warm would not equal cold."""
    for index, layer in enumerate(flatten(layers)):
        if type(layer).__name__ == "QuantizedKVCache":
            raise Unsupported(
                f"this cache is quantised: layer {index} ({describe_layer(layer)}) holds other values than a "
                "prefill of the prompt would give; start without it"
            )
