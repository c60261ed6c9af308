"""Which target, and which tokenizer: what data and checkpoints are tied to."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from runtime.targets import MlxTarget


def digest_parameters(target: MlxTarget) -> str:
    """SHA-256 (hex) over the names, types, shapes and contents of the target's weights as they are in memory."""
    from runtime.ncm.identity import WeightsState

    return WeightsState(target.model).digest


def digest_tokenizer(target: MlxTarget) -> str:
    """SHA-256 (hex) over the tokenizer's strings by id and its chat template; of nothing where there is none."""
    if target.tokenizer is None:
        return sha256(b"").hexdigest()
    tokens = sorted((index, token) for token, index in target.tokenizer.get_vocab().items())
    template = getattr(target.tokenizer, "chat_template", None)
    return sha256(msgspec.json.encode([tokens, template if isinstance(template, str) else None])).hexdigest()
