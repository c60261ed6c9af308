"""What a step of training takes in and minimises: cross entropy of the target's own tokens, on its own histories.

Answers of similar length make a batch, so little is padded. Only the positions of an answer are learned, and only
tokens that the drafter can speak.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from numpy.typing import NDArray

from runtime.distillation import Example, FrequentTokens
from runtime.drafters.learned.network import Network
from runtime.drafters.learned.recipe import LearnedRecipe
from telemetry.errors import UsageError

Ids = NDArray[np.int32]


class LearnedStage:
    """The one stage of training, as `runtime.ncm.training.loop.Stage` wants it."""

    def __init__(
        self, network: Network, tokens: FrequentTokens, examples: Sequence[Example], recipe: LearnedRecipe
    ) -> None:
        """UsageError without examples to learn from."""
        if not examples:
            raise UsageError("there are no training examples: let `roundscope distill` write more")
        self.name: str = network.config.kind
        self.steps, self.rate = recipe.steps, recipe.rate
        self.state: dict[str, mx.array] = {}
        self.module = network
        self._recipe, self._other = recipe, tokens.other
        rows = [cut_row(example, tokens, recipe.context) for example in examples]
        self._rows = sorted(rows, key=lambda row: len(row[0]))

    def begin(self) -> None:
        """Nothing."""

    def settle(self, found: dict[str, mx.array], key: mx.array) -> None:
        """Nothing."""

    def draw(self, step: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """Input ids (B, n), and for each head the places (k,) of states in (B * n) and the tokens (k,) to say there."""
        rows, block = self._rows, self.module.config.block
        start = int(rng.integers(max(1, len(rows) - self._recipe.batch + 1)))
        chosen = rows[start : start + self._recipe.batch]
        longest = max(len(ids) for ids, _ in chosen)
        inputs = np.full((len(chosen), longest), self._other, np.int32)
        places: list[list[Ids]] = [[] for _ in range(block)]
        labels: list[list[Ids]] = [[] for _ in range(block)]
        for i, (ids, first) in enumerate(chosen):
            inputs[i, : len(ids)] = ids
            for j in range(block):
                at = np.arange(first - 1, len(ids) - 1 - j, dtype=np.int32)
                said = ids[at + 1 + j]
                at, said = at[said != self._other], said[said != self._other]
                places[j].append(at + np.int32(i * longest))
                labels[j].append(said)
        inputs[rng.random(inputs.shape) < self._recipe.dropout] = self._other
        shares = weigh_heads(block)
        pairs = []
        for j in range(block):
            at, said = np.concatenate(places[j]), np.concatenate(labels[j])
            kept = rng.permutation(len(at))[: max(1, int(self._recipe.positions * shares[j]))]
            pairs.append((mx.array(at[kept]), mx.array(said[kept])))
        return mx.array(inputs), pairs

    @property
    def measure(self) -> Callable[..., tuple[mx.array, dict[str, mx.array]]]:
        """Cross entropy in nats: the mean over positions of each head, weighed by `weigh_heads`."""

        def measure(inputs: mx.array, pairs: list[tuple[mx.array, mx.array]]) -> tuple[mx.array, dict[str, mx.array]]:
            states = self.module.walk(inputs).reshape(-1, self.module.config.width)
            losses = [
                share * nn.losses.cross_entropy(self.module.predict(states[at], head), said, reduction="mean")
                for head, ((at, said), share) in enumerate(zip(pairs, weigh_heads(len(pairs)), strict=True))
                if at.size
            ]
            return sum(losses, mx.array(0.0)), {}

        return measure


def weigh_heads(block: int) -> list[float]:
    """What each head counts, adding up to one: half of the one before, since it is judged only if that was right."""
    weights = [0.5**head for head in range(block)]
    return [weight / sum(weights) for weight in weights]


def cut_row(example: Example, tokens: FrequentTokens, context: int) -> tuple[Ids, int]:
    """Subset ids of the last `context` prompt tokens and the output, and where the output begins in them."""
    prompt = example.prompt[-context:]
    return tokens.to_subset([*prompt, *example.output]), len(prompt)
