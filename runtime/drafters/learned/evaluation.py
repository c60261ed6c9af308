"""What a learned drafter is worth on answers that it never saw: greedy agreement, sampled alignment and cost, apart.

Agreement is counted on the target's own histories: Pr(A >= j) of `m` tokens proposed at every position of an answer, as
a forecast counts it. Alignment is 1 - TV(p, q), the share of drawn proposals that verification accepts, for the next
token. Cost is the time of one proposal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import mlx.core as mx
import numpy as np

from runtime.device import barrier, read_floats
from runtime.distillation import Example
from runtime.distillation.batches import BatchDecoder
from runtime.drafters.learned.drafters import Blocks, LearnedAssistant
from runtime.experiment.forecast import forecast
from runtime.protocols import Target
from runtime.targets import MlxTarget
from runtime.workloads import encode, load_embedded

LONGEST = 8
N_TIMED = 30
N_JUDGED = 60
"""Greedy answers held out over which agreement is counted, at least, where there are as many."""
N_ANSWERED = 64
"""Tokens of an answer to the embedded workload, as `roundscope run` takes them."""


def choose_greedy(test: Sequence[Example]) -> list[Example]:
    """Of the greedy answers in `test` fewer than twice N_JUDGED, evenly spread: every drafter is judged by the same."""
    greedy = [example for example in test if not example.temperature]
    return greedy[:: max(1, len(greedy) // N_JUDGED)]


def measure_agreement(
    drafter: LearnedAssistant | Blocks, answers: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> dict[str, Any]:
    """Survival Pr(A >= j) for j from 1 on and the mean of A, over every position of (prompt, output) pairs.

    A position counts for j where j tokens of the answer were still to come.
    """
    judged, right = np.zeros(LONGEST), np.zeros(LONGEST)
    for prompt, output in answers:
        found = forecast(drafter, drafter.name, prompt, output, "", LONGEST)
        for position, (offered, accepted) in enumerate(zip(found.offered, found.right, strict=True)):
            n = min(offered, len(output) - position)
            judged[:n] += 1
            right[: min(accepted, n)] += 1
    survival = [round(float(r / n), 4) for r, n in zip(right, judged, strict=True) if n]
    return {"n_positions": int(judged[0]), "survival": survival, "mean_accepted": round(sum(survival), 4)}


def answer_embedded(target: MlxTarget) -> dict[str, list[tuple[list[int], list[int]]]]:
    """By class of the embedded workload, which no training prompt overlaps: (prompt, `target`'s greedy answer).

    Prompts that leave no room for the answer within the target's positions are left out.
    """
    decoder, longest = BatchDecoder(target), target.max_positions
    found: dict[str, list[tuple[list[int], list[int]]]] = {}
    workload = load_embedded()
    for class_ in workload.classes:
        prompts = [encode(item, target) for item in workload.items if item.class_ == class_]
        prompts = [ids for ids in prompts if longest is None or len(ids) + N_ANSWERED <= longest]
        if prompts:
            answers = decoder.write(prompts, [[0.0]] * len(prompts), N_ANSWERED, mx.random.key(0))
            found[class_] = [(ids, answer) for ids, [answer] in zip(prompts, answers, strict=True)]
    return found


def measure_alignment(
    drafter: LearnedAssistant | Blocks, target: Target, examples: Sequence[Example], temperature: float
) -> dict[str, Any]:
    """The mean overlap, 1 - TV(p, q), over every position of the outputs, for the next token at `temperature`."""
    found: list[float] = []
    ids = mx.array(drafter.tokens.ids)
    for example in examples:
        whole, first = [*example.prompt, *example.output], len(example.prompt)
        logits = target.forward(mx.array(whole[:-1])[None], target.make_cache())[0, first - 1 :]
        p = mx.softmax(logits / temperature, axis=-1)
        network = drafter.network
        states = network.walk(mx.array(drafter.tokens.to_subset(whole[:-1]))[None])[0, first - 1 :]
        q = mx.softmax(network.predict(states) / temperature, axis=-1)
        found += read_floats(mx.minimum(p[:, ids], q).sum(axis=-1))
    kind = "sampled" if examples[0].temperature else "greedy"
    return {"histories": kind, "temperature": temperature, "overlap": round(float(np.mean(found)), 4)}


def measure_cost(drafter: LearnedAssistant | Blocks, examples: Sequence[Example]) -> dict[str, float]:
    """Median milliseconds of a proposal of 1, 4 and 8 tokens (`blocks`: at most a block), one committed token apart."""
    found = {}
    for m in (1, 4, 8):
        seconds = []
        for example in examples:
            history = list(example.prompt)
            drafter.reset(history)
            for token in example.output[: max(1, N_TIMED // len(examples) + 1)]:
                start = time.perf_counter()
                barrier(drafter.propose(history, m).tokens)
                seconds.append(time.perf_counter() - start)
                history.append(token)
                drafter.rewind(min(drafter.length, len(history) - 1))
        found[f"m={m}"] = round(1000 * median(seconds), 3)
    return found
