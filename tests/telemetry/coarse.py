"""Records of coarse-to-fine generations for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from telemetry.ncm_records import LevelRecord, NcmComparison, NcmEnd, NcmRecord
from telemetry.records import Record


def ncm(generation_id: str, **changes: Any) -> NcmRecord:
    """The beginning of a generation."""
    fields = {
        "generation_id": generation_id,
        "arm": "cache",
        "cache": True,
        "exit": "none",
        "reused_prefix": False,
        "timing": "attributed",
        "config": "tiny",
        "config_digest": "0",
        "policy": "block_causal",
        "prefix_attention": "all",
        "level_attention": "all",
        "dtype": "float32",
        "n_layers": 2,
        "n_heads": 2,
        "head_dim": 8,
        "prefix_length": 4,
        "lengths": [1, 3],
        "batch": 2,
        "seed": 1,
        "temperature": 0.5,
        "repeat": 0,
        "sequence": 0,
        "warm_up": False,
        "started_wall_ns": 1_700_000_000_000_000_000,
        "started_monotonic_ns": 5,
    }
    return NcmRecord(**{**fields, **changes})


def levels(generation_id: str, n: int) -> Iterator[LevelRecord]:
    """The first `n` levels of a generation."""
    for level in range(n):
        yield LevelRecord(
            generation_id=generation_id,
            level=level,
            start_ns=1000 * level,
            t_level_ns=900,
            length=1 + 2 * level,
            batch=2,
            forwards=1,
            prefix_processed=0 if level else 8,
            level_processed=2 + 4 * level,
            prefix_reused=8 if level else 0,
            pairs_allowed=10,
            pairs_computed=20,
            kv_bytes=64,
            syncs=1,
            n_exited=0,
            forward_ns=500,
            sample_ns=200,
            reconstruct_ns=100,
            decode_ns=0,
            check_ns=0,
            forward_basis="barrier",
            sample_basis="barrier",
            reconstruct_basis="barrier",
        )


def ncm_end(generation_id: str, **changes: Any) -> NcmEnd:
    """The end of a generation."""
    fields = {
        "generation_id": generation_id,
        "finish_reason": "complete",
        "n_levels": 2,
        "total_ns": 2500,
        "levels_ns": 1800,
        "finish_ns": 600,
        "peak_memory_bytes": 10,
        "kv_bytes": 64,
        "codes_digest": "f",
    }
    return NcmEnd(**{**fields, **changes})


def ncm_comparison(generation_id: str, **changes: Any) -> NcmComparison:
    """The comparison of a generation's codes with the uncached one's."""
    return NcmComparison(**{"generation_id": generation_id, "pair_id": "uncached-1", "equal": True, **changes})


def whole_ncm(generation_id: str) -> list[Record]:
    """A generation of two levels."""
    ending = {"decode_ns": 400, "decode_basis": "host_wait", "check_ns": 150, "check_basis": "host"}
    return [ncm(generation_id), *levels(generation_id, 2), ncm_end(generation_id, **ending)]
