"""The teacher-forced pass: every level from given inputs, the prefix processed once, nothing masked out in vain.

Its last logits are those of `Generator.forward_levels` under `block_diagonal`. There, scores of all levels over all
levels are made and most of them masked; here each level meets the prefix and itself alone, as in a generation, with
gradients. And there are logits after every layer application of the second half: a loss over them all lets a deep stack
of tied layers learn sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from runtime.ncm.model import Generator


class SharedPrefix:
    """Keys and values of the prefix in each layer as the first level made them, for the gradients of all levels."""

    def __init__(self, prefix_length: int) -> None:
        self._length = prefix_length
        self._held: list[tuple[mx.array, mx.array]] = []

    def extend(self, layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """The first level's keys and values (B, H, P + l, D) as they are, later ones after the prefix's."""
        if layer == len(self._held):
            self._held.append((keys[:, :, : self._length], values[:, :, : self._length]))
            return keys, values
        prefix_keys, prefix_values = self._held[layer]
        return mx.concatenate([prefix_keys, keys], axis=2), mx.concatenate([prefix_values, values], axis=2)


def forward_levels(
    generator: Generator, inputs: Sequence[mx.array], conditioning: mx.array, n_layers: int
) -> list[mx.array]:
    """Logits (A, B, l[k], codebook_size) of every level after each application of the second half of `n_layers`, from
    inputs (B, l[k], code_dim) and conditioning (B, P).
    """
    return [generator.predict(states) for states in forward_states(generator, inputs, conditioning, n_layers)]


def forward_states(
    generator: Generator, inputs: Sequence[mx.array], conditioning: mx.array, n_layers: int
) -> list[mx.array]:
    """The states (A, B, l[k], width) that `forward_levels` makes its logits of."""
    store = SharedPrefix(conditioning.shape[1])
    found = []
    for level, given in enumerate(inputs):
        states = list(generator.walk_level(level, given, None if level else conditioning, store, n_layers))
        found.append(mx.stack(states[n_layers // 2 :]))
    return found
