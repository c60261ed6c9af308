"""Stages one after another, resumable: the state after the last saved step lies in a file until all are done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_unflatten

from runtime.ncm.identity import list_weights
from runtime.ncm.training.loop import Arrays, Plan, Progress, Stage, Trainer
from runtime.tensor_files import read_tensors, write_whole
from telemetry.errors import UsageError

SAVE_EVERY = 100


@dataclass
class Story:
    """What a run has found so far: curves and seconds by stage, and figures that a stage was followed by."""

    stage: str = ""
    done: int = 0
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


class StagedRun:
    """A run of stages. state_path: where its state lies, weights, optimiser and all; digest: what it is a run of."""

    def __init__(self, modules: Mapping[str, nn.Module], plan: Plan, state_path: Path, digest: str) -> None:
        self.story = Story()
        self._modules, self._plan, self._path, self._digest = modules, plan, state_path, digest

    def read(self) -> tuple[Arrays, Story]:
        """What was saved; UsageError if there is nothing or it is another run's."""
        path = self._path
        if not path.is_file():
            raise UsageError(f"there is nothing to resume: {path} does not exist. Leave --resume out")
        arrays, header = read_tensors(path, ". Remove it and train anew")
        if header.get("of") != self._digest:
            raise UsageError(
                f"{path} is of another configuration or recipe, or of other data: give the same options, or leave "
                "--resume out"
            )
        return arrays, Story(**json.loads(header["story"]))

    def go(
        self, stages: Sequence[Stage], saved: tuple[Arrays, Story] | None, follow: Callable[[str], Any] | None = None
    ) -> None:
        """Train every stage, or those that `saved` leaves to do; what `follow` says after one, by its name, is kept."""
        trainer = None
        if saved is not None:
            arrays, self.story = saved
            self._load_weights(arrays)
            stages = stages[[stage.name for stage in stages].index(self.story.stage) :]
            trainer = Trainer(stages[0], self._plan)
            trainer.unpack(_take(arrays, "trainer"), self.story.done)
        for stage in stages:
            self._train(trainer or Trainer(stage, self._plan))
            trainer = None
            figures = None if follow is None else follow(stage.name)
            if figures is not None:
                self.story.figures[stage.name] = figures

    def forget(self) -> None:
        """Remove the state: the run is over."""
        self._path.unlink(missing_ok=True)

    def _train(self, trainer: Trainer) -> None:
        story, name = self.story, trainer.stage.name
        story.stage, story.done = name, trainer.done
        progress = Progress(trainer.stage, story.seconds.get(name, 0.0), story.curves.setdefault(name, []))

        def save() -> None:
            story.done, story.seconds[name] = trainer.done, round(progress.seconds, 1)
            self._save(trainer)

        trainer.run(progress, save, SAVE_EVERY)
        story.seconds[name] = round(progress.seconds, 1)

    def _save(self, trainer: Trainer) -> None:
        trees = {name: dict(list_weights(module)) for name, module in self._modules.items()}
        trees["trainer"] = trainer.pack()
        arrays = {f"{tree}.{name}": array for tree, held in trees.items() for name, array in held.items()}
        header = {"of": self._digest, "story": json.dumps(vars(self.story))}
        write_whole(self._path, lambda path: mx.save_safetensors(path, arrays, header))

    def _load_weights(self, arrays: Arrays) -> None:
        for name, module in self._modules.items():
            module.update(tree_unflatten(list(_take(arrays, name).items())))


def _take(arrays: Arrays, tree: str) -> Arrays:
    """The arrays under `tree`, by their names below it."""
    return {name.removeprefix(tree + "."): array for name, array in arrays.items() if name.startswith(tree + ".")}
