"""What a step of training takes in and minimises: one of the two objectives, on the target's own histories.

Answers of similar length make a batch, so little is padded. Only the positions of an answer are learned, and only
where the drafter can speak one of the tokens that the target held likely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from runtime.distillation import Example, FrequentTokens
from runtime.distillation.labels import Labels, label_hard
from runtime.drafters.learned.network import Network
from runtime.drafters.learned.objectives import disagreement, misalignment
from runtime.drafters.learned.recipe import LearnedRecipe
from telemetry.errors import UsageError

Ids = NDArray[np.int32]
Head = tuple[mx.array, mx.array, mx.array]
"""What one head learns in a step: places (n,) of states, and the labels there, ids and probabilities (n, k)."""


class LearnedStage:
    """Training for greedy agreement, as `runtime.ncm.training.loop.Stage` wants it."""

    name = "agreement"

    def __init__(
        self,
        network: Network,
        tokens: FrequentTokens,
        examples: Sequence[Example],
        recipe: LearnedRecipe,
        labels: Sequence[Labels] | None = None,
    ) -> None:
        """labels: of each example's output; None: its tokens. UsageError without examples to learn from."""
        if not examples:
            raise UsageError("there are no training examples: let `roundscope distill` write more")
        self.steps, self.rate = recipe.steps, recipe.rate
        self.state: dict[str, mx.array] = {}
        self.module = network
        self._recipe, self._other = recipe, tokens.other
        labels = [label_hard(example.output) for example in examples] if labels is None else labels
        rows = [
            (*cut_row(example, tokens, recipe.context), held.limit(tokens))
            for example, held in zip(examples, labels, strict=True)
        ]
        self._rows = sorted(rows, key=lambda row: len(row[0]))

    def begin(self) -> None:
        """Nothing."""

    def settle(self, found: dict[str, mx.array], key: mx.array) -> None:
        """Nothing."""

    def draw(self, step: int, rng: np.random.Generator) -> tuple[mx.array, list[Head]]:
        """Input ids (B, n), and for each head the places of states in (B * n) with the labels of what to say there."""
        rows, block = self._rows, self.module.config.block
        start = int(rng.integers(max(1, len(rows) - self._recipe.batch + 1)))
        chosen = rows[start : start + self._recipe.batch]
        longest = max(len(ids) for ids, _, _ in chosen)
        inputs = np.full((len(chosen), longest), self._other, np.int32)
        places: list[list[Ids]] = [[] for _ in range(block)]
        said: list[list[Labels]] = [[] for _ in range(block)]
        for i, (ids, first, labels) in enumerate(chosen):
            inputs[i, : len(ids)] = ids
            for j in range(block):
                # Head j says the output's token j after the states of the last prompt token and of what follows.
                known = np.flatnonzero(labels.p[j:].any(axis=1))
                places[j].append((known + (first - 1 + i * longest)).astype(np.int32))
                said[j].append(Labels(labels.ids[known + j], labels.p[known + j]))
        inputs[rng.random(inputs.shape) < self._recipe.dropout] = self._other
        heads = []
        for j, share in enumerate(weigh_heads(block)):
            at = np.concatenate(places[j])
            kept = rng.permutation(len(at))[: max(1, int(self._recipe.positions * share))]
            wanted, p = (np.concatenate([getattr(part, name) for part in said[j]])[kept] for name in ("ids", "p"))
            heads.append((mx.array(at[kept]), mx.array(wanted), mx.array(p)))
        return mx.array(inputs), heads

    @property
    def measure(self) -> Callable[..., tuple[mx.array, dict[str, mx.array]]]:
        """The objective, a mean over positions for each head, weighed by `weigh_heads`."""

        def measure(inputs: mx.array, heads: list[Head]) -> tuple[mx.array, dict[str, mx.array]]:
            states = self.module.walk(inputs).reshape(-1, self.module.config.width)
            losses = [
                share * self._judge(self.module.predict(states[at], head), ids, p)
                for head, ((at, ids, p), share) in enumerate(zip(heads, weigh_heads(len(heads)), strict=True))
                if at.size
            ]
            return sum(losses, mx.array(0.0)), {}

        return measure

    def _judge(self, logits: mx.array, ids: mx.array, p: mx.array) -> mx.array:
        return disagreement(logits, ids, p)


class AlignmentStage(LearnedStage):
    """Training for sampled acceptance: outputs that the target drew at `temperature`, and its distributions there."""

    name = "alignment"

    def __init__(
        self,
        network: Network,
        tokens: FrequentTokens,
        examples: Sequence[Example],
        recipe: LearnedRecipe,
        labels: Sequence[Labels],
        temperature: float,
    ) -> None:
        super().__init__(network, tokens, examples, recipe, labels)
        self.steps, self.rate, self._temperature = recipe.alignment_steps, recipe.alignment_rate, temperature

    def _judge(self, logits: mx.array, ids: mx.array, p: mx.array) -> mx.array:
        return misalignment(logits, ids, p, self._temperature)


def weigh_heads(block: int) -> list[float]:
    """What each head counts, adding up to one: half of the one before, since it is judged only if that was right."""
    weights = [0.5**head for head in range(block)]
    return [weight / sum(weights) for weight in weights]


def cut_row(example: Example, tokens: FrequentTokens, context: int) -> tuple[Ids, int]:
    """Subset ids of the last `context` prompt tokens and the output, and where the output begins in them."""
    prompt = example.prompt[-context:]
    return tokens.to_subset([*prompt, *example.output]), len(prompt)
