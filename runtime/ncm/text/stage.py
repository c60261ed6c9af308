"""What is trained after the codec: the generator's codes and the decoder's tokens, in one teacher-forced pass.

A drafter goes on from its own codes, so most blocks do too: their codes are made by the model as it is, without
gradients, and the later levels and the tokens are asked for from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx import nn

from runtime.drafters.learned.objectives import disagreement, misalignment
from runtime.ncm.training.teacher import SharedPrefix, forward_states

if TYPE_CHECKING:
    from runtime.ncm.text.blocks import BlockSource
    from runtime.ncm.text.model import TextModel
    from runtime.ncm.text.recipe import TextRecipe
    from runtime.ncm.training.loop import Arrays


class TextStage:
    """Codes of every level, and tokens of every position for greedy agreement, earlier positions counting for more."""

    name = "generator"

    def __init__(self, model: TextModel, source: BlockSource, recipe: TextRecipe) -> None:
        self.module = model
        self.steps, self.rate = recipe.generator_steps, recipe.generator_rate
        self.state: Arrays = {}
        self._source, self._recipe, self._drawn_share = source, recipe, recipe.drawn_share
        self._weights = mx.array(recipe.position_decay ** np.arange(model.config.output_length, dtype=np.float32))

    def begin(self) -> None:
        """Leave the codec as it is."""
        self.module.codec.freeze()

    def draw(self, step: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """Prefixes (B, P), the labels of blocks, ids and probabilities (B, N, k), the inputs of every level, and its
        codes.
        """
        batch = self._source.draw_batch(self._recipe.generator_batch, rng)
        is_own = rng.random(len(batch.windows)) < self._recipe.own_share
        is_drawn = rng.random(len(batch.windows)) < self._drawn_share
        windows, blocks = mx.array(batch.windows), mx.array(batch.blocks)
        key = mx.random.key(int(rng.integers(2**32)))
        codes, inputs = walk_codes(self.module, windows, blocks, mx.array(is_own), mx.array(is_drawn), key)
        labels = self._source.blocks.take_labels(batch.rows, 0, blocks.shape[1])
        return windows, mx.array(labels.ids), mx.array(labels.p), *inputs, *codes

    def measure(self, windows: mx.array, ids: mx.array, p: mx.array, *levels: mx.array) -> tuple[mx.array, Arrays]:
        """The objective of the tokens, by position, and cross-entropy of the codes, each level alike."""
        model, n = self.module, self.module.config.n_levels
        inputs, codes = levels[:n], levels[n:]
        states = [each[-1] for each in forward_states(model.generator, inputs, windows, model.config.n_layers)]
        of_codes = [
            nn.losses.cross_entropy(model.generator.predict(state), wanted).mean()
            for state, wanted in zip(states, codes, strict=True)
        ]
        tokens = self._judge(model.decoder(model.generator.final_norm(states[-1])), ids, p)
        return tokens + self._recipe.code_weight * sum(of_codes, mx.array(0.0)) / n, {}

    def settle(self, found: Arrays, key: mx.array) -> None:
        """Nothing follows."""

    def _judge(self, logits: mx.array, ids: mx.array, p: mx.array) -> mx.array:
        return disagreement(logits, ids, p, self._weights)


class TextAlignmentStage(TextStage):
    """The same for sampled acceptance: tokens as drawn at `temperature`, codes drawn by the model itself.

    source: of blocks out of outputs that the target drew at that temperature, with its distributions there.
    """

    name = "alignment"

    def __init__(self, model: TextModel, source: BlockSource, recipe: TextRecipe, temperature: float) -> None:
        super().__init__(model, source, recipe)
        self.steps, self.rate = recipe.alignment_steps, recipe.alignment_rate
        self._drawn_share, self._temperature = 1.0, temperature

    def _judge(self, logits: mx.array, ids: mx.array, p: mx.array) -> mx.array:
        known = p.sum(axis=-1) > 0
        return misalignment(logits, ids, p, self._temperature, known * self._weights)


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
