"""Conditioning as plain integers, whatever it came as: what is checked, embedded and hashed is the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

import mlx.core as mx

from runtime.device import read_rows
from telemetry.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from runtime.ncm.config import NcmConfig

Conditioning: TypeAlias = "Sequence[Sequence[int]] | NDArray[Any] | mx.array"
"""Rows of prefix tokens, (B, P)."""


def list_tokens(conditioning: Conditioning) -> list[list[int]]:
    """The tokens as ints, (B, P); an MLX array is read from the device. Raises UsageError for anything but integers."""
    rows: Any = read_rows(conditioning)[0] if isinstance(conditioning, mx.array) else conditioning
    try:
        if any(isinstance(row, mx.array) for row in rows):
            raise TypeError("its rows are MLX arrays of their own")
        return [[index(token) for token in row] for row in rows]
    except TypeError as error:
        raise UsageError(
            f"conditioning must be rows of integers, in lists or in one numpy or MLX array (B, P): {error}"
        ) from error


def check_conditioning(conditioning: Conditioning, config: NcmConfig) -> list[list[int]]:
    """The tokens as ints; raises UsageError where they do not fit the prefix of `config`."""
    length, vocab = config.prefix_length, config.prefix_vocab
    rows = list_tokens(conditioning)
    if not rows:
        raise UsageError("conditioning has no rows: give at least one sample")
    for number, row in enumerate(rows):
        if len(row) != length:
            raise UsageError(f"conditioning row {number} has {len(row)} tokens, and the prefix {length}")
        if not all(0 <= token < vocab for token in row):
            raise UsageError(f"conditioning row {number} has tokens outside 0 to {vocab - 1}")
    return rows


def digest_tokens(rows: list[list[int]]) -> str:
    """sha256 over rows of ids and where they end."""
    return sha256(repr(rows).encode()).hexdigest()
