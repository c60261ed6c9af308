"""The prefix cache: keys and values of the prefix in every layer, for the levels of one generation.

It is filled inside the first level's forward, which makes them anyway. Prefix queries read nothing but the prefix, so
the same keys and values serve every later level; what belongs to a level is overwritten by the next one's. Keys are
kept normalised and rotated, by layer application (tied layers share weights, not states).

A cache is good for the model, weights, conditioning, policy, positions, dtype, device and evaluation mode it was filled
with, and says so by raising StalePrefix; it is emptied when its generation ends. A kept prefix may serve another
generation with the identical complete conditioning, after the same checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import mlx.core as mx

from runtime.device import barrier, view_bytes
from runtime.ncm.conditioning import Conditioning, digest_tokens, list_tokens
from runtime.ncm.identity import WeightsState
from telemetry.errors import RoundscopeError, Unsupported

if TYPE_CHECKING:
    from runtime.ncm.config import NcmConfig
    from runtime.ncm.model import NcmModel

_OTHER_CONFIG = "the configuration (policy, positions or dtype) is another"
_OTHER_DEVICE = "the device is another"


class StalePrefix(RoundscopeError):
    """A prefix cache was about to serve what it was not filled for."""


@dataclass(frozen=True)
class PrefixIdentity:
    """What keys and values of a prefix depend on. The configuration has policy, positions and dtype in it."""

    config: NcmConfig
    weights: WeightsState
    conditioning: str
    device: mx.Device

    @classmethod
    def of(cls, model: NcmModel, conditioning: list[list[int]]) -> PrefixIdentity:
        """The identity of `model` as it is now, here, and the complete `conditioning` (B, P)."""
        return cls(model.config, model.state(), digest_tokens(conditioning), mx.default_device())

    def describe_change(self, model: NcmModel) -> str | None:
        """What is no longer as it was, as far as held references tell; None: nothing."""
        if model.config is not self.config and model.config != self.config:
            return _OTHER_CONFIG
        if mx.default_device() != self.device:
            return _OTHER_DEVICE
        if not self.weights.is_evaluating():
            return "the model is in training mode"
        if not self.weights.holds_references():
            return "the weights are others"
        return None


@dataclass(frozen=True)
class KeptPrefix:
    """A prefix's keys and values (B, H, P, D) by layer, kept for generations with the identical complete prefix."""

    identity: PrefixIdentity
    keys: list[mx.array]
    values: list[mx.array]
    contents: str

    @property
    def batch(self) -> int:
        """How many samples' prefix this is."""
        return self.keys[0].shape[0]


