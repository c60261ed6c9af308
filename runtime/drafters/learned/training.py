"""A training run of `ar` or `blocks`, from distilled data to a checkpoint with its held-out figures; resumable.

Beside the checkpoint lies, until it is written, its state (`FILE.state`): weights and optimiser after the last saved
step. A resumed run ends with the same weights as one that was never interrupted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from runtime.distillation import Example, FrequentTokens
from runtime.drafters.learned.checkpoints import write_checkpoint
from runtime.drafters.learned.data import read_data
from runtime.drafters.learned.drafters import Blocks, LearnedAssistant
from runtime.drafters.learned.evaluation import (
    answer_embedded,
    choose_greedy,
    measure_agreement,
    measure_alignment,
    measure_cost,
)
from runtime.drafters.learned.network import Kind, LearnedConfig, Network, init_network, take_over_embeddings
from runtime.drafters.learned.recipe import LearnedRecipe, change_recipe
from runtime.drafters.learned.stage import AlignmentStage, LearnedStage
from runtime.ncm.training.loop import Stage
from runtime.ncm.training.staged import StagedRun
from runtime.targets import MlxTarget

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
    found = read_data(target, data, recipe.vocab)
    network = _make_network(kind, target, found.tokens, recipe)
    digest = json.dumps([kind, msgspec.to_builtins(recipe), found.manifest.digest])
    run = StagedRun({"network": network}, recipe, out.with_name(out.name + ".state"), digest)
    stages: list[Stage] = [LearnedStage(network, found.tokens, found.train, recipe, found.labels)]
    if recipe.alignment_steps and found.can_align:
        drawn, heated = found.take_drawn()
        stages.append(AlignmentStage(network, found.tokens, drawn, recipe, heated, found.temperature))
    run.go(stages, run.read() if resume else None)
    network.eval()
    figures = _evaluate(network, found.tokens, target, found.test)
    figures |= {
        "training_seconds": run.story.seconds,
        "coverage": round(found.tokens.coverage(_list_tokens(found.test)), 4),
    }
    header = found.describe_training(recipe, command, run.story.curves, figures)
    write_checkpoint(out, network, found.tokens, found.trained_for, header)
    run.forget()
    return figures


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


def _evaluate(network: Network, tokens: FrequentTokens, target: MlxTarget, test: list[Example]) -> dict[str, Any]:
    print(f"measuring on {len(test)} answers held out", file=sys.stderr, flush=True)
    make = Blocks if network.config.kind == "blocks" else LearnedAssistant
    drafter = make(network, tokens)
    greedy = choose_greedy(test)
    drawn = [example for example in test if example.temperature]
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
        "alignment": [
            measure_alignment(drafter, target, examples[:N_ALIGNED], temperature)
            for examples, temperature in ((drawn, drawn[0].temperature if drawn else 1.0), (greedy, 1.0))
            if examples
        ],
        "draft_ms": measure_cost(drafter, greedy[:N_ALIGNED]),
    }


def _list_tokens(examples: list[Example]) -> list[int]:
    return [token for example in examples for token in example.output]


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
