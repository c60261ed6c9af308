"""Counts what a forward does, from the shapes of the arrays that it does it with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Work of forwards, over layers and samples; pairs are a head's.

    forwards: how many there were. prefix, level: positions processed. reused: prefix positions whose kept keys and
    values were read instead. allowed: query/key pairs that the masks allow. computed: those of the shapes that ran.
    """

    forwards: int = 0
    n_layers: int = 0
    prefix: int = 0
    level: int = 0
    reused: int = 0
    allowed: int = 0
    computed: int = 0

    def add_layer(self, batch: int, prefix: int, level: int, reused: int) -> None:
        """One layer processed so many positions of each of `batch` samples."""
        self.n_layers += 1
        self.prefix += batch * prefix
        self.level += batch * level
        self.reused += batch * reused

    def add_attention(self, queries: tuple[int, ...], keys: tuple[int, ...], hidden: int = 0) -> None:
        """Queries (B, H, ..., L, D) met keys (B, H, ..., S, D); a mask hid `hidden` pairs of each sample."""
        blocks = queries[0]
        for size in queries[2:-2]:
            blocks *= size
        computed = blocks * queries[-2] * keys[-2]
        self.computed += computed
        self.allowed += computed - queries[0] * hidden
