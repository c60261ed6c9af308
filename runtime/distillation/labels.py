"""Soft labels: what a target thought likely where it wrote a token, which says more than the one token it wrote.

`labels.bin` has a row for every output token, in the order of the examples: the `top` likeliest ids (little-endian
uint32) and then their probabilities (float16) at temperature 1 over the whole vocabulary, the likeliest first. What the
probabilities lack to one is the mass of all other ids. A target has them at hand when it writes: the likeliest are
found without sorting, since no group of ids can hold one of the k likeliest unless its own likeliest is among the
k likeliest of the groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.device import barrier
from telemetry.errors import RoundscopeError

if TYPE_CHECKING:
    import mlx.core as mx

    from runtime.distillation.examples import Example
    from runtime.distillation.frequent_tokens import FrequentTokens

LABELS = "labels.bin"
GROUP = 128
"""Ids whose likeliest is looked at first."""


@dataclass(frozen=True)
class Labels:
    """For each of n places ids (n, k) that are likely there, and their probabilities (n, k), the likeliest first."""

    ids: NDArray[np.int32]
    p: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    def heat(self, temperature: float) -> Labels:
        """The distributions at `temperature` instead of 1, the ids without a label left out."""
        # Below temperature 1 those weigh less than their mass: at 0.7, twelve labels with 0.9 of it keep about 0.99.
        scaled = self.p.astype(np.float64) ** (1 / temperature)
        return Labels(self.ids, (scaled / scaled.sum(axis=1, keepdims=True)).astype(np.float32))

    def limit(self, tokens: FrequentTokens) -> Labels:
        """The same in ids of the subset; the probability of an id outside it is zero, as is its id."""
        ids = tokens.to_subset(self.ids)
        sayable = ids != tokens.other
        return Labels(np.where(sayable, ids, np.int32(0)), np.where(sayable, self.p, np.float32(0)))


def label_hard(tokens: Sequence[int]) -> Labels:
    """Labels that know the tokens alone."""
    ids = np.asarray(tokens, np.int32)[:, None]
    return Labels(ids, np.ones(ids.shape, np.float32))


def row_type(top: int) -> np.dtype[np.void]:
    """A row of the file."""
    return np.dtype([("ids", "<u4", (top,)), ("p", "<f2", (top,))])


class LabelWriter:
    """Takes down the `top` likeliest ids of each row while a batch is decoded."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._rows: dict[tuple[int, int], list[bytes]] = {}

    def note(self, logits: mx.array, rows: Sequence[tuple[int, tuple[int, int]]]) -> None:
        """Keep what is likeliest by `logits` (B, vocab) in `rows`: each a place in the batch, and its answer."""
        barrier(logits)
        ids, p = find_likeliest(np.asarray(logits), self._top)
        packed = np.empty(len(ids), row_type(self._top))
        packed["ids"], packed["p"] = ids, p
        for place, answer in rows:
            self._rows.setdefault(answer, []).append(packed[place].tobytes())

    def take(self, answer: tuple[int, int]) -> bytes:
        """The rows of one answer, a row a token."""
        return b"".join(self._rows.pop(answer, []))


def find_likeliest(logits: NDArray[np.float32], top: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The ids (B, top) that are likeliest by `logits` (B, vocab) and their probabilities (B, top), falling.

    In NumPy: MLX's exp on a CPU would take a tenth of a decoding step.
    """
    n_rows, vocab = logits.shape
    found, ids = logits, np.broadcast_to(np.arange(vocab), logits.shape)
    n_groups = vocab // GROUP
    if vocab % GROUP == 0 and n_groups > top:
        # Group g has the ids g, g + n_groups and so on: so the likeliest of all groups are found in long rows.
        groups = logits.reshape(n_rows, GROUP, n_groups)
        best = np.argpartition(-groups.max(axis=1), top - 1, axis=-1)[:, None, :top]
        ids = (np.arange(GROUP)[:, None] * n_groups + best).reshape(n_rows, -1)
        found = np.take_along_axis(groups, best, axis=2).reshape(n_rows, -1)
    if found.shape[1] > top:
        places = np.argpartition(-found, top - 1, axis=-1)[:, :top]
        found, ids = np.take_along_axis(found, places, axis=-1), np.take_along_axis(ids, places, axis=-1)
    places = np.argsort(-found, axis=-1, kind="stable")
    found, ids = np.take_along_axis(found, places, axis=-1), np.take_along_axis(ids, places, axis=-1)
    highest = found[:, :1]
    total = np.exp(logits - highest).sum(axis=-1, keepdims=True)
    return ids, np.exp(found - highest) / total


def read_labels(folder: Path, examples: Sequence[Example], top: int) -> list[Labels]:
    """The labels of each of all `examples` in `folder`. Raises RoundscopeError where the file does not fit them."""
    path = folder / LABELS
    try:
        rows: NDArray[Any] = np.fromfile(path, row_type(top))
    except OSError as error:
        raise RoundscopeError(f"{path} cannot be read: {error.strerror}") from error
    n = sum(len(example.output) for example in examples)
    if len(rows) < n:
        raise RoundscopeError(f"{path} has {len(rows)} rows for {n} tokens: run `roundscope distill --resume`")
    ends = np.cumsum([len(example.output) for example in examples])
    parts = np.split(rows[:n], ends[:-1])
    return [Labels(part["ids"].astype(np.int32), part["p"].astype(np.float32)) for part in parts]
