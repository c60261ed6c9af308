"""What is trained after the codec: the generator's codes and the decoder's tokens, in one teacher-forced pass.

A drafter goes on from its own codes, so most blocks do too: their codes are made by the model as it is, without
gradients, and the later levels and the tokens are asked for from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx import nn

from runtime.ncm.training.teacher import SharedPrefix, forward_states

if TYPE_CHECKING:
    from runtime.ncm.text.blocks import BlockSource
    from runtime.ncm.text.model import TextModel
    from runtime.ncm.text.recipe import TextRecipe
    from runtime.ncm.training.loop import Arrays


class TextStage:
    """Codes of every level and tokens of every position, the earlier positions counting for more."""

    name = "generator"

    def __init__(self, model: TextModel, source: BlockSource, recipe: TextRecipe) -> None:
        self.module = model
        self.steps, self.rate = recipe.generator_steps, recipe.generator_rate
        self.state: Arrays = {}
        self._source, self._recipe = source, recipe
        self._weights = recipe.position_decay ** np.arange(model.config.output_length, dtype=np.float32)

    def begin(self) -> None:
        """Leave the codec as it is."""
        self.module.codec.freeze()

    def draw(self, step: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """Prefixes (B, P), blocks (B, N), weights (B, N), the inputs of every level, and its codes."""
        recipe = self._recipe
        batch = self._source.draw_batch(recipe.generator_batch, rng)
        is_own = rng.random(len(batch.windows)) < recipe.own_share
        is_drawn = rng.random(len(batch.windows)) < recipe.drawn_share
        windows, blocks = mx.array(batch.windows), mx.array(batch.blocks)
        key = mx.random.key(int(rng.integers(2**32)))
        codes, inputs = walk_codes(self.module, windows, blocks, mx.array(is_own), mx.array(is_drawn), key)
        return windows, blocks, mx.array(batch.sayable * self._weights), *inputs, *codes

    def measure(
        self, windows: mx.array, blocks: mx.array, weights: mx.array, *levels: mx.array
    ) -> tuple[mx.array, Arrays]:
        """Weighted cross-entropy of the tokens, and that of the codes, each level alike."""
        model, n = self.module, self.module.config.n_levels
        inputs, codes = levels[:n], levels[n:]
        states = [each[-1] for each in forward_states(model.generator, inputs, windows, model.config.n_layers)]
        of_codes = [
            nn.losses.cross_entropy(model.generator.predict(state), wanted).mean()
            for state, wanted in zip(states, codes, strict=True)
        ]
        of_tokens = nn.losses.cross_entropy(model.decoder(model.generator.final_norm(states[-1])), blocks)
        tokens = (of_tokens * weights).sum() / mx.maximum(weights.sum(), 1e-6)
        return tokens + self._recipe.code_weight * sum(of_codes, mx.array(0.0)) / n, {}

    def settle(self, found: Arrays, key: mx.array) -> None:
        """Nothing follows."""


def walk_codes(
    model: TextModel, windows: mx.array, blocks: mx.array, is_own: mx.array, is_drawn: mx.array, key: mx.array
) -> tuple[list[mx.array], list[mx.array]]:
    """Each level's right codes (B, l[k]) for blocks (B, N), and its inputs (B, l[k], code_dim), without gradients.

    Samples that are `is_own` (B,) go on from what the model says to prefixes (B, P), those of them that are `is_drawn`
    (B,) from a draw; right codes are then those that come nearest to the block from there.
    """
    codec, generator, last = model.codec, model.generator, model.config.n_levels - 1
    latent = codec.encode(blocks)
    partial, store = codec.start(blocks.shape[0]), SharedPrefix(windows.shape[1])
    codes, inputs = [], []
    for level in range(last + 1):
        inputs.append(codec.make_input(level, partial))
        codes.append(codec.find_nearest(codec.make_input(level, latent - partial)))
        if level == last:
            break
        prefix = None if level else windows
        *_, states = generator.walk_level(level, inputs[-1], prefix, store, model.config.n_layers)
        logits = generator.predict(states)
        key, own = mx.random.split(key)
        noise = mx.random.gumbel(logits.shape, key=own) * is_drawn[:, None, None]
        said = mx.argmax(logits + noise, axis=-1)
        partial = codec.add_level(level, partial, mx.where(is_own[:, None], said, codes[-1]))
    return codes, inputs
