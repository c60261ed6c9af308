"""A next-concept model: the codec and the generator of its codes.

The generator processes, for each level, the reconstruction so far scaled down to the level's length, after the
conditioning as prefix positions. It has no memory of its own: what is kept between levels is `PrefixCache`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
        self.level_blocks = [Block(config) for _ in range(config.level_blocks)]
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, config.codebook_size)
        self._n_layers = config.n_layers
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
        return self.predict(self.forward_states(level, inputs, conditioning, store, tally))

    def forward_states(
        self,
        level: int,
        inputs: mx.array,
        conditioning: mx.array | None,
        store: KeyValueStore | None = None,
        tally: Tally | None = None,
    ) -> mx.array:
        """The states (B, l[level], width) that `forward_level` makes its logits of."""
        layout = self._layouts.get((level,), prefix=conditioning is not None)
        return self._run(inputs, conditioning, layout, store, tally)

    def walk_level(
        self, level: int, inputs: mx.array, conditioning: mx.array | None, store: KeyValueStore, n_layers: int
    ) -> Iterator[mx.array]:
        """The states (B, l[level], width) of a level after each of `n_layers` applications, for training: `predict`
        makes logits of any. The rest is as for `forward_level`.
        """
        layout = self._layouts.get((level,), prefix=conditioning is not None)
        x = self._enter(inputs, conditioning, layout)
        for layer in range(n_layers):
            x = self._apply(layer, x, layout, store, Tally())
            yield x[:, layout.prefix :]

    def predict(self, states: mx.array) -> mx.array:
        """Logits (..., codebook_size) of level states (..., width)."""
        logits: mx.array = self.head(self.final_norm(states))
        return logits

    def forward_levels(
        self, inputs: Sequence[mx.array], conditioning: mx.array, tally: Tally | None = None
    ) -> list[mx.array]:
        """Logits (B, l[k], codebook_size) of the first levels, as many as there are inputs (B, l[k], code_dim), in
        one forward over prefix and levels: teacher forcing, and the only way for policy `block_causal`.
        """
        layout = self._layouts.get(tuple(range(len(inputs))), prefix=True)
        logits = self.predict(self._run(mx.concatenate(list(inputs), axis=1), conditioning, layout, None, tally))
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
        x = self._enter(inputs, conditioning, layout)
        for layer in range(self._n_layers):
            x = self._apply(layer, x, layout, store, tally)
        return x[:, layout.prefix :]

    def _enter(self, inputs: mx.array, conditioning: mx.array | None, layout: Layout) -> mx.array:
        x: mx.array = self.enter(inputs) + self.level_embedding(layout.level_of)
        return x if conditioning is None else mx.concatenate([self._embed(conditioning), x], axis=1)

    def _embed(self, conditioning: mx.array) -> mx.array:
        """The prefix (B, P, width), in cell order, without a level's embedding."""
        if self._order is not None:
            conditioning = conditioning[:, self._order]
        prefix: mx.array = self.prefix_embedding(conditioning)
        return prefix

    def _apply(self, layer: int, x: mx.array, layout: Layout, store: KeyValueStore | None, tally: Tally) -> mx.array:
        queries, own_keys, own_values = self._make_heads(layer, x, layout)
        # Made contiguous once: matmul would copy a strided operand each time.
        keys, values = store.extend(layer, own_keys, own_values) if store else (own_keys, mx.contiguous(own_values))
        prefix = layout.prefix
        tally.add_layer(x.shape[0], prefix, x.shape[1] - prefix, keys.shape[2] - own_keys.shape[2])
        attended = attend(queries[:, :, prefix:], keys, values, tally, layout.mask, layout.hidden).swapaxes(1, 2)
        if prefix:
            attend_prefix = self._units.attend if self._units else attend
            of_prefix = attend_prefix(queries[:, :, :prefix], keys[:, :, :prefix], values[:, :, :prefix], tally)
            attended = mx.concatenate([of_prefix.swapaxes(1, 2), attended], axis=1)
        return self._finish(layer, x, attended, prefix)

    def _make_heads(self, layer: int, x: mx.array, layout: Layout) -> tuple[mx.array, mx.array, mx.array]:
        prefix, (block, own) = layout.prefix, self._choose_blocks(layer)
        if block is own or not prefix:
            return own.make_heads(x, layout)
        of_prefix = block.make_heads(x[:, :prefix], layout.cut(0, prefix))
        of_levels = own.make_heads(x[:, prefix:], layout.cut(prefix, x.shape[1]))
        queries, keys, values = (mx.concatenate([a, b], axis=2) for a, b in zip(of_prefix, of_levels, strict=True))
        return queries, keys, values

    def _finish(self, layer: int, x: mx.array, attended: mx.array, prefix: int) -> mx.array:
        block, own = self._choose_blocks(layer)
        if block is own or not prefix:
            return own.finish(x, attended)
        of_prefix = block.finish(x[:, :prefix], attended[:, :prefix])
        return mx.concatenate([of_prefix, own.finish(x[:, prefix:], attended[:, prefix:])], axis=1)

    def _choose_blocks(self, layer: int) -> tuple[Block, Block]:
        """The block of the prefix's positions and that of the levels'."""
        block: Block = self.blocks[layer % len(self.blocks)]
        return block, self.level_blocks[layer % len(self.level_blocks)] if self.level_blocks else block


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
    draw_weights(model, seed)
    return model


def draw_weights(model: NcmModel, seed: int) -> None:
    """Give `model` random weights by `seed` alone, and put it in evaluation mode."""
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
