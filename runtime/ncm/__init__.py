"""Next-concept models: coarse-to-fine generation from a fixed prefix, with a generation-local cache of the prefix.

    from runtime.ncm import generate, load_model

    output = generate(load_model("sudoku-demo"), [[0, 0, 7, ...]], exit="none")
    print(output.tokens[0])

Importing this package imports no MLX: what is named here is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.ncm.checkpoints import load_model, save_model
    from runtime.ncm.config import NcmConfig, load_config
    from runtime.ncm.generation import NcmOutput, generate
    from runtime.ncm.model import NcmModel, init_model

__all__ = [
    "NcmConfig",
    "NcmModel",
    "NcmOutput",
    "generate",
    "init_model",
    "load_config",
    "load_model",
    "save_model",
]

_HOMES = {
    "NcmConfig": "runtime.ncm.config",
    "NcmModel": "runtime.ncm.model",
    "NcmOutput": "runtime.ncm.generation",
    "generate": "runtime.ncm.generation",
    "init_model": "runtime.ncm.model",
    "load_config": "runtime.ncm.config",
    "load_model": "runtime.ncm.checkpoints",
    "save_model": "runtime.ncm.checkpoints",
}
_WITHOUT_MLX = ("runtime.ncm.config", "runtime.ncm.checkpoints")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    if home not in _WITHOUT_MLX:
        from runtime.backend import prepare

        prepare()
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
