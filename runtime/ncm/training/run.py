"""A training run from configuration to checkpoint: the stages one after another, held-out figures, and resuming.

Beside the checkpoint lies, until it is written, its state (`FILE.state`): weights, optimiser and codebook after the
last saved step. A resumed run goes on from there and ends with the same weights as one that was never interrupted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import msgspec
from mlx.utils import tree_unflatten

from runtime.environment import describe
from runtime.ncm.checkpoints import save_model
from runtime.ncm.identity import list_weights
from runtime.ncm.model import init_model
from runtime.ncm.training import evaluation
from runtime.ncm.training.direct import DirectNetwork
from runtime.ncm.training.loop import Arrays, Progress, Stage, Trainer
from runtime.ncm.training.stages import CodecStage, DirectStage, GeneratorStage
from runtime.ncm.training.tasks import Task, choose_task
from telemetry.errors import RoundscopeError, Unsupported, UsageError

if TYPE_CHECKING:
    from runtime.ncm.config import NcmConfig
    from runtime.ncm.training.recipe import Recipe

SAVE_EVERY = 100


@dataclass
class Story:
    """What a run has found so far: curves and seconds by stage, the direct network's figures."""

    stage: str = "codec"
    done: int = 0
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    direct: dict[str, Any] | None = None


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
    saved = _read_state(state_path, digest) if resume else None
    _say(f"making data for {config.name}")
    run = _Run(config, recipe, choose_task(config, recipe), state_path, digest)
    run.go(saved)
    figures = run.evaluate()
    header = {
        "recipe": msgspec.json.encode(recipe).decode(),
        "data": run.task.description,
        "command": command,
        "curves": json.dumps(run.story.curves),
        "held_out": json.dumps(figures),
        "environment": json.dumps(_describe_machine()),
    }
    _write_whole(out, lambda path: save_model(run.model, Path(path), header))
    state_path.unlink(missing_ok=True)
    return figures


class _Run:
    def __init__(self, config: NcmConfig, recipe: Recipe, task: Task, state_path: Path, digest: str) -> None:
        self.model, self.task, self.story = init_model(config, recipe.seed), task, Story()
        self._recipe, self._state_path, self._digest = recipe, state_path, digest
        self._network = DirectNetwork(config, self.model.generator) if recipe.direct_steps else None

    def go(self, saved: tuple[Arrays, Story] | None) -> None:
        """Train every stage, or those that `saved` leaves to do."""
        stages = self._make_stages()
        trainer = None
        if saved is not None:
            arrays, self.story = saved
            self._load_weights(arrays)
            stages = stages[[stage.name for stage in stages].index(self.story.stage) :]
            trainer = Trainer(stages[0], self._recipe)
            trainer.unpack(_take(arrays, "trainer"), self.story.done)
        self.model.train()
        for stage in stages:
            self._train_stage(trainer or Trainer(stage, self._recipe))
            trainer = None
        self.model.eval()

    def evaluate(self) -> dict[str, Any]:
        """The held-out figures of the finished model, each part apart."""
        _say(f"measuring on {self._recipe.n_held_out} samples held out")
        model, conditioning, outputs = self.model, *self.task.hold_out(self._recipe.n_held_out)
        return {
            "codec": evaluation.measure_codec(model, outputs),
            "codes": evaluation.measure_codes(model, conditioning, outputs),
            "generation": evaluation.measure_generation(model, self.task, conditioning),
            "direct": self.story.direct,
            "cost": evaluation.measure_cost(model, conditioning),
            "training_seconds": self.story.seconds,
        }

    def _make_stages(self) -> list[Stage]:
        stages: list[Stage] = [CodecStage(self.model.codec, self.task, self._recipe)]
        if self._network is not None:
            stages.append(DirectStage(self._network, self.task, self._recipe))
        return [*stages, GeneratorStage(self.model, self.task, self._recipe)]

    def _train_stage(self, trainer: Trainer) -> None:
        story, name = self.story, trainer.stage.name
        story.stage, story.done = name, trainer.done
        progress = Progress(trainer.stage, story.seconds.get(name, 0.0), story.curves.setdefault(name, []))

        def save() -> None:
            story.done, story.seconds[name] = trainer.done, round(progress.seconds, 1)
            self._save(trainer)

        trainer.run(progress, save, SAVE_EVERY)
        story.seconds[name] = round(progress.seconds, 1)
        if name == "direct" and self._network is not None:
            held_out = self.task.hold_out(self._recipe.n_held_out)
            story.direct = evaluation.measure_direct(self._network, self.task, *held_out)
            _say(f"direct network: {story.direct}")

    def _save(self, trainer: Trainer) -> None:
        trees = {"model": dict(list_weights(self.model)), "trainer": trainer.pack()}
        if self._network is not None:
            trees["network"] = dict(list_weights(self._network))
        arrays = {f"{tree}.{name}": array for tree, held in trees.items() for name, array in held.items()}
        header = {"of": self._digest, "story": json.dumps(vars(self.story))}
        _write_whole(self._state_path, lambda path: mx.save_safetensors(path, arrays, header))

    def _load_weights(self, arrays: Arrays) -> None:
        self.model.update(tree_unflatten(list(_take(arrays, "model").items())))
        if self._network is not None:
            self._network.update(tree_unflatten(list(_take(arrays, "network").items())))


def _read_state(path: Path, digest: str) -> tuple[Arrays, Story]:
    if not path.is_file():
        raise UsageError(f"there is nothing to resume: {path} does not exist. Leave --resume out")
    try:
        loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
    except RuntimeError as error:
        raise RoundscopeError(f"{path} cannot be read: {error}. Remove it and train anew") from error
    arrays, header = loaded
    if header.get("of") != digest:
        raise UsageError(f"{path} is of another configuration or recipe: give the same options, or leave --resume out")
    return arrays, Story(**json.loads(header["story"]))


def _take(arrays: Arrays, tree: str) -> Arrays:
    """The arrays under `tree`, by their names below it."""
    return {name.removeprefix(tree + "."): array for name, array in arrays.items() if name.startswith(tree + ".")}


def _write_whole(path: Path, write: Callable[[str], None]) -> None:
    """Let `write` make the file beside its place, then put it there: no reader and no crash sees half of it."""
    unfinished = path.with_name(f".{path.name}.unfinished.safetensors")
    write(str(unfinished))
    unfinished.replace(path)


def _describe_machine() -> dict[str, Any]:
    """Software, processor and BLAS that trained, without the machine's name."""
    found: dict[str, Any] = msgspec.to_builtins(describe())
    return {name: value for name, value in found.items() if name not in ("host", "load1")}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
