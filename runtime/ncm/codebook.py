"""The codebook's own learning: moving averages of what its codes stood for, and new places for codes nobody uses.

As in VQ-VAE-2 (arXiv 1906.00446, appendix) with the replacement of Jukebox (arXiv 2005.00341, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from runtime.ncm.codec import Quantised


@dataclass(frozen=True)
class CodebookState:
    """Moving averages: how many vectors each code stood for a step, counts (V,), and their sum, sums (V, code_dim)."""

    counts: mx.array
    sums: mx.array


def start_codebook(codebook: mx.array) -> CodebookState:
    """The state of a codebook (V, code_dim) that was used evenly so far, once a step."""
    return CodebookState(mx.ones((codebook.shape[0],)), mx.array(codebook))


def update_codebook(
    state: CodebookState, quantised: Quantised, key: mx.array, *, decay: float = 0.99, dead_below: float = 0.05
) -> tuple[mx.array, CodebookState]:
    """The codebook (V, code_dim) and state after a step that quantised so.

    Codes that stood for fewer than `dead_below` vectors a step, on average, move to vectors of this step drawn by
    `key`, and count as used once.
    """
    size, dim = state.sums.shape
    vectors = mx.concatenate([pooled.reshape(-1, dim) for pooled in quantised.pooled])
    codes = mx.concatenate([codes.reshape(-1) for codes in quantised.codes])
    used = mx.zeros((size,)).at[codes].add(1.0)
    total = mx.zeros((size, dim)).at[codes].add(vectors)
    counts = decay * state.counts + (1 - decay) * used
    sums = decay * state.sums + (1 - decay) * total
    dead = counts < dead_below
    drawn = vectors[mx.random.randint(0, vectors.shape[0], (size,), key=key)]
    counts = mx.where(dead, 1.0, counts)
    sums = mx.where(dead[:, None], drawn, sums)
    return sums / counts[:, None], CodebookState(counts, sums)
