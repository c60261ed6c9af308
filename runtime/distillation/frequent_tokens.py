"""The part of a target's vocabulary that a small drafter speaks: its most frequent tokens, in a fixed order.

A drafter's probability of every other token is zero. On its input all of them look alike: one more id stands for them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from runtime.distillation.examples import Example
from telemetry.errors import UsageError

if TYPE_CHECKING:
    import mlx.core as mx

Ids = NDArray[np.int32]


class FrequentTokens:
    """`ids` (size,): the target's ids by subset id; `other` = size: what every other id becomes on input.

    vocab_size: the width of the target's logits. Raises UsageError for ids that are no distinct ids below it.
    """

    def __init__(self, ids: Sequence[int] | Ids, vocab_size: int) -> None:
        self.ids: Ids = np.asarray(ids, np.int32)
        self.vocab_size = vocab_size
        if self.ids.ndim != 1 or not self.ids.size or len(set(self.ids.tolist())) != self.ids.size:
            raise UsageError("a frequent-token subset is a non-empty list of distinct ids")
        if self.ids.min() < 0 or self.ids.max() >= vocab_size:
            raise UsageError(f"a frequent-token subset holds ids from 0 to {vocab_size - 1}")
        self.size = self.other = int(self.ids.size)
        self.table: Ids = np.full(vocab_size, self.other, np.int32)
        self.table[self.ids] = np.arange(self.size, dtype=np.int32)

    @classmethod
    def choose(
        cls, examples: Iterable[Example], size: int, vocab_size: int, always: Iterable[int] = ()
    ) -> FrequentTokens:
        """The `size` most frequent ids of the outputs, ties by id; `always` (the ends of a text) come first.

        Fewer where the outputs hold fewer.
        """
        counts: Counter[int] = Counter()
        for example in examples:
            counts.update(example.output)
        first = sorted(set(always))
        rest = sorted((token for token in counts if token not in first), key=lambda token: (-counts[token], token))
        return cls([*first, *rest][:size], vocab_size)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the ids in their order and of the target's width."""
        return hashlib.sha256(np.append(self.ids, np.int32(self.vocab_size)).astype("<i4").tobytes()).hexdigest()

    def to_subset(self, ids: Sequence[int] | Ids) -> Ids:
        """Subset ids of the target's `ids`, any shape; `other` for those outside the subset or beyond the width."""
        given = np.asarray(ids, np.int64)
        known = (given >= 0) & (given < self.vocab_size)
        return np.where(known, self.table[np.where(known, given, 0)], np.int32(self.other)).astype(np.int32)

    def to_target(self, ids: Sequence[int] | Ids) -> Ids:
        """The target's ids of subset `ids`, any shape. IndexError for `other`, which stands for no one token."""
        return self.ids[np.asarray(ids, np.int64)]

    def coverage(self, tokens: Iterable[int]) -> float:
        """The share of `tokens` in the subset."""
        found = self.to_subset(list(tokens))
        return float(np.mean(found != self.other)) if found.size else 0.0

    def widen(self, q: mx.array) -> mx.array:
        """q (n, vocab_size) over the target's ids from q (n, size) over the subset: zero elsewhere."""
        import mlx.core as mx

        wide = mx.zeros((q.shape[0], self.vocab_size), q.dtype)
        wide[:, mx.array(self.ids)] = q
        return wide
