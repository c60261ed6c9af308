"""What a trained text model can do on documents held out: each part of it apart, and agreement with the target apart
from that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from runtime.device import barrier, read_rows
from runtime.ncm.text.blocks import Batch, Blocks
from runtime.ncm.text.model import Decoder, TextModel, predict_block, take_likeliest
from runtime.sampling import Sampling

if TYPE_CHECKING:
    from runtime.distillation import Example
    from runtime.drafters.ncm import NcmDrafter
    from runtime.protocols import Target

BATCH = 128
Figures = dict[str, Any]


def find_right(model: TextModel, batch: Batch, decoder: Decoder = "context") -> NDArray[np.bool_]:
    """Where a greedy proposal is the block's token (n, N), at every place of greedy outputs."""
    said = np.concatenate([_say(model, windows, decoder) for windows in _split(batch.windows)])
    return (said == batch.blocks) & batch.sayable


def measure_agreement(right: NDArray[np.bool_], batch: Batch) -> Figures:
    """How much of a proposal stands, of what `find_right` gives: survival Pr(A >= j) over the blocks that have a
    position j, and the mean of A. right: by position whatever came before; sayable: shares of the positions whose token
    is in the subset.
    """
    kept = np.cumprod(right, axis=1)
    return {
        "blocks": len(kept),
        "accepted": _round(kept.sum(axis=1).mean()),
        "survival": _by_position(kept, batch.known),
        "right": _by_position(right, batch.known),
        "sayable": _by_position(batch.sayable, batch.known),
    }


def count_rounds(right: NDArray[np.bool_], blocks: Blocks, m: int) -> Figures:
    """Rounds of greedy speculation with `m` proposed tokens over all of `blocks`, and what each accepts, of what
    `find_right` gives for them.
    """
    kept = np.cumprod(right, axis=1)[:, :m].sum(axis=1)
    rounds, accepted, row = 0, 0, 0
    while row < len(kept):
        found = int(kept[row])
        rounds, accepted = rounds + 1, accepted + found
        row += min(found + 1, blocks.count_left(row))
    return {"m": m, "rounds": rounds, "accepted_a_round": _round(accepted / max(rounds, 1))}


def measure_alignment(
    model: TextModel,
    target: Target,
    examples: Sequence[Example],
    sampling: Sampling,
    *,
    latent_temperature: float | None,
    decoder: Decoder = "context",
    stride: int = 3,
) -> Figures:
    """Agreement with the target's distribution along outputs that it sampled so, every `stride` places.

    overlap: the mean of 1 - TV(p, q_z) at the first position; equal: of sum p q_z, what coupling by equality accepts;
    point: of p at the most probable token of q_z. survival: by position, from min(1, q_z / p) along the output.
    """
    from runtime.drafters.ncm import NcmSampler

    drafter = NcmSampler(model, decoder, latent_temperature)
    ids = mx.array(model.tokens.ids)
    firsts: list[list[float]] = []
    ratios: list[list[float]] = []
    for example in examples:
        n, output = len(example.output), example.output
        p = sampling.distribution(_score(target, example.prompt, output))
        for place in range(0, n, stride):
            history = [*example.prompt, *output[:place]][-model.config.prefix_length :]
            m = min(drafter.block, n - place)
            q = sampling.distribution(drafter.condition(history, m, place, sampling))
            first, q_wide = p[place][ids], model.tokens.widen(q)
            said = mx.array(output[place : place + m])[:, None]
            p_said, q_said = (mx.take_along_axis(rows, said, axis=-1)[:, 0] for rows in (p[place : place + m], q_wide))
            stands = mx.cumprod(mx.minimum(1.0, q_said / mx.maximum(p_said, 1e-30)))
            overlap = [mx.minimum(first, q[0]).sum(), (first * q[0]).sum(), first[mx.argmax(q[0])]]
            [found, along] = _read(mx.stack(overlap), stands)
            firsts.append(found)
            ratios.append([*along, *[np.nan] * (drafter.block - m)])
    overlap_mean, equal, point = np.mean(firsts, axis=0)
    survival = np.nanmean(ratios, axis=0)
    return {
        "places": len(firsts),
        "temperature": sampling.temperature,
        "latent_temperature": latent_temperature,
        "overlap": _round(overlap_mean),
        "equal": _round(equal),
        "point": _round(point),
        "survival": [_round(share) for share in survival],
        "accepted": _round(np.nansum(ratios, axis=1).mean()),
    }


