"""Checkpoints: a model's weights as safetensors, with its configuration and what is known of its making inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.backend import prepare
from runtime.device import barrier
from runtime.ncm.config import config_names, load_config, parse_config
from runtime.tensor_files import read_tensors
from telemetry.errors import RoundscopeError, UsageError

if TYPE_CHECKING:
    from runtime.ncm.model import NcmModel

FOLDER = Path(__file__).parent / "checkpoints"
SUFFIX = ".safetensors"
CONFIG = "config"


def load_model(name_or_path: str | Path, *, seed: int = 0) -> NcmModel:
    """The model of a checkpoint, in evaluation mode, by the file's path or by the name of one that comes with the
    package; a configuration of which none comes with it is given random weights by `seed` (`trained` says which).

    Raises UsageError where there is neither, RoundscopeError where the file is damaged or is no such checkpoint.
    """
    prepare()
    path = Path(name_or_path)
    if path.suffix == SUFFIX:
        return read_checkpoint(path)[0]
    shipped = FOLDER / f"{name_or_path}{SUFFIX}"
    if shipped.is_file():
        return read_checkpoint(shipped)[0]
    if path.suffix != ".json" and str(name_or_path) not in config_names():
        known = ", ".join(config_names())
        raise UsageError(f"no model {name_or_path}: take one of {known}, a checkpoint ({SUFFIX}) or a .json file")
    from runtime.ncm.model import init_model

    return init_model(load_config(name_or_path), seed)


def read_checkpoint(path: Path) -> tuple[NcmModel, dict[str, str]]:
    """The model in `path` and everything its header says; raises as `load_model` does."""
    from runtime.ncm.identity import list_weights
    from runtime.ncm.model import init_model

    if not path.is_file():
        raise UsageError(f"there is no checkpoint {path}")
    weights, header = read_tensors(path)
    if CONFIG not in header:
        raise RoundscopeError(f"{path} holds no configuration: it is not a checkpoint of `roundscope ncm train`")
    model = init_model(parse_config(header[CONFIG].encode(), str(path)))
    try:
        model.load_weights(list(weights.items()))
    except ValueError as error:
        raise RoundscopeError(f"the weights in {path} do not fit its configuration: {error}") from error
    barrier(dict(list_weights(model)))
    model.trained = True
    return model, header


def save_model(model: NcmModel, path: Path, header: Mapping[str, str]) -> None:
    """Write the weights of `model` to `path`, with its configuration and `header` (texts) in the file's header."""
    import mlx.core as mx
    import msgspec

    from runtime.ncm.identity import list_weights

    config = msgspec.json.encode(model.config, order="sorted").decode()
    mx.save_safetensors(str(path), dict(list_weights(model)), {**header, CONFIG: config})
