"""A training run from configuration to checkpoint: the stages one after another, held-out figures, and resuming.

Beside the checkpoint lies, until it is written, its state (`FILE.state`): weights, optimiser and codebook after the
last saved step. A resumed run goes on from there and ends with the same weights as one that was never interrupted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from mlx import nn

from runtime.environment import describe_machine
from runtime.ncm.checkpoints import save_model
from runtime.ncm.model import init_model
from runtime.ncm.training import evaluation
from runtime.ncm.training.direct import DirectNetwork
from runtime.ncm.training.loop import Arrays, Stage
from runtime.ncm.training.staged import StagedRun, Story
from runtime.ncm.training.stages import CodecStage, DirectStage, GeneratorStage
from runtime.ncm.training.tasks import Task, choose_task
from runtime.tensor_files import write_whole
from telemetry.errors import Unsupported

if TYPE_CHECKING:
    from runtime.ncm.config import NcmConfig
    from runtime.ncm.training.recipe import Recipe


def train(config: NcmConfig, recipe: Recipe, out: Path, command: str, *, resume: bool = False) -> dict[str, Any]:
    """Train a model, write its checkpoint to `out`, and return the held-out figures that are inside it.

    command: the command line, for the checkpoint. resume: go on from the state beside `out`.
    Raises UsageError if there is no such state or it is another run's, Unsupported if there is no data of this shape.
    """
    if recipe.direct_steps and config.prefix_length != config.output_length:
        raise Unsupported(
            f"direct_steps: the direct network answers at every position of the prefix, and {config.name} has "
            f"{config.output_length} in its output for {config.prefix_length} there. Leave them at 0"
        )
    state_path = out.with_name(out.name + ".state")
    digest = msgspec.json.encode([config, recipe], order="sorted").decode()
    run = _Run(config, recipe, state_path, digest)
    saved = run.stages.read() if resume else None
    _say(f"making data for {config.name}")
    run.go(choose_task(config, recipe), saved)
    figures = run.evaluate()
    header = {
        "recipe": msgspec.json.encode(recipe).decode(),
        "data": run.task.description,
        "command": command,
        "curves": json.dumps(run.stages.story.curves),
        "held_out": json.dumps(figures),
        "environment": json.dumps(describe_machine()),
    }
    write_whole(out, lambda path: save_model(run.model, Path(path), header))
    run.stages.forget()
    return figures


class _Run:
    task: Task

    def __init__(self, config: NcmConfig, recipe: Recipe, state_path: Path, digest: str) -> None:
        self.model, self._recipe = init_model(config, recipe.seed), recipe
        self._network = DirectNetwork(config, self.model.generator) if recipe.direct_steps else None
        modules: dict[str, nn.Module] = {"model": self.model}
        if self._network is not None:
            modules["network"] = self._network
        self.stages = StagedRun(modules, recipe, state_path, digest)

    def go(self, task: Task, saved: tuple[Arrays, Story] | None) -> None:
        """Train every stage, or those that `saved` leaves to do."""
        self.task = task
        self.model.train()
        self.stages.go(self._make_stages(), saved, self._measure_direct)
        self.model.eval()

    def _measure_direct(self, stage: str) -> dict[str, Any] | None:
        if stage != "direct" or self._network is None:
            return None
        held_out = self.task.hold_out(self._recipe.n_held_out)
        figures = evaluation.measure_direct(self._network, self.task, *held_out)
        _say(f"direct network: {figures}")
        return figures

    def evaluate(self) -> dict[str, Any]:
        """The held-out figures of the finished model, each part apart."""
        _say(f"measuring on {self._recipe.n_held_out} samples held out")
        model, conditioning, outputs = self.model, *self.task.hold_out(self._recipe.n_held_out)
        return {
            "codec": evaluation.measure_codec(model, outputs),
            "codes": evaluation.measure_codes(model, conditioning, outputs),
            "generation": evaluation.measure_generation(model, self.task, conditioning),
            "direct": self.stages.story.figures.get("direct"),
            "cost": evaluation.measure_cost(model, conditioning),
            "training_seconds": self.stages.story.seconds,
        }

    def _make_stages(self) -> list[Stage]:
        stages: list[Stage] = [CodecStage(self.model.codec, self.task, self._recipe)]
        if self._network is not None:
            stages.append(DirectStage(self._network, self.task, self._recipe))
        return [*stages, GeneratorStage(self.model, self.task, self._recipe)]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
