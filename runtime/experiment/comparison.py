"""Is a generation's output ordinary decoding's? If not, is that a near tie?

Where a backend is not batch-invariant, a forward over several positions may round another way than single steps do,
and flip an argmax between two logits that are all but equal. Such a divergence is allowed, and only such: ordinary's
prefix is scored again, and the two best logits there must lie within the tolerance of their dtype, as must the token
that was said instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from runtime.device import barrier, read_floats
from runtime.generation import Generation
from runtime.processing import LogitsProcessor, process
from runtime.protocols import Target
from runtime.session import PREFILL_CHUNK
from telemetry.records import ComparisonRecord

NEAR_TIE_TOLERANCE = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 2.5e-1}
"""Largest gap, by the dtype of the logits, that rounding is taken to be able to close: a few units in the last
place of logits around 20, times the growth seen over 30 layers."""


@dataclass(frozen=True)
class Output:
    """A generation that is over: its id, output, and how many tokens each round committed."""

    generation_id: str
    tokens: tuple[int, ...]
    committed: tuple[int, ...] = ()

    @classmethod
    def of(cls, generation: Generation, committed: Sequence[int]) -> Output:
        """What is needed of a finished `generation`."""
        return cls(generation.id, tuple(generation.tokens), tuple(committed))


def compare(
    target: Target,
    prompt: Sequence[int],
    ordinary: Output,
    other: Output,
    processors: Sequence[LogitsProcessor] = (),
) -> ComparisonRecord:
    """Hold `other` against `ordinary`, both whole outputs for `prompt`, chosen after `processors` without a state."""
    if other.tokens == ordinary.tokens:
        return ComparisonRecord(generation_id=other.generation_id, pair_id=ordinary.generation_id, equal=True)
    at = find_divergence(ordinary.tokens, other.tokens)
    said = other.tokens[at] if at < len(other.tokens) else None
    gap, lag, dtype = score_again(target, [*prompt, *ordinary.tokens[:at]], said, processors)
    tolerance = NEAR_TIE_TOLERANCE[dtype]
    return ComparisonRecord(
        generation_id=other.generation_id,
        pair_id=ordinary.generation_id,
        equal=False,
        diverged_at=at,
        diverged_round=find_round(other.committed, at),
        top2_gap=gap,
        tolerance=tolerance,
        near_tie=lag is not None and max(gap, lag) <= tolerance,
    )


def find_divergence(ordinary: Sequence[int], other: Sequence[int]) -> int:
    """The first position at which the outputs differ; the shorter one's length if it is the other's beginning."""
    shared = min(len(ordinary), len(other))
    return next((i for i in range(shared) if ordinary[i] != other[i]), shared)


def find_round(committed: Sequence[int], position: int) -> int | None:
    """The round that committed output `position`, given how many tokens each round committed."""
    ends = [0, *accumulate(committed)]
    return next((index for index, (a, b) in enumerate(pairwise(ends)) if a <= position < b), None)


def score_again(
    target: Target, ids: Sequence[int], said: int | None, processors: Sequence[LogitsProcessor] = ()
) -> tuple[float, float | None, str]:
    """Of the logits that follow `ids`: the gap of the best two, how far `said` lies below the best, and their dtype."""
    import mlx.core as mx

    cache = target.make_cache()
    for start in range(0, len(ids) - 1, PREFILL_CHUNK):
        target.forward(mx.array([list(ids[start : min(start + PREFILL_CHUNK, len(ids) - 1)])]), cache)
        barrier([layer.state for layer in cache])
    logits = process(target.forward(mx.array([[ids[-1]]]), cache)[:, -1], mx.array(list(ids)), processors)[0]
    dtype = str(logits.dtype).removeprefix("mlx.core.")
    row = logits.astype(mx.float32)
    said_or_best = mx.max(row, keepdims=True) if said is None else row[said : said + 1]
    second, best, other = read_floats(mx.concatenate([mx.sort(mx.topk(row, 2)), said_or_best]))
    return best - second, None if said is None else best - other, dtype
