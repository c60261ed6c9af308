"""The first stage of the generator: its prefix stack as a causal language model, every position saying the next token.

It sees a right answer at every position, where the generator proper sees one block for a whole prefix, so what is
common to both is learned in a fraction of the time. Afterwards the prefix attends in both directions, and the levels'
blocks begin as copies of the prefix's. (The Sudoku generator begins with such a stage too: `runtime.ncm.training`.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
from mlx import nn

from runtime.drafters.learned.objectives import disagreement
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
    """Next tokens at every position of prefixes, those that can be said, for greedy agreement."""

    name = "causal"

    def __init__(self, model: TextModel, source: BlockSource, recipe: TextRecipe) -> None:
        self.module = CausalNetwork(model)
        self.steps, self.rate = recipe.causal_steps, recipe.causal_rate
        self.state: Arrays = {}
        self._source, self._batch = source, recipe.generator_batch

    def begin(self) -> None:
        """Nothing precedes."""

    def draw(self, step: int, rng: np.random.Generator) -> tuple[mx.array, ...]:
        """Prefixes (B, P), and the labels of what follows each position, ids and probabilities (B, P, k)."""
        batch = self._source.draw_batch(self._batch, rng)
        n = batch.windows.shape[1]
        labels = self._source.blocks.take_labels(batch.rows, 1 - n, n)
        return mx.array(batch.windows), mx.array(labels.ids), mx.array(labels.p)

    def measure(self, windows: mx.array, ids: mx.array, p: mx.array) -> tuple[mx.array, Arrays]:
        """The mean disagreement."""
        return disagreement(self.module(windows), ids, p), {}

    def settle(self, found: Arrays, key: mx.array) -> None:
        """Nothing follows."""


def copy_blocks(model: TextModel) -> None:
    """Let the levels' blocks begin as copies of the prefix's."""
    generator = model.generator
    for place, block in enumerate(generator.level_blocks):
        source = generator.blocks[place % len(generator.blocks)]
        block.load_weights([(name, mx.array(weight)) for name, weight in list_weights(source)])