class PrefixCache:
    """Keys and values of one generation: the prefix's positions, and room for the current level's after them."""

    def __init__(self, model: NcmModel, conditioning: list[list[int]], reused: KeptPrefix | None = None) -> None:
        self.identity = PrefixIdentity.of(model, conditioning)
        self._model = model
        self._prefix = model.config.prefix_length
        self._room = self._prefix + max(model.config.lengths)
        self._batch = len(conditioning)
        self._keys: list[mx.array] = []
        self._values: list[mx.array] = []
        self._first = model.config.lengths[0]
        self._held: tuple[list[int], list[int]] = ([], [])
        self._copies: tuple[list[mx.array], list[mx.array]] | None = None
        self._closed = False
        if reused is not None:
            _check_reuse(reused, self.identity, model, self._batch)
            self._keys = [self._make_room(keys) for keys in reused.keys]
            self._values = [self._make_room(values) for values in reused.values]
            self._held = ([keys.shape[2] for keys in reused.keys], [values.shape[2] for values in reused.values])

    @property
    def is_filled(self) -> bool:
        """Whether every layer has the prefix's keys and values."""
        return len(self._keys) == self._model.config.n_layers

    @property
    def arrays(self) -> list[mx.array]:
        """All keys and values held, with the room for a level's."""
        return [*self._keys, *self._values]

    @property
    def nbytes(self) -> int:
        """Bytes of the prefix's keys and values, from the shapes they came in; the room for a level is not in it."""
        return sum(map(_count_bytes, self.arrays, (*self._held[0], *self._held[1])))

    def extend(self, layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Put the keys and values (B, H, L, D) just made after the prefix's, or the prefix's with them if it is still
        empty; return all (B, H, P + l, D).
        """
        if layer == len(self._keys):
            start = 0
            self._keys.append(self._make_room(keys))
            self._values.append(self._make_room(values))
            for held, came in zip(self._held, (keys, values), strict=True):
                held.append(came.shape[2] - self._first)
        else:
            start = self._prefix
            self._keys[layer][:, :, start : start + keys.shape[2]] = keys
            self._values[layer][:, :, start : start + keys.shape[2]] = values
        end = start + keys.shape[2]
        return self._keys[layer][:, :, :end], self._values[layer][:, :, :end]

    def check(self, model: NcmModel, batch: int) -> None:
        """Raise StalePrefix unless this cache may serve `model` and a batch of that many samples now: by references."""
        if self._closed:
            raise StalePrefix("this prefix cache ended with its generation: let `generate` make a new one")
        if model is not self._model:
            raise _refuse("the model is another")
        if batch != self._batch:
            raise _refuse(f"the batch has {batch} samples, not {self._batch}")
        change = self.identity.describe_change(model)
        if change is not None:
            raise _refuse(change)

    def check_contents(self, conditioning: Conditioning) -> None:
        """Raise StalePrefix unless weights and complete conditioning have the contents they had at filling."""
        if not self.identity.weights.holds_contents():
            raise _refuse("the weights have changed in place")
        if digest_tokens(list_tokens(conditioning)) != self.identity.conditioning:
            raise _refuse("the conditioning has changed")

    def compact(self, rows: mx.array, n_rows: int) -> None:
        """Go on with these samples (indices into the batch) only."""
        self._keys = [keys[rows] for keys in self._keys]
        self._values = [values[rows] for values in self._values]
        self._batch = n_rows

    def copy_prefix(self) -> None:
        """Copy the prefix's keys and values as they are now, for `keep`; launched and not waited for."""
        self._copies = self._copy()
        mx.async_eval(*self._copies)

    def keep(self) -> KeptPrefix:
        """The prefix's keys and values for later generations, as copied before, else as they are now, with a digest."""
        keys, values = self._copies or self._copy()
        return KeptPrefix(self.identity, keys, values, _digest_arrays([*keys, *values]))

    def close(self) -> None:
        """Drop everything; the cache serves nobody any more."""
        self._keys, self._values, self._held, self._copies = [], [], ([], []), None
        self._closed = True

    def _copy(self) -> tuple[list[mx.array], list[mx.array]]:
        keys = [mx.contiguous(held[:, :, : self._prefix]) for held in self._keys]
        values = [mx.contiguous(held[:, :, : self._prefix]) for held in self._values]
        return keys, values

    def _make_room(self, held: mx.array) -> mx.array:
        batch, heads, length, dim = held.shape
        room = mx.zeros((batch, heads, self._room, dim), held.dtype)
        room[:, :, :length] = held
        return room


def _count_bytes(room: mx.array, positions: int) -> int:
    """Bytes of the first `positions` of keys or values (B, H, L, D)."""
    batch, heads, _, dim = room.shape
    return int(batch * heads * positions * dim * room.itemsize)


def _check_reuse(kept: KeptPrefix, wanted: PrefixIdentity, model: NcmModel, batch: int) -> None:
    if kept.identity.conditioning != wanted.conditioning:
        raise Unsupported(
            "prefix: it was kept for another conditioning, and no part of it can be reused: the prefix attends to "
            "itself in both directions, so one changed position changes the states of all. Leave prefix out"
        )
    change = wanted.describe_change(model)
    if change is None and kept.identity.config != wanted.config:
        change = _OTHER_CONFIG
    if change is None and kept.identity.device != wanted.device:
        change = _OTHER_DEVICE
    if change is None and kept.batch != batch:
        change = f"it holds {kept.batch} of {batch} samples"
    if change is None and kept.identity.weights.digest != wanted.weights.digest:
        change = "the weights are others"
    if change is None and _digest_arrays([*kept.keys, *kept.values]) != kept.contents:
        change = "its keys and values have changed"
    if change is not None:
        raise _refuse(change)


def _refuse(change: str) -> StalePrefix:
    return StalePrefix(f"the prefix cache was filled under other conditions: {change}. Generate anew, without it")


def _digest_arrays(arrays: list[mx.array]) -> str:
    barrier(arrays)
    digest = sha256()
    for array in arrays:
        digest.update(view_bytes(array))
    return digest.hexdigest()
