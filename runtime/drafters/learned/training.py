"""A training run of `ar` or `blocks`, from distilled data to a checkpoint with its held-out figures; resumable.

Beside the checkpoint lies, until it is written, its state (`FILE.state`): weights and optimiser after the last saved
step. A resumed run ends with the same weights as one that was never interrupted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec

from runtime.distillation import Example, FrequentTokens, Manifest, load_examples, load_manifest
from runtime.distillation.identity import digest_parameters, digest_tokenizer
from runtime.drafters.learned.checkpoints import TrainedFor, write_checkpoint
from runtime.drafters.learned.drafters import Blocks, LearnedAssistant
from runtime.drafters.learned.evaluation import (
    answer_embedded,
    measure_agreement,
    measure_alignment,
    measure_cost,
)
from runtime.drafters.learned.network import Kind, LearnedConfig, Network, init_network, take_over_embeddings
from runtime.drafters.learned.recipe import LearnedRecipe, change_recipe
from runtime.drafters.learned.stage import LearnedStage
from runtime.environment import describe
from runtime.ncm.training.loop import Progress, Trainer
from runtime.targets import MlxTarget
from telemetry.errors import RoundscopeError, Unsupported, UsageError

SAVE_EVERY = 50
N_ALIGNED = 12
"""Held-out answers over which 1 - TV is measured: the target reads each anew."""


def train_learned(
    kind: Kind,
    target: MlxTarget,
    data: Path,
    out: Path,
    recipe: LearnedRecipe,
    command: str,
    *,
    resume: bool = False,
) -> dict[str, Any]:
    """Train the drafter `kind` on the examples in `data`, write it to `out`; returns the held-out figures inside.

    command: the command line, for the checkpoint. Raises UsageError if there is no data or nothing to resume,
    Unsupported if the data are another target's.
    """
    manifest = load_manifest(data)
    check_data(manifest, target, data)
    train, test = load_examples(data, "train"), load_examples(data, "test")
    tokens = FrequentTokens.choose(train, recipe.vocab, target.vocab_size, sorted(target.eos))
    network = _make_network(kind, target, tokens, recipe)
    curve, seconds = _train(LearnedStage(network, tokens, train, recipe), recipe, manifest, out, resume=resume)
    network.eval()
    figures = _evaluate(network, tokens, target, test)
    figures |= {"training_seconds": seconds, "coverage": round(tokens.coverage(_list_tokens(test)), 4)}
    header = {
        "recipe": msgspec.to_builtins(recipe),
        "data": msgspec.to_builtins(manifest),
        "data_digest": manifest.digest,
        "command": command,
        "curve": curve,
        "held_out": figures,
        "environment": _describe_machine(),
    }
    trained_for = TrainedFor(
        target=manifest.target,
        target_digest=manifest.target_digest,
        tokenizer_digest=manifest.tokenizer_digest,
        vocab_size=manifest.vocab_size,
    )
    write_checkpoint(out, network, tokens, trained_for, header)
    _find_state(out).unlink(missing_ok=True)
    return figures


def check_data(manifest: Manifest, target: MlxTarget, data: Path) -> None:
    """Raise Unsupported unless it was `target`, as it is in memory, that wrote the data."""
    ours = (digest_parameters(target), digest_tokenizer(target), target.vocab_size)
    if ours != (manifest.target_digest, manifest.tokenizer_digest, manifest.vocab_size):
        raise Unsupported(
            f"the data in {data} were written by {manifest.target}, and {target.name} is another (or the same in "
            "another precision): give the one that wrote them, or distil anew"
        )


def _make_network(kind: Kind, target: MlxTarget, tokens: FrequentTokens, recipe: LearnedRecipe) -> Network:
    config = LearnedConfig(
        kind=kind,
        vocab=tokens.size,
        width=recipe.width,
        layers=recipe.layers,
        heads=recipe.heads,
        ffn=recipe.ffn,
        block=recipe.block,
    )
    network = init_network(config, recipe.seed)
    take_over_embeddings(network, target, tokens)
    return network


def _train(
    stage: LearnedStage, recipe: LearnedRecipe, manifest: Manifest, out: Path, *, resume: bool
) -> tuple[list[tuple[int, float]], float]:
    """The curve and the seconds of training."""
    path = _find_state(out)
    key = json.dumps([stage.name, msgspec.to_builtins(recipe), manifest.digest])
    trainer = Trainer(stage, recipe)
    curve: list[tuple[int, float]] = []
    seconds = 0.0
    if resume:
        arrays, story = _read_state(path, key)
        trainer.unpack(arrays, story["done"])
        curve, seconds = [tuple(point) for point in story["curve"]], story["seconds"]
    progress = Progress(stage, seconds, curve)

    def save() -> None:
        story = {"done": trainer.done, "curve": progress.curve, "seconds": progress.seconds}
        unfinished = path.with_name(f".{path.name}.unfinished.safetensors")
        mx.save_safetensors(str(unfinished), trainer.pack(), {"of": key, "story": json.dumps(story)})
        unfinished.replace(path)

    trainer.run(progress, save, SAVE_EVERY)
    return progress.curve, round(progress.seconds, 1)


def _evaluate(network: Network, tokens: FrequentTokens, target: MlxTarget, test: list[Example]) -> dict[str, Any]:
    print(f"measuring on {len(test)} answers held out", file=sys.stderr, flush=True)
    make = Blocks if network.config.kind == "blocks" else LearnedAssistant
    drafter = make(network, tokens)
    greedy = [example for example in test if not example.temperature]
    if not greedy:
        return {}
    classes = sorted({example.class_ for example in greedy})
    by_class = {name: [example for example in greedy if example.class_ == name] for name in classes}
    return {
        "agreement": measure_agreement(drafter, [(e.prompt, e.output) for e in greedy]),
        "agreement_by_class": {
            name: measure_agreement(drafter, [(e.prompt, e.output) for e in held]) for name, held in by_class.items()
        },
        "agreement_embedded": {
            name: measure_agreement(drafter, answers) for name, answers in answer_embedded(target).items()
        },
        "alignment": measure_alignment(drafter, target, greedy[:N_ALIGNED]),
        "draft_ms": measure_cost(drafter, greedy[:N_ALIGNED]),
    }


def _find_state(out: Path) -> Path:
    return out.with_name(out.name + ".state")


def _read_state(path: Path, key: str) -> tuple[dict[str, mx.array], dict[str, Any]]:
    if not path.is_file():
        raise UsageError(f"there is nothing to resume: {path} does not exist. Leave --resume out")
    try:
        loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
    except RuntimeError as error:
        raise RoundscopeError(f"{path} cannot be read: {error}. Remove it and train anew") from error
    arrays, header = loaded
    if header.get("of") != key:
        raise UsageError(f"{path} is of another recipe or of other data: give the same options, or leave --resume out")
    return arrays, json.loads(header["story"])


def _list_tokens(examples: list[Example]) -> list[int]:
    return [token for example in examples for token in example.output]


def _describe_machine() -> dict[str, Any]:
    """Software, processor and BLAS that trained, without the machine's name."""
    found: dict[str, Any] = msgspec.to_builtins(describe())
    return {name: value for name, value in found.items() if name not in ("host", "load1")}


def train_ar(
    target: MlxTarget, data: Path, out: Path, command: str, changes: dict[str, str], *, resume: bool = False
) -> dict[str, Any]:
    """The trainer of `ar`, as `runtime.drafters.learned.trainers` describes one."""
    return train_learned("ar", target, data, out, change_recipe("ar", changes), command, resume=resume)


def train_blocks(
    target: MlxTarget, data: Path, out: Path, command: str, changes: dict[str, str], *, resume: bool = False
) -> dict[str, Any]:
    """The trainer of `blocks`, as `runtime.drafters.learned.trainers` describes one."""
    return train_learned("blocks", target, data, out, change_recipe("blocks", changes), command, resume=resume)
