"""Small text models: random ones over part of a small target's vocabulary."""

from __future__ import annotations

from typing import Any

import msgspec

from runtime.distillation import FrequentTokens
from runtime.ncm.config import NcmConfig
from runtime.ncm.text.model import TextModel, fit_config, init_text_model
from tests.runtime.ncm.tiny import TINY

SHAPE = msgspec.structs.replace(TINY, name="tiny-text", prefix_length=4, lengths=(1, 2, 3))


def make_tokens(size: int = 6, vocab_size: int = 8) -> FrequentTokens:
    """From the top down, so that ids of subset and target differ; some of the target's are left out."""
    return FrequentTokens([vocab_size - 1 - i for i in range(size)], vocab_size)


def make_text_model(
    seed: int = 0, tokens: FrequentTokens | None = None, sharp: float = 1.0, **changes: Any
) -> TextModel:
    """A random model; `sharp` multiplies the weights that bring the reconstruction in and make tokens' logits."""
    tokens = make_tokens() if tokens is None else tokens
    config: NcmConfig = msgspec.structs.replace(SHAPE, **changes)
    model = init_text_model(fit_config(tokens, config), tokens, seed)
    model.generator.enter.weight = model.generator.enter.weight * sharp
    model.decoder.weight = model.decoder.weight * sharp
    return model
