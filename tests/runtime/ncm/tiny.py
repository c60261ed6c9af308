"""Small next-concept models for tests, and what their forwards gave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import msgspec
import pytest

from runtime.ncm.config import NcmConfig
from runtime.ncm.model import Generator, NcmModel, init_model

TINY = NcmConfig(
    name="tiny",
    prefix_length=5,
    lengths=(1, 2, 3, 5),
    prefix_vocab=7,
    vocab=6,
    width=16,
    n_layers=2,
    n_blocks=2,
    n_heads=2,
    ffn_width=24,
    rotary_dims=8,
    codebook_size=11,
    code_dim=4,
    codec_width=12,
)
GRID = msgspec.structs.replace(
    TINY,
    name="grid",
    prefix_length=81,
    lengths=(1, 4, 81),
    width=18,
    n_heads=3,
    n_layers=4,
    n_blocks=1,
    rotary_dims=2,
    cell_order="boxes",
    prefix_attention="units",
    level_attention="cells",
)


def tiny_model(seed: int = 0, base: NcmConfig = TINY, **changes: Any) -> NcmModel:
    """A random model of `base` with `changes`."""
    return init_model(msgspec.structs.replace(base, **changes), seed)


def draw_conditioning(config: NcmConfig, batch: int, seed: int = 0) -> list[list[int]]:
    """Seeded random prefixes, (batch, P)."""
    shape = (batch, config.prefix_length)
    drawn: Any = mx.random.randint(0, config.prefix_vocab, shape, key=mx.random.key(seed)).tolist()
    return list(drawn)


@contextmanager
def watch_forwards(patch: pytest.MonkeyPatch, spoil: Any = None) -> Iterator[list[mx.array]]:
    """The logits of every level's forward as they come; `spoil(level, store)` is called before each."""
    seen: list[mx.array] = []
    forward = Generator.forward_level

    def watched(
        self: Generator, level: int, inputs: Any, conditioning: Any, store: Any = None, tally: Any = None
    ) -> Any:
        if spoil is not None:
            spoil(level, store)
        seen.append(forward(self, level, inputs, conditioning, store, tally))
        return seen[-1]

    with patch.context() as patched:
        patched.setattr(Generator, "forward_level", watched)
        yield seen
