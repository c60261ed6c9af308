"""A tiny configuration that solves Sudoku in form only, and plans of it."""

from __future__ import annotations

from typing import Any

from runtime.ncm.config import NcmConfig
from runtime.ncm.experiment.plan import Plan, Request, make_plan
from runtime.ncm.experiment.samples import Samples, make_samples

TINY: dict[str, Any] = {
    "name": "tiny",
    "prefix_length": 81,
    "lengths": (1, 9, 81),
    "prefix_vocab": 10,
    "vocab": 10,
    "width": 12,
    "n_layers": 2,
    "n_blocks": 1,
    "n_heads": 3,
    "ffn_width": 12,
    "rotary_dims": 0,
    "codebook_size": 8,
    "code_dim": 4,
    "codec_width": 8,
}


def make_config(**changes: Any) -> NcmConfig:
    """The tiny configuration, changed."""
    return NcmConfig(**TINY | changes)


def make_request(**changes: Any) -> Request:
    """All four arms on batches of two."""
    fields: dict[str, Any] = {
        "cache": None,
        "exit": None,
        "batch": 2,
        "repeats": 1,
        "temperature": 0.0,
        "timing": "fused",
        "seed": 0,
    }
    return Request(**fields | changes)


def plan_run(
    n_samples: int = 5, config: NcmConfig | None = None, samples: Samples | None = None, **changes: Any
) -> Plan:
    """The plan of a run over made samples."""
    config = make_config() if config is None else config
    return make_plan(make_request(**changes), config, samples or make_samples(config, n_samples, 0))
