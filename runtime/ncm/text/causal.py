"""The first stage of the generator: its prefix stack as a causal language model, every position saying the next token.

It sees a right answer at every position, where the generator proper sees one block for a whole prefix, so what is
common to both is learned in a fraction of the time. Afterwards the prefix attends in both directions, and the levels'
blocks begin as copies of the prefix's. (The Sudoku generator begins with such a stage too: `runtime.ncm.training`.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx import nn

from runtime.ncm.attention import attend
from runtime.ncm.identity import list_weights
from runtime.ncm.layouts import Layouts
from runtime.ncm.tally import Tally

if TYPE_CHECKING:
    from runtime.ncm.text.blocks import BlockSource
    from runtime.ncm.text.model import TextModel
    from runtime.ncm.text.recipe import TextRecipe
    from runtime.ncm.training.loop import Arrays


class CausalNetwork(nn.Module):
    """The embedding, blocks, last norm and decoder of `model` itself, nothing of its own."""

    def __init__(self, model: TextModel) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        generator, config = model.generator, model.config
        self.prefix_embedding, self.blocks = generator.prefix_embedding, generator.blocks
        self.final_norm, self.decoder = generator.final_norm, model.decoder
        self._layouts, self._n_layers = Layouts(config), config.n_layers
        places = mx.arange(config.prefix_length)
        self._mask = mx.where(places[:, None] >= places[None], 0.0, -mx.inf).astype(getattr(mx, config.dtype))

    def __call__(self, windows: mx.array) -> mx.array:
        """Logits (B, P, size) of the token after each position of prefixes (B, P), from those up to it."""
        x = self.prefix_embedding(windows)
        layout = self._layouts.get((), prefix=True)
        for layer in range(self._n_layers):
            block = self.blocks[layer % len(self.blocks)]
            queries, keys, values = block.make_heads(x, layout)
            x = block.finish(x, attend(queries, keys, values, Tally(), self._mask).swapaxes(1, 2))
        logits: mx.array = self.decoder(self.final_norm(x))
        return logits


class CausalStage:
    """Next tokens at every position of prefixes, those that can be said."""

    name = "causal"

    def __init__(self, model: TextModel, source: BlockSource, recipe: TextRecipe) -> None:
        self.module = CausalNetwork(model)
        self.steps, self.rate = recipe.causal_steps, recipe.causal_rate
        self.state: Arrays = {}
        self._source, self._batch, self._size = source, recipe.generator_batch, model.tokens.size

    def begin(self) -> None:
        """Nothing precedes."""

    def draw(self, step: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """Prefixes (B, P), what follows each position (B, P), and weights (B, P)."""
        batch = self._source.draw_batch(self._batch, rng)
        following = np.concatenate([batch.windows[:, 1:], batch.blocks[:, :1]], axis=1)
        weights = following < self._size
        weights[:, -1] &= batch.sayable[:, 0]
        return mx.array(batch.windows), mx.array(np.where(weights, following, 0)), mx.array(weights)

    def measure(self, windows: mx.array, following: mx.array, weights: mx.array) -> tuple[mx.array, Arrays]:
        """Mean cross-entropy."""
        losses = nn.losses.cross_entropy(self.module(windows), following) * weights
        return losses.sum() / mx.maximum(weights.sum(), 1), {}

    def settle(self, found: Arrays, key: mx.array) -> None:
        """Nothing follows."""


def copy_blocks(model: TextModel) -> None:
    """Let the levels' blocks begin as copies of the prefix's."""
    generator = model.generator
    for place, block in enumerate(generator.level_blocks):
        source = generator.blocks[place % len(generator.blocks)]
        block.load_weights([(name, mx.array(weight)) for name, weight in list_weights(source)])
