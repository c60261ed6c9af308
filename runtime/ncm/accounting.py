"""What a coarse-to-fine generation has to process, in exact integers: the formulas, from a configuration alone.

Repeated: every level's forward processes the whole prefix again. Once: the first level's forward processes it, later
levels read its kept keys and values. The policy is `block_diagonal`: prefix queries read the prefix, level queries the
prefix and their own level. What ran is counted from shapes while it runs (table `levels`); the query `ncm_cache` sets
both beside each other. Counts are of work, and say nothing about time.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.ncm.config import NcmConfig
from telemetry.errors import Unsupported

BYTES_PER_VALUE = {"float32": 4, "float16": 2, "bfloat16": 2}
UNIT_CELLS = 9
"""Cells in a row, column or box of a 9 x 9 grid."""


@dataclass(frozen=True)
class Work:
    """Work of one sample in each layer: positions processed, and query/key pairs that the masks allow a head."""

    positions: int
    pairs: int


def count_repeated(config: NcmConfig) -> Work:
    """The work where each of the K levels processes the prefix: K P + sum l[k] positions."""
    return _count(config, prefixes=config.n_levels)


def count_once(config: NcmConfig) -> Work:
    """The work where the prefix is processed once: P + sum l[k] positions."""
    return _count(config, prefixes=1)


def _count(config: NcmConfig, prefixes: int) -> Work:
    if config.policy != "block_diagonal":
        raise Unsupported(
            f"configuration {config.name}: work is counted for policy block_diagonal, not {config.policy}"
        )
    positions = prefixes * config.prefix_length + sum(config.lengths)
    levels = sum(count_prefix_reads(config, length) + length * length for length in config.lengths)
    return Work(positions, prefixes * _count_prefix_pairs(config) + levels)


def _count_prefix_pairs(config: NcmConfig) -> int:
    if config.prefix_attention == "units":
        return config.prefix_length * UNIT_CELLS
    return config.prefix_length**2


def count_prefix_reads(config: NcmConfig, length: int) -> int:
    """Pairs of a level of `length` positions with prefix positions: all, or the cells that each position covers."""
    if config.level_attention == "all":
        return length * config.prefix_length
    n = config.prefix_length
    return sum(-(-(i + 1) * n // length) - i * n // length for i in range(length))


def count_payload_bytes(config: NcmConfig, batch: int = 1) -> int:
    """Bytes of the prefix's keys and values over all layers; no weights, masks, temporaries or spare capacity."""
    return 2 * config.n_layers * batch * config.prefix_length * config.width * BYTES_PER_VALUE[config.dtype]


def count_multiply_adds(config: NcmConfig, work: Work) -> int:
    """Multiply-adds of the layers for one sample: projections and feed-forward by positions, attention by pairs.

    Norms, code logits, codec and sampling are left out: they are the same work whether the prefix is repeated or not.
    """
    per_position = 4 * config.width**2 + 2 * config.width * config.ffn_width
    return config.n_layers * (work.positions * per_position + 2 * work.pairs * config.width)


def bound_speedup(config: NcmConfig) -> float:
    """Uncached over cached time if time were proportional to multiply-adds."""
    return count_multiply_adds(config, count_repeated(config)) / count_multiply_adds(config, count_once(config))