def measure_free_running(
    model: TextModel, target: Target, examples: Sequence[Example], n_tokens: int, decoder: Decoder = "context"
) -> Figures:
    """What the model says alone, block after block, `n_tokens` after every prompt: the target's nats a token for it and
    for what the target said itself, and the share of 4-grams that are not repeated.
    """
    nats: list[float] = []
    own: list[float] = []
    fresh: list[float] = []
    for example in examples:
        said: list[int] = []
        while len(said) < n_tokens:
            logits = predict_block(
                model,
                [model.take_window([*example.prompt, *said])],
                model.config.output_length,
                take_likeliest,
                decoder,
            )
            said += model.tokens.to_target(read_rows(mx.argmax(logits, axis=-1))[0][0]).tolist()
        said = said[:n_tokens]
        nats.append(_count_nats(target, example.prompt, said))
        own.append(_count_nats(target, example.prompt, example.output[:n_tokens]))
        grams = [tuple(said[i : i + 4]) for i in range(len(said) - 3)]
        fresh.append(len(set(grams)) / len(grams))
    return {
        "prompts": len(nats),
        "tokens": n_tokens,
        "nats": _round(np.mean(nats)),
        "nats_of_the_target": _round(np.mean(own)),
        "fresh_4grams": _round(np.mean(fresh)),
    }


def measure_cost(drafter: NcmDrafter, history: Sequence[int], repeats: int = 40) -> Figures:
    """Median milliseconds of a proposal, its tokens computed, by m, here and now."""
    found = {}
    for m in (1, 4, drafter.block):
        seconds = []
        for i in range(repeats):
            start = time.perf_counter()
            proposal = drafter.propose(history[: len(history) - i % 7], m)
            barrier(proposal.tokens, proposal.q if proposal.q is not None else [])
            seconds.append(time.perf_counter() - start)
        found[str(m)] = round(float(np.median(seconds)) * 1e3, 3)
    return found


def _say(model: TextModel, windows: NDArray[np.int32], decoder: Decoder) -> NDArray[np.int32]:
    logits = predict_block(model, windows.tolist(), model.config.output_length, take_likeliest, decoder)
    return np.array(read_rows(mx.argmax(logits, axis=-1))[0], np.int32)


def _score(target: Target, prompt: Sequence[int], output: Sequence[int]) -> mx.array:
    """The target's logits (n, vocab) for every token of `output`."""
    logits = target.forward(mx.array([[*prompt, *output[:-1]]]), target.make_cache())
    return logits[0, len(prompt) - 1 :].astype(mx.float32)


def _count_nats(target: Target, prompt: Sequence[int], said: Sequence[int]) -> float:
    logits = _score(target, prompt, said)
    chosen = mx.take_along_axis(logits, mx.array(list(said))[:, None], axis=-1)[:, 0]
    return _read((mx.logsumexp(logits, axis=-1) - chosen).mean(keepdims=True))[0][0]


def _read(*arrays: mx.array) -> list[list[float]]:
    rows: Any = read_rows(*arrays)
    return [[float(value) for value in row] for row in rows]


def _split(rows: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    return [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]


def _by_position(hits: NDArray[Any], known: NDArray[np.bool_]) -> list[float]:
    return [_round(hits[known[:, j], j].mean()) if known[:, j].any() else 0.0 for j in range(hits.shape[1])]


def _round(share: Any) -> float:
    return round(float(share), 5)
