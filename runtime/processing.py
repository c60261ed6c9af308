"""How the next token is chosen from logits: the argmax, or a draw, after logits processors if there are any.

A processor is called as mlx-lm calls it, `processor(tokens, logits)`, with the ids of the whole history, the prompt
and the token just fed included, and logits (1, vocab); it returns the logits to use. One that keeps a state (a
grammar) sees the same calls in speculation as in ordinary decoding: rows of a verified block are processed one by
one, and no further than the first mismatch or stop, so every call belongs to a token that is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from runtime.sampling import Sampling

LogitsProcessor: TypeAlias = Callable[[Any, Any], Any]

Rows: TypeAlias = deque[Any]
"""Logits (1, vocab), lazy, one array for each token in order of output; whoever asked for them takes them out."""


def choose(
    logits: Any,
    tokens: Any,
    processors: Sequence[LogitsProcessor],
    rows: Rows | None = None,
    sampling: Sampling | None = None,
    position: int = 0,
) -> Any:
    """The token (1,) that follows `tokens` (n,), from its logits (1, vocab), lazily; the lowest id on ties.

    rows: where the logits that it is chosen from are kept, if anywhere. sampling: draws the token at `position` of the
    output; None: the argmax.
    """
    import mlx.core as mx

    logits = process(logits, tokens, processors, rows)
    return mx.argmax(logits, axis=-1) if sampling is None else sampling.choose(logits, position)


def process(logits: Any, tokens: Any, processors: Sequence[LogitsProcessor], rows: Rows | None = None) -> Any:
    """The logits (1, vocab) to choose from, after all processors; kept in `rows`, if anywhere."""
    for processor in processors:
        logits = processor(tokens, logits)
    if rows is not None:
        rows.append(logits)
    return logits
