"""The optimisation loop of every stage: AdamW, warm-up and cosine, clipped gradients, a curve, and resuming."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx import nn, optimizers
from mlx.utils import tree_flatten, tree_unflatten

from runtime.device import barrier, read_floats

MAX_NORM = 1.0
LAST_SHARE = 0.05
CURVE_POINTS = 40
Arrays = dict[str, mx.array]


class Stage(Protocol):
    """One thing to train. `state`: what it carries from step to step beside weights and optimiser, by name."""

    name: str
    steps: int
    rate: float
    state: Arrays

    @property
    def module(self) -> nn.Module:
        """What is trained."""

    @property
    def measure(self) -> Callable[..., tuple[mx.array, Arrays]]:
        """A function of what `draw` gives: the loss, and what `settle` needs."""

    def begin(self) -> None:
        """What has to be done before the first step."""

    def draw(self, step: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """What `measure` takes at `step`, counted from 0."""

    def settle(self, found: Arrays, key: mx.array) -> None:
        """Whatever follows the optimiser's step."""


class Plan(Protocol):
    """What the loop needs to know of a recipe."""

    @property
    def seed(self) -> int:
        """Of all draws."""

    @property
    def warm_up(self) -> int:
        """Steps up to the peak learning rate."""

    @property
    def weight_decay(self) -> float:
        """Of AdamW."""


class Progress:
    """Says on stderr how far a stage is, and keeps its curve: steps and mean losses since the last point."""

    def __init__(self, stage: Stage, seconds: float = 0.0, curve: list[tuple[int, float]] | None = None) -> None:
        self.curve = [] if curve is None else curve
        self._stage, self._every = stage, max(1, stage.steps // CURVE_POINTS)
        self._losses: list[mx.array] = []
        self._start = time.monotonic() - seconds

    @property
    def seconds(self) -> float:
        """Time since the stage began, interruptions left out."""
        return time.monotonic() - self._start

    def add(self, step: int, loss: mx.array) -> None:
        """Take the loss of `step`, counted from 0."""
        self._losses.append(loss)
        if (step + 1) % self._every == 0 or step + 1 == self._stage.steps:
            mean = float(np.mean(read_floats(mx.stack(self._losses))))
            self._losses = []
            self.curve.append((step + 1, round(mean, 5)))
            line = f"{self._stage.name}: step {step + 1} of {self._stage.steps}, loss {mean:.4f}, {self.seconds:.0f} s"
            print(line, file=sys.stderr, flush=True)


class Trainer:
    """A stage in training: its optimiser and how many steps are done."""

    def __init__(self, stage: Stage, recipe: Plan) -> None:
        self.stage, self.done = stage, 0
        stage.begin()
        self._seed = recipe.seed
        self._optimiser = optimizers.AdamW(
            _schedule(stage, recipe.warm_up), betas=[0.9, 0.99], weight_decay=recipe.weight_decay
        )
        self._optimiser.init(stage.module.trainable_parameters())
        self._differentiate = nn.value_and_grad(stage.module, stage.measure)

    def run(self, progress: Progress, save: Callable[[], None], every: int) -> None:
        """Do the steps that are left; `save` is called after every `every` of them and when interrupted."""
        try:
            while self.done < self.stage.steps:
                self._step(progress)
                if self.done % every == 0:
                    save()
        except KeyboardInterrupt:
            save()
            raise

    def _step(self, progress: Progress) -> None:
        stage = self.stage
        place = [self._seed, *stage.name.encode(), self.done]
        rng = np.random.default_rng(place)
        # Dropout draws from MLX's global generator: a resumed run has to drop what an uninterrupted one would.
        mx.random.seed(int(np.random.default_rng([*place, 1]).integers(2**32)))
        batch = stage.draw(self.done, rng)
        (loss, found), gradients = self._differentiate(*batch)
        gradients, _ = optimizers.clip_grad_norm(gradients, MAX_NORM)
        self._optimiser.update(stage.module, gradients)
        stage.settle(found, mx.random.key(int(rng.integers(2**32))))
        barrier(stage.module.parameters(), self._optimiser.state, stage.state, loss)
        progress.add(self.done, loss)
        self.done += 1

    def pack(self) -> Arrays:
        """Everything that the next step depends on, but the number of steps done."""
        trees = {
            "weights": self.stage.module.parameters(),
            "optimiser": self._optimiser.state,
            "state": self.stage.state,
        }
        return dict(tree_flatten(trees))

    def unpack(self, arrays: Arrays, done: int) -> None:
        """Go on from what `pack` gave after `done` steps."""
        trees = tree_unflatten(list(arrays.items()))
        self.stage.module.update(trees["weights"])
        self._optimiser.state = trees["optimiser"]
        self.stage.state.update(trees.get("state", {}))
        self.done = done


def _schedule(stage: Stage, warm_up: int) -> Callable[[mx.array], mx.array]:
    rise = min(warm_up, max(1, stage.steps // 2))
    fall = optimizers.cosine_decay(stage.rate, max(1, stage.steps - rise), stage.rate * LAST_SHARE)
    return optimizers.join_schedules([optimizers.linear_schedule(stage.rate / rise, stage.rate, rise), fall], [rise])
