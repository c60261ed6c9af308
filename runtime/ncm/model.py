"""A next-concept model: the codec and the generator of its codes.

The generator processes, for each level, the reconstruction so far scaled down to the level's length, after the
conditioning as prefix positions. It has no memory of its own: what is kept between levels is `PrefixCache`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from runtime.device import barrier
from runtime.ncm.attention import Units, attend
from runtime.ncm.cells import arrange_cells
from runtime.ncm.codec import Codec
from runtime.ncm.config import NcmConfig
from runtime.ncm.identity import WeightsState, list_weights
from runtime.ncm.layers import Block, KeyValueStore
from runtime.ncm.layouts import Layout, Layouts
from runtime.ncm.tally import Tally


class Generator(nn.Module):
    """Predicts the codes of a level from conditioning and reconstruction. Attributes that begin with an underscore
    are constants, not weights.
    """

    def __init__(self, config: NcmConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        width = config.width
        self.prefix_embedding = nn.Embedding(config.prefix_vocab, width)
        self.level_embedding = nn.Embedding(config.n_levels, width)
        self.enter = nn.Linear(config.code_dim, width)
        self.blocks = [Block(config) for _ in range(config.n_blocks)]
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, config.codebook_size)
        self._n_layers = config.n_layers
        self._n_levels = config.n_levels
        self._layouts = Layouts(config)
        self._units = Units(config) if config.prefix_attention == "units" else None
        moved = config.cell_order != "rows"
        self._order = mx.array(arrange_cells(config.cell_order, config.prefix_length)) if moved else None

    def forward_level(
        self,
        level: int,
        inputs: mx.array,
        conditioning: mx.array | None,
        store: KeyValueStore | None = None,
        tally: Tally | None = None,
    ) -> mx.array:
        """Logits (B, l[level], codebook_size) of one level, from its inputs (B, l[level], code_dim).

        conditioning: tokens (B, P); None where `store` holds the prefix's keys and values already. For policy
        `block_diagonal`: under `block_causal` a level needs those before it, see `forward_levels`.
        """
        layout = self._layouts.get((level,), prefix=conditioning is not None)
        return self._run(inputs, conditioning, layout, store, tally)

    def forward_levels(
        self, inputs: Sequence[mx.array], conditioning: mx.array, tally: Tally | None = None
    ) -> list[mx.array]:
        """Logits (B, l[k], codebook_size) of the first levels, as many as there are inputs (B, l[k], code_dim), in
        one forward over prefix and levels: teacher forcing, and the only way for policy `block_causal`.
        """
        layout = self._layouts.get(tuple(range(len(inputs))), prefix=True)
        logits = self._run(mx.concatenate(list(inputs), axis=1), conditioning, layout, None, tally)
        ends = [sum(part.shape[1] for part in inputs[: level + 1]) for level in range(len(inputs) - 1)]
        return list(mx.split(logits, ends, axis=1))

    def _run(
        self,
        inputs: mx.array,
        conditioning: mx.array | None,
        layout: Layout,
        store: KeyValueStore | None,
        tally: Tally | None,
    ) -> mx.array:
        tally = Tally() if tally is None else tally
        tally.forwards += 1
        x = self.enter(inputs) + self.level_embedding(layout.level_of)
        if conditioning is not None:
            x = mx.concatenate([self._embed(conditioning), x], axis=1)
        for layer in range(self._n_layers):
            x = self._apply(layer, x, layout, store, tally)
        logits: mx.array = self.head(self.final_norm(x[:, layout.prefix :]))
        return logits

    def _embed(self, conditioning: mx.array) -> mx.array:
        """The prefix (B, P, width), in cell order, without a level's embedding."""
        if self._order is not None:
            conditioning = conditioning[:, self._order]
        prefix: mx.array = self.prefix_embedding(conditioning)
        return prefix

    def _apply(self, layer: int, x: mx.array, layout: Layout, store: KeyValueStore | None, tally: Tally) -> mx.array:
        block = self.blocks[layer % len(self.blocks)]
        queries, own_keys, own_values = block.make_heads(x, layout)
        # Made contiguous once: matmul would copy a strided operand each time.
        keys, values = store.extend(layer, own_keys, own_values) if store else (own_keys, mx.contiguous(own_values))
        prefix = layout.prefix
        tally.add_layer(x.shape[0], prefix, x.shape[1] - prefix, keys.shape[2] - own_keys.shape[2])
        attended = attend(queries[:, :, prefix:], keys, values, tally, layout.mask, layout.hidden).swapaxes(1, 2)
        if prefix:
            attend_prefix = self._units.attend if self._units else attend
            of_prefix = attend_prefix(queries[:, :, :prefix], keys[:, :, :prefix], values[:, :, :prefix], tally)
            attended = mx.concatenate([of_prefix.swapaxes(1, 2), attended], axis=1)
        return block.finish(x, attended)


class NcmModel(nn.Module):
    """A codec and a generator of one configuration. `trained`: whether the weights come from a checkpoint."""

    def __init__(self, config: NcmConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.config = config
        self.trained = False
        self._weights: WeightsState | None = None
        self.codec = Codec(config)
        self.generator = Generator(config)
        self.set_dtype(getattr(mx, config.dtype))

    def state(self) -> WeightsState:
        """The weights as they are now; hashed again only where they have changed since the last time."""
        if self._weights is None or not self._weights.holds_contents():
            self._weights = WeightsState(self)
        return self._weights


def init_model(config: NcmConfig, seed: int = 0) -> NcmModel:
    """A model in evaluation mode whose weights depend on `config` and `seed` alone, not on MLX's global seed."""
    model = NcmModel(config)
    key = mx.random.key(seed)
    drawn: list[tuple[str, mx.array]] = []
    for name, weight in list_weights(model):
        if weight.ndim == 2:
            key, own = mx.random.split(key)
            weight = mx.random.normal(weight.shape, weight.dtype, scale=weight.shape[-1] ** -0.5, key=own)
        else:
            weight = mx.full(weight.shape, float(name.endswith("norm.weight")), weight.dtype)
        drawn.append((name, weight))
    model.update(tree_unflatten(drawn))
    barrier(dict(list_weights(model)))
    model.eval()
    return model
