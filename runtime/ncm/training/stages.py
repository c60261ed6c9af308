"""What is trained, in this order: the codec, the direct network, the generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx
import numpy as np
from mlx import nn

from runtime.ncm.codebook import CodebookState, start_codebook, update_codebook
from runtime.ncm.codec import Codec, Quantised, draw_depths, keep_depths, let_gradients_through
from runtime.ncm.training.teacher import forward_levels

if TYPE_CHECKING:
    from runtime.ncm.model import NcmModel
    from runtime.ncm.training.direct import DirectNetwork
    from runtime.ncm.training.loop import Arrays
    from runtime.ncm.training.recipe import Recipe
    from runtime.ncm.training.tasks import Source, Task

COMMITMENT = 0.25
"""Weight of the distance between latents and their reconstruction, as in VQ-VAE (arXiv 1711.00937)."""


class CodecPlan(Protocol):
    """What the codec's training needs to know of a recipe."""

    @property
    def codec_steps(self) -> int:
        """How many there are."""

    @property
    def codec_rate(self) -> float:
        """The peak learning rate."""

    @property
    def batch(self) -> int:
        """Samples a step."""

    @property
    def keep_all(self) -> float:
        """Share of samples for which all levels are kept."""


class CodecStage:
    """Reconstruction of outputs from all or from the first few levels, straight through the quantiser."""

    name = "codec"

    def __init__(self, codec: Codec, task: Source, recipe: CodecPlan) -> None:
        self.module = codec
        self.steps, self.rate = recipe.codec_steps, recipe.codec_rate
        self.state = vars(start_codebook(codec.codebook)).copy()
        self._task, self._recipe = task, recipe

    def draw(self, step: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """Outputs (B, N) and how many levels of each are kept (B,)."""
        recipe = self._recipe
        key = mx.random.key(int(rng.integers(2**32)))
        _, outputs = self._task.draw(recipe.batch, rng)
        depths = draw_depths(key, recipe.batch, self.module.n_levels, 1 - recipe.keep_all)
        return mx.array(outputs), depths

    def measure(self, outputs: mx.array, depths: mx.array) -> tuple[mx.array, Arrays]:
        """Cross-entropy of the tokens and the commitment."""
        codec = self.module
        latent = codec.encode(outputs)
        found = codec.quantise(latent)
        logits = codec.decode(let_gradients_through(latent, keep_depths(found.partials, depths)))
        distance = mx.square(latent - mx.stop_gradient(found.partials[-1])).mean()
        loss = nn.losses.cross_entropy(logits, outputs).mean() + COMMITMENT * distance
        return loss, {"pooled": _join(found.pooled), "codes": _join([codes[..., None] for codes in found.codes])}

    def begin(self) -> None:
        """Nothing precedes."""

    def settle(self, found: Arrays, key: mx.array) -> None:
        """Move the codebook."""
        moved = Quantised([found["codes"]], [found["pooled"]], [])
        self.module.codebook, state = update_codebook(CodebookState(**self.state), moved, key)
        self.state.update(vars(state))


class DirectStage:
    """Tokens at every position straight from the prefix stack, judged after each application of its second half."""

    name = "direct"

    def __init__(self, network: DirectNetwork, task: Task, recipe: Recipe) -> None:
        self.module = network
        self.steps, self.rate = recipe.direct_steps, recipe.direct_rate
        self.state: Arrays = {}
        self._depths = recipe.direct_depths or (network.n_layers,)
        self._task, self._batch = task, recipe.batch

    def draw(self, step: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """Conditioning (B, P) and outputs (B, P), and how often layers are applied."""
        conditioning, outputs = self._task.draw(self._batch, rng)
        return mx.array(conditioning), mx.array(outputs), _choose_depth(self._depths, step, self.steps)

    def measure(self, conditioning: mx.array, outputs: mx.array, depth: int) -> tuple[mx.array, Arrays]:
        """Cross-entropy of the tokens."""
        logits = self.module(conditioning, depth)
        wanted = mx.broadcast_to(outputs, logits.shape[:-1])
        return nn.losses.cross_entropy(logits, wanted).mean(), {}

    def begin(self) -> None:
        """Nothing precedes."""

    def settle(self, found: Arrays, key: mx.array) -> None:
        """Nothing follows."""


class GeneratorStage:
    """The codes of every level in one teacher-forced pass; each position counts alike."""

    name = "generator"

    def __init__(self, model: NcmModel, task: Task, recipe: Recipe) -> None:
        self.module = model.generator
        self.steps, self.rate = recipe.generator_steps, recipe.generator_rate
        self.state: Arrays = {}
        self._depths = recipe.generator_depths or (model.config.n_layers,)
        self._codec, self._task, self._recipe = model.codec, task, recipe

    def draw(self, step: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """How often layers are applied, conditioning (B, P), the inputs of every level, and its codes."""
        conditioning, outputs = self._task.draw(self._recipe.generator_batch, rng)
        key = mx.random.key(int(rng.integers(2**32)))
        codes, inputs = make_targets(self._codec, mx.array(outputs), self._recipe.code_errors, key)
        return _choose_depth(self._depths, step, self.steps), mx.array(conditioning), *inputs, *codes

    def measure(self, depth: int, conditioning: mx.array, *levels: mx.array) -> tuple[mx.array, Arrays]:
        """Cross-entropy of the codes after each application of the second half."""
        inputs, codes = levels[: len(levels) // 2], levels[len(levels) // 2 :]
        logits = mx.concatenate(forward_levels(self.module, inputs, conditioning, depth), axis=2)
        wanted = mx.broadcast_to(mx.concatenate(list(codes), axis=1), logits.shape[:-1])
        return nn.losses.cross_entropy(logits, wanted).mean(), {}

    def begin(self) -> None:
        """Leave the prefix's layers as they are, if the recipe wants that."""
        if self._recipe.keep_prefix:
            for part in (self.module.prefix_embedding, *self.module.blocks):
                part.freeze()

    def settle(self, found: Arrays, key: mx.array) -> None:
        """Nothing follows."""


def _choose_depth(depths: tuple[int, ...], step: int, steps: int) -> int:
    """The depth whose part of the steps `step` falls into."""
    return depths[step * len(depths) // steps]


def make_targets(
    codec: Codec, outputs: mx.array, errors: float, key: mx.array
) -> tuple[list[mx.array], list[mx.array]]:
    """Each level's codes (B, l[k]) for outputs (B, N), and the generator's inputs (B, l[k], code_dim) there.

    With `errors`, that share of positions of the levels short of full length goes on with the code of another sample at
    the same position: later levels' codes are then those that come nearest to the output from there.
    """
    latent = codec.encode(outputs)
    partial = codec.start(outputs.shape[0])
    codes, inputs = [], []
    for level in range(codec.n_levels):
        inputs.append(codec.make_input(level, partial))
        right = codec.find_nearest(codec.make_input(level, latent - partial))
        codes.append(right)
        key, where, whose = mx.random.split(key, 3)
        is_coarse = right.shape[1] < outputs.shape[1]
        partial = codec.add_level(level, partial, _swap(right, errors if is_coarse else 0.0, where, whose))
    return codes, inputs


def _swap(codes: mx.array, errors: float, where: mx.array, whose: mx.array) -> mx.array:
    if not errors:
        return codes
    others = codes[mx.random.permutation(codes.shape[0], key=whose)]
    return mx.where(mx.random.uniform(shape=codes.shape, key=where) < errors, others, codes)


def _join(levels: list[mx.array]) -> mx.array:
    return mx.concatenate(levels, axis=1)
