"""What a trained model can do on samples held out, each part apart: codec, codes, generation, cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from runtime.device import drain, read
from runtime.ncm.generation import generate
from runtime.ncm.identity import list_weights
from runtime.ncm.training.stages import make_targets
from runtime.ncm.training.teacher import forward_levels

if TYPE_CHECKING:
    from runtime.ncm.model import NcmModel
    from runtime.ncm.training.direct import DirectNetwork
    from runtime.ncm.training.tasks import Task, Tokens

BATCH = 50
Figures = dict[str, Any]


def measure_codec(model: NcmModel, outputs: Tokens) -> list[Figures]:
    """By levels decoded, the shares of tokens and of whole outputs (n, N) that come back right."""
    right: list[list[Tokens]] = [[] for _ in model.config.lengths]
    for part in _split(outputs):
        partials = model.codec.quantise(model.codec.encode(mx.array(part))).partials
        for level, tokens in enumerate(read(*(model.codec.decode(partial).argmax(axis=-1) for partial in partials))):
            right[level].append(np.array(tokens) == part)
    found = [np.concatenate(parts) for parts in right]
    return [
        {"levels": level + 1, "token_share": _round(hits.mean()), "output_share": _round(hits.all(axis=1).mean())}
        for level, hits in enumerate(found)
    ]


def measure_codes(model: NcmModel, conditioning: Tokens, outputs: Tokens) -> list[Figures]:
    """By level, the share of its codes that are predicted when all codes before it are the codec's own."""
    hits: list[list[float]] = [[] for _ in model.config.lengths]
    for prefix, part in zip(_split(conditioning), _split(outputs), strict=True):
        codes, inputs = make_targets(model.codec, mx.array(part), 0.0, mx.random.key(0))
        logits = forward_levels(model.generator, inputs, mx.array(prefix), model.config.n_layers)
        counts = read(
            *((found[-1].argmax(axis=-1) == wanted).sum(axis=1) for found, wanted in zip(logits, codes, strict=True))
        )
        for level, per_sample in enumerate(counts):
            hits[level] += per_sample
    return [
        {"level": level, "positions": length, "code_share": _round(sum(hits[level]) / (len(outputs) * length))}
        for level, length in enumerate(model.config.lengths)
    ]


def measure_generation(model: NcmModel, task: Task, conditioning: Tokens) -> Figures:
    """Shares of `conditioning` (n, P) with a valid output: whole hierarchy; verified exit, and the levels that took."""
    full: list[bool] = []
    exited: list[bool] = []
    levels: list[int] = []
    for part in _split(conditioning):

        def check(tokens: list[list[int]], samples: list[int], part: Tokens = part) -> list[bool]:
            return [bool(valid) for valid in task.check(np.array(tokens), part[samples])]

        full += generate(model, part.tolist(), check=check).solved or []
        early = generate(model, part.tolist(), exit="verified", check=check)
        exited += early.solved or []
        levels += early.n_levels
    return {
        "n": len(conditioning),
        "valid_share": _round(np.mean(full)),
        "valid_share_verified_exit": _round(np.mean(exited)),
        "mean_levels_verified_exit": _round(np.mean(levels)),
    }


def measure_direct(network: DirectNetwork, task: Task, conditioning: Tokens, outputs: Tokens) -> Figures:
    """The share of `conditioning` (n, P) with a valid output of the direct network, and of tokens it has right."""
    answers = []
    for part in _split(conditioning):
        answers += read(network(mx.array(part))[-1].argmax(axis=-1))[0]
    found = np.array(answers)
    return {
        "n": len(conditioning),
        "parameters": count_parameters(network),
        "valid_share": _round(task.check(found, conditioning).mean()),
        "token_share": _round((found == outputs).mean()),
    }


def measure_cost(model: NcmModel, conditioning: Tokens, repeats: int = 3) -> Figures:
    """Parameters, and the shortest of `repeats` times of a cached generation, by batch, here and now."""
    seconds = {}
    for batch in (1, min(16, len(conditioning))):
        rows = conditioning[:batch].tolist()
        seconds[str(batch)] = round(min(_time(model, rows) for _ in range(repeats)), 5)
    return {"parameters": count_parameters(model), "seconds_by_batch": seconds}


def count_parameters(model: Any) -> int:
    """How many numbers `model` holds as weights."""
    return sum(weight.size for _, weight in list_weights(model))


def _time(model: NcmModel, rows: list[list[int]]) -> float:
    drain()
    start = time.perf_counter()
    generate(model, rows)
    return time.perf_counter() - start


def _split(rows: Tokens) -> Iterator[Tokens]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def _round(share: Any) -> float:
    return round(float(share), 5)
