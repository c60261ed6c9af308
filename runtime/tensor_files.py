"""Files of named arrays with texts in their header, as safetensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from telemetry.errors import RoundscopeError

if TYPE_CHECKING:
    import mlx.core as mx


def read_tensors(path: Path, cure: str = "") -> tuple[dict[str, mx.array], dict[str, str]]:
    """The arrays in `path` and the texts in its header; RoundscopeError, ending with `cure`, if it is no such file."""
    import mlx.core as mx

    try:
        loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
    except RuntimeError as error:
        raise RoundscopeError(f"{path} cannot be read as safetensors: {error}{cure}") from error
    arrays, header = loaded
    return arrays, header


def write_whole(path: Path, write: Callable[[str], None]) -> None:
    """Let `write` make the file beside its place, then put it there: no reader and no crash sees half of it."""
    unfinished = path.with_name(f".{path.name}.unfinished.safetensors")
    write(str(unfinished))
    unfinished.replace(path)
