"""The header of a GGUF file (versions 2 and 3, little-endian): its metadata and what tensors it holds, of which type.

MLX does not tell the types apart once a file is loaded, and drops some tensors without a word, so they are read here
first. The format is ggml's `docs/gguf.md`.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from telemetry.errors import RoundscopeError

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_ALIGNMENT = 32

TYPE_NAMES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1"},
    **{10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K"},
    **{16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS"},
    **{24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0"},
    **{39: "MXFP4"},
}
"""ggml's tensor types by their number."""
BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q6_K": (256, 210),
}
"""Values and bytes of a block of each type that is read right."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its type's name, its shape as MLX has it (rows first), and where its data begins in the file."""

    type: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata by key, tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


def read_header(path: Path) -> Header:
    """The header of `path`. Raises RoundscopeError if it is no GGUF file of a version known here, or is cut short."""
    try:
        if not path.stat().st_size:
            raise _Damage("it is empty")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = _Reader(data).read_header(path)
            _check_length(path, header, len(data))
            return header
    except UnicodeDecodeError as error:
        raise _damaged(path, "it has a text that is not UTF-8") from error
    except (ValueError, TypeError, ZeroDivisionError, RecursionError) as error:
        reason = str(error) if isinstance(error, _Damage) else "it makes no sense"
        raise _damaged(path, reason) from error
    except OSError as error:
        raise RoundscopeError(f"{path} cannot be read: {error.strerror}") from error


class _Damage(ValueError):
    """Something in the header that cannot be; its text says what."""


def _damaged(path: Path, reason: str) -> RoundscopeError:
    return RoundscopeError(
        f"{path} is no GGUF file, or is damaged: its header cannot be read ({reason}); name another, or get it again"
    )


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def read_header(self, path: Path) -> Header:
        magic, version, n_tensors, n_keys = self._take("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise _Damage(f"it begins with {magic!r}, version {version}")
        metadata = {}
        for _ in range(n_keys):
            key = self._take_string()
            metadata[key] = self._take_value(self._take_one("I"))
        described = [self._take_tensor() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        start = -(-self._at // alignment) * alignment
        return Header(metadata, {name: Tensor(kind, shape, start + at) for name, kind, shape, at in described})

    def _take_tensor(self) -> tuple[str, str, tuple[int, ...], int]:
        name = self._take_string()
        shape = self._take(f"{self._take_one('I')}Q")
        kind, offset = self._take("IQ")
        return name, TYPE_NAMES.get(kind, f"type {kind}"), shape[::-1], offset

    def _take(self, layout: str) -> tuple[Any, ...]:
        end = self._at + struct.calcsize(f"<{layout}")
        if end > len(self._data):
            raise _Damage(f"it ends at byte {len(self._data)}, in the middle")
        values = struct.unpack_from(f"<{layout}", self._data, self._at)
        self._at = end
        return values

    def _take_one(self, layout: str) -> Any:
        return self._take(layout)[0]

    def _take_string(self) -> str:
        length = self._take_one("Q")
        if length > len(self._data) - self._at:
            raise _Damage(f"a string of {length} bytes at byte {self._at}")
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def _take_value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._take_string()
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise _Damage(f"a value of unknown type {kind} before byte {self._at}")
            return self._take_one(_SCALARS[kind])
        inner, count = self._take("IQ")
        if count > len(self._data) - self._at:
            raise _Damage(f"an array of {count} entries at byte {self._at}")
        if inner in _SCALARS:
            return list(self._take(f"{count}{_SCALARS[inner]}"))
        return [self._take_value(inner) for _ in range(count)]


def _check_length(path: Path, header: Header, length: int) -> None:
    for name, tensor in header.tensors.items():
        values, size = BLOCKS.get(tensor.type, (1, 0))
        end = tensor.offset + prod(tensor.shape) // values * size
        if end > length:
            raise RoundscopeError(f"{path} is cut short: {name} ends at byte {end}, the file at {length}; get it again")
