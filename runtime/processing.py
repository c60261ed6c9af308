"""How the next token is chosen from logits: the argmax, after logits processors if there are any.

A processor is called as mlx-lm calls it, `processor(tokens, logits)`, with the ids of the whole history, the prompt
and the token just fed included, and logits (1, vocab); it returns the logits to use. One that keeps a state (a
grammar) sees the same calls in speculation as in ordinary decoding: rows of a verified block are processed one by
one, and no further than the first mismatch or stop, so every call belongs to a token that is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

LogitsProcessor: TypeAlias = Callable[[Any, Any], Any]


def choose(logits: Any, tokens: Any, processors: Sequence[LogitsProcessor]) -> Any:
    """The token (1,) that follows `tokens` (n,), from its logits (1, vocab), lazily; the lowest id on ties."""
    import mlx.core as mx

    for processor in processors:
        logits = processor(tokens, logits)
    return mx.argmax(logits, axis=-1)
