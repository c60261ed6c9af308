"""Blocks of distilled outputs: what a drafter has to say at every place of a text that its target wrote.

Histories are the target's own: the prompt as it was given and the output up to the place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from runtime.distillation.labels import Labels, label_hard
from telemetry.errors import UsageError

if TYPE_CHECKING:
    from runtime.distillation import Example, FrequentTokens
    from runtime.ncm.config import NcmConfig

Ids = NDArray[np.int32]
FILLING = 0
"""Stands in blocks for tokens that no block can say and behind the end of a text; its weight is nothing."""


def join_prompts(examples: Sequence[Example]) -> list[Example]:
    """The same texts with their prompts, but for a first token, as outputs too: for what learns any text."""
    return [
        msgspec.structs.replace(each, prompt=each.prompt[:1], output=[*each.prompt[1:], *each.output])
        for each in examples
    ]


@dataclass(frozen=True)
class Batch:
    """Prefixes (n, P) and blocks (n, N) in subset ids. known: where a block has a token of the text (n, N); sayable:
    where that token is in the subset too. rows (n,): of `Blocks`, which has their labels.
    """

    windows: Ids
    blocks: Ids
    known: NDArray[np.bool_]
    sayable: NDArray[np.bool_]
    rows: NDArray[np.int64]


class Blocks:
    """A block for every token of the outputs of `examples`; `starts` (n,) are their places in one long text,
    `other` stands for tokens that are not frequent."""

    def __init__(
        self,
        examples: Sequence[Example],
        tokens: FrequentTokens,
        config: NcmConfig,
        labels: Sequence[Labels] | None = None,
    ) -> None:
        """labels: of each example's last tokens; any other token is known alone.

        UsageError where there is no output.
        """
        self._prefix, self._length, self.other = config.prefix_length, config.output_length, tokens.other
        parts: list[Ids] = []
        starts, ends, place = [], [], 0
        for example in examples:
            head = tokens.to_subset(example.prompt[-self._prefix :])
            padding = np.full(self._prefix - len(head), tokens.size + 1, np.int32)
            parts += [padding, head, tokens.to_subset(example.output)]
            first = place + self._prefix
            place = first + len(example.output)
            starts.append(np.arange(first, place))
            ends.append(np.full(len(example.output), place))
        if not place:
            raise UsageError("there is no output to make blocks of: distil some first")
        self.starts, self._ends = np.concatenate(starts), np.concatenate(ends)
        self._text = np.concatenate([*parts, np.full(self._length, self.other, np.int32)])
        self.is_greedy = np.concatenate([np.full(len(each.output), each.temperature == 0) for each in examples])
        labels = [label_hard(()) for _ in examples] if labels is None else labels
        self._labels = self._place_labels([held.limit(tokens) for held in labels], [each[-1] + 1 for each in starts])

    def _place_labels(self, labels: Sequence[Labels], ends: Sequence[int]) -> Labels:
        """For every place of the text: those of an example end where it does."""
        width = labels[0].ids.shape[1]
        ids = np.zeros((len(self._text), width), np.int32)
        p = np.zeros((len(self._text), width), np.float32)
        sayable = self._text < self.other
        ids[sayable, 0], p[sayable, 0] = self._text[sayable], 1
        for held, end in zip(labels, ends, strict=True):
            rows = slice(end - len(held), end)
            ids[rows], p[rows] = held.ids, held.p
        return Labels(ids, p)

    def __len__(self) -> int:
        return len(self.starts)

    def count_left(self, row: int) -> int:
        """Tokens of its text from this row's place on."""
        return int(self._ends[row] - self.starts[row])

    def take(self, rows: NDArray[np.int64] | slice) -> Batch:
        """The blocks of these rows."""
        starts, ends = self.starts[rows][:, None], self._ends[rows][:, None]
        places = starts + np.arange(self._length)
        known = places < ends
        blocks = self._text[np.where(known, places, len(self._text) - 1)]
        sayable = known & (blocks != self.other)
        windows = self._text[starts - self._prefix + np.arange(self._prefix)]
        numbers = np.arange(len(self))[rows]
        return Batch(windows, np.where(sayable, blocks, np.int32(FILLING)), known, sayable, numbers)

    def take_labels(self, rows: NDArray[np.int64], first: int, n: int) -> Labels:
        """What is likely at `n` places of each row, from `first` places behind its block's beginning on: (rows, n, k).

        Nothing is, behind the end of a text.
        """
        places = self.starts[rows][:, None] + np.arange(first, first + n)
        known = places < self._ends[rows][:, None]
        places = np.where(known, places, len(self._text) - 1)
        return Labels(self._labels.ids[places], self._labels.p[places])


class BlockSource:
    """Random blocks to train on.

    greedy_share: of those out of greedy outputs; None: as many as there are. hidden: share of the prefixes' tokens that
    are replaced by "another token".
    """

    def __init__(self, blocks: Blocks, greedy_share: float | None = None, hidden: float = 0.0) -> None:
        self.blocks, self._hidden = blocks, hidden
        greedy, drawn = np.flatnonzero(blocks.is_greedy), np.flatnonzero(~blocks.is_greedy)
        self._kinds = (greedy, drawn)
        self._share = len(greedy) / len(blocks) if greedy_share is None else greedy_share
        for kind, share, rows in (("greedy", self._share, greedy), ("sampled", 1 - self._share, drawn)):
            if share and not len(rows):
                raise UsageError(f"there are no {kind} outputs to take a share of {share:.2f} from")

    def draw(self, n: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`n` prefixes (n, P) and blocks (n, N)."""
        batch = self.draw_batch(n, rng)
        return batch.windows.astype(np.int64), batch.blocks.astype(np.int64)

    def draw_batch(self, n: int, rng: np.random.Generator) -> Batch:
        """The same with what is known of the blocks."""
        n_greedy = int(rng.binomial(n, self._share))
        rows = [
            rng.choice(kind, count) for kind, count in zip(self._kinds, (n_greedy, n - n_greedy), strict=True) if count
        ]
        batch = self.blocks.take(np.concatenate(rows))
        if self._hidden:
            hides = (rng.random(batch.windows.shape) < self._hidden) & (batch.windows < self.blocks.other)
            batch = replace(batch, windows=np.where(hides, np.int32(self.blocks.other), batch.windows))
        return batch
