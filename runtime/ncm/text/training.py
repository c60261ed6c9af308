"""A training run of the drafter `ncm`: codec and its reconstruction report, then the generator, then what is held out.

The figures keep apart what the model can do by itself (reconstruction, codes, free running, cost) and how far it agrees
with the target (greedy agreement; overlap with sampled distributions).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from runtime.distillation import Example, FrequentTokens
from runtime.drafters.learned.data import read_data
from runtime.drafters.learned.evaluation import answer_embedded, choose_greedy
from runtime.drafters.ncm import NcmSampler
from runtime.ncm.text import evaluation
from runtime.ncm.text.blocks import Batch, Blocks, BlockSource, join_prompts
from runtime.ncm.text.causal import CausalStage, copy_blocks
from runtime.ncm.text.checkpoints import save_text_model
from runtime.ncm.text.embeddings import begin_from, read_embeddings
from runtime.ncm.text.model import Decoder, TextModel, fit_config, init_text_model
from runtime.ncm.text.recipe import TextRecipe, change_recipe
from runtime.ncm.text.stage import TextAlignmentStage, TextStage
from runtime.ncm.training.evaluation import count_parameters, measure_codec, measure_codes
from runtime.ncm.training.loop import Stage
from runtime.ncm.training.staged import StagedRun
from runtime.ncm.training.stages import CodecStage
from runtime.sampling import Sampling
from runtime.targets import MlxTarget
from telemetry.errors import UsageError

N_CODED = 1500
"""Held-out blocks that codec and codes are measured on."""
N_SCORED = 8
"""Held-out answers that the target scores."""
FREE_TOKENS = 32


def train_ncm(
    target: MlxTarget, data: Path, out: Path, command: str, changes: dict[str, str], *, resume: bool = False
) -> dict[str, Any]:
    """The trainer of `ncm`, as `runtime.drafters.learned.trainers` describes one."""
    return train_text(target, data, out, change_recipe(changes), command, resume=resume)


def train_text(
    target: MlxTarget, data: Path, out: Path, recipe: TextRecipe, command: str, *, resume: bool = False
) -> dict[str, Any]:
    """Train a text model on the examples in `data` and write it to `out`; returns the held-out figures inside.

    command: the command line, for the checkpoint. Raises UsageError if there is no data or nothing to resume,
    Unsupported if the data are another target's.
    """
    found = read_data(target, data, recipe.n_tokens)
    train, test, tokens, labels = found.train, found.test, found.tokens, found.labels
    model = _make_model(target, tokens, train, recipe)
    digest = json.dumps(["ncm", msgspec.to_builtins(recipe), model.config.digest, found.manifest.digest])
    run = StagedRun({"model": model}, recipe, out.with_name(out.name + ".state"), digest)
    saved = run.read() if resume else None
    held_out = Blocks(test, tokens, model.config)
    source = BlockSource(Blocks(train, tokens, model.config, labels), recipe.greedy_share, recipe.hidden)
    texts = BlockSource(Blocks(join_prompts(train), tokens, model.config, labels), None, recipe.hidden)

    def follow(stage: str) -> Any:
        if stage == "causal":
            copy_blocks(model)
        if stage != "codec":
            return None
        figures = measure_codec(model, _take_whole(held_out).blocks.astype(np.int64))
        print(f"codec, of {N_CODED} held-out blocks at most: {figures}", file=sys.stderr, flush=True)
        return figures

    model.train()
    stages: list[Stage] = [CodecStage(model.codec, source, recipe)]
    if recipe.causal_steps:
        stages.append(CausalStage(model, texts if recipe.with_prompts else source, recipe))
    stages.append(TextStage(model, source, recipe))
    if recipe.alignment_steps and found.can_align:
        drawn, heated = found.take_drawn()
        drawn_source = BlockSource(Blocks(drawn, tokens, model.config, heated), None, recipe.hidden)
        stages.append(TextAlignmentStage(model, drawn_source, recipe, found.temperature))
    run.go(stages, saved, follow)
    model.eval()
    print(f"measuring on {len(test)} answers held out", file=sys.stderr, flush=True)
    figures = evaluate(model, target, test, held_out) | {
        "codec": run.story.figures.get("codec"),
        "training_seconds": run.story.seconds,
    }
    header = found.describe_training(recipe, command, run.story.curves, figures)
    save_text_model(model, out, found.trained_for, header)
    run.forget()
    return figures


def evaluate(model: TextModel, target: MlxTarget, test: Sequence[Example], held_out: Blocks) -> dict[str, Any]:
    """The held-out figures, each part apart; agreement and overlap are left out where no such answers are held out."""
    greedy = choose_greedy(test)
    drawn = [example for example in test if example.temperature]
    whole = _take_whole(held_out)
    figures: dict[str, Any] = {
        "parameters": count_parameters(model),
        "coverage": round(model.tokens.coverage([token for each in test for token in each.output]), 5),
        "codes": measure_codes(model, whole.windows.astype(np.int64), whole.blocks.astype(np.int64)),
        "free_running": evaluation.measure_free_running(model, target, test[:N_SCORED], FREE_TOKENS),
        "draft_ms": evaluation.measure_cost(NcmSampler(model), [*test[0].prompt, *test[0].output]),
    }
    if greedy:
        figures["agreement"] = _measure_agreement(model, greedy)
        for name in sorted({each.class_ for each in greedy}):
            chosen = Blocks([each for each in greedy if each.class_ == name], model.tokens, model.config)
            batch = chosen.take(slice(None))
            found = evaluation.measure_agreement(evaluation.find_right(model, batch), batch)
            figures.setdefault("agreement_by_class", {})[name] = found
    figures["agreement_embedded"] = {
        name: _measure_agreement(model, [_make_example(*answer) for answer in answers])
        for name, answers in answer_embedded(target).items()
    }
    if drawn:
        figures["alignment"] = _measure_alignment(model, target, drawn[:N_SCORED])
    return figures


def _measure_agreement(model: TextModel, greedy: Sequence[Example]) -> dict[str, Any]:
    blocks = Blocks(greedy, model.tokens, model.config)
    batch = blocks.take(slice(None))
    right = evaluation.find_right(model, batch)
    return {
        "context": evaluation.measure_agreement(right, batch),
        "codec": evaluation.measure_agreement(evaluation.find_right(model, batch, "codec"), batch),
        "rounds": [evaluation.count_rounds(right, blocks, m) for m in (2, 4, model.config.output_length)],
    }


def _make_example(prompt: list[int], output: list[int]) -> Example:
    return Example(document="", split="test", prompt=prompt, output=output, temperature=0.0)


def _measure_alignment(model: TextModel, target: MlxTarget, drawn: Sequence[Example]) -> list[dict[str, Any]]:
    sampling = Sampling(drawn[0].temperature)
    ways: list[tuple[Decoder, float | None]] = [("context", None), ("context", 0.0), ("codec", None)]
    return [
        {"decoder": decoder}
        | evaluation.measure_alignment(model, target, drawn, sampling, latent_temperature=temperature, decoder=decoder)
        for decoder, temperature in ways
    ]


def _take_whole(blocks: Blocks) -> Batch:
    """Held-out blocks whose every token can be said, at most N_CODED, evenly spread."""
    batch = blocks.take(slice(None))
    rows = np.flatnonzero(batch.sayable.all(axis=1))
    if not len(rows):
        raise UsageError("no held-out block is whole: distil more, or take more tokens")
    return blocks.take(rows[:: max(1, len(rows) // N_CODED)])


def _make_model(target: MlxTarget, tokens: FrequentTokens, train: Sequence[Example], recipe: TextRecipe) -> TextModel:
    model = init_text_model(fit_config(tokens, recipe.change_config()), tokens, recipe.seed)
    if recipe.from_embeddings:
        said = tokens.to_subset([token for example in train for token in example.output])
        counts = np.bincount(said, minlength=tokens.size + 1)[: tokens.size]
        begin_from(model, read_embeddings(target, tokens.ids), counts)
    return model
