"""Checkpoints of text models: weights in half precision, the frequent tokens, and what is known of their making."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np

from runtime.device import barrier, read
from runtime.distillation.frequent_tokens import FrequentTokens
from runtime.drafters.learned.checkpoints import IDS, TrainedFor
from runtime.ncm.checkpoints import CONFIG, SUFFIX
from runtime.ncm.config import parse_config
from runtime.ncm.identity import list_weights
from runtime.ncm.text.model import TextModel, init_text_model
from runtime.tensor_files import read_tensors, write_whole
from telemetry.errors import RoundscopeError, UsageError

FOLDER = Path(__file__).parent / "checkpoints"
SHIPPED = FOLDER / f"text-draft{SUFFIX}"
_TRAINED_FOR = "trained_for"


@dataclass(frozen=True)
class TextCheckpoint:
    """A checkpoint that was read. `header`: its texts by name."""

    model: TextModel
    trained_for: TrainedFor
    header: Mapping[str, str]


def find_text_checkpoint(given: str | Path | None = None) -> Path:
    """The file `given`, or the one that comes with the package; UsageError if there is none."""
    path = SHIPPED if given is None else Path(given)
    if not path.is_file():
        raise UsageError(
            f"there is no checkpoint {path}: `roundscope train-drafter ncm` makes one, which ncm:checkpoint=FILE takes"
        )
    return path


def read_text_model(path: Path) -> TextCheckpoint:
    """The model in `path`, in evaluation mode and in its configuration's type.

    Raises RoundscopeError where the file is damaged or holds no text model.
    """
    weights, header = read_tensors(path)
    try:
        config = parse_config(header[CONFIG].encode(), str(path))
        trained_for = msgspec.json.decode(header[_TRAINED_FOR], type=TrainedFor)
        tokens = FrequentTokens(read(weights.pop(IDS))[0], trained_for.vocab_size)
        model = init_text_model(config, tokens)
        model.load_weights([(name, weight.astype(getattr(mx, config.dtype))) for name, weight in weights.items()])
    except (KeyError, ValueError, msgspec.DecodeError, UsageError) as error:
        raise RoundscopeError(f"{path} is no checkpoint of `roundscope train-drafter ncm`: {error}") from error
    barrier(dict(list_weights(model)))
    model.trained = True
    return TextCheckpoint(model, trained_for, header)


def save_text_model(model: TextModel, path: Path, trained_for: TrainedFor, header: Mapping[str, Any]) -> None:
    """Write `model` in float16, whole or not at all; `header`: plain values, kept as JSON, texts as they are."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in header.items()}
    texts[CONFIG] = msgspec.json.encode(model.config, order="sorted").decode()
    texts[_TRAINED_FOR] = msgspec.json.encode(trained_for).decode()
    arrays = {name: weight.astype(mx.float16) for name, weight in list_weights(model)}
    arrays[IDS] = mx.array(model.tokens.ids.astype(np.int32))
    write_whole(path, lambda unfinished: mx.save_safetensors(unfinished, arrays, texts))
