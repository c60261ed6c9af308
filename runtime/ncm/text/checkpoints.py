"""Checkpoints of text models: weights in half precision, the frequent tokens, and what is known of their making."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np

from runtime.device import barrier, read
from runtime.distillation.frequent_tokens import FrequentTokens
from runtime.ncm.checkpoints import CONFIG, SUFFIX
from runtime.ncm.config import parse_config
from runtime.ncm.identity import list_weights
from runtime.ncm.text.model import TextModel, init_text_model
from telemetry.errors import RoundscopeError, UsageError

FOLDER = Path(__file__).parent / "checkpoints"
SHIPPED = FOLDER / f"text-draft{SUFFIX}"
_IDS = "frequent_tokens"
_WIDTH = "vocab_size"


def read_text_model(path: Path) -> tuple[TextModel, dict[str, str]]:
    """The model in `path`, in evaluation mode and in its configuration's type, and everything its header says.

    Raises UsageError where there is no file, RoundscopeError where it is damaged or holds no text model.
    """
    if not path.is_file():
        raise UsageError(f"there is no checkpoint {path}: train one, see docs/ncm-drafter.md")
    try:
        loaded: Any = mx.load(str(path), return_metadata=True)
    except RuntimeError as error:
        raise RoundscopeError(f"{path} cannot be read as safetensors: {error}") from error
    weights, header = loaded
    if CONFIG not in header or _IDS not in weights or _WIDTH not in header:
        raise RoundscopeError(f"{path} holds no text model: configuration or frequent tokens are missing")
    tokens = FrequentTokens(read(weights.pop(_IDS))[0], int(header[_WIDTH]))
    config = parse_config(header[CONFIG].encode(), str(path))
    model = init_text_model(config, tokens)
    dtype = getattr(mx, config.dtype)
    try:
        model.load_weights([(name, weight.astype(dtype)) for name, weight in weights.items()])
    except ValueError as error:
        raise RoundscopeError(f"the weights in {path} do not fit its configuration: {error}") from error
    barrier(dict(list_weights(model)))
    model.trained = True
    return model, header


def save_text_model(model: TextModel, path: Path, header: Mapping[str, str]) -> None:
    """Write the weights of `model` to `path` as float16, with its configuration, tokens and `header` (texts)."""
    arrays = {name: weight.astype(mx.float16) for name, weight in list_weights(model)}
    arrays[_IDS] = mx.array(model.tokens.ids.astype(np.int32))
    config = msgspec.json.encode(model.config, order="sorted").decode()
    mx.save_safetensors(str(path), arrays, {**header, CONFIG: config, _WIDTH: str(model.tokens.vocab_size)})
