"""What a cache layer can be brought back from, by its class: one entry for every cache class of mlx-lm.

A layer's own `is_trimmable` and `trim` do not promise enough. A rotating cache says yes until its window is full
and then overwrites what it would have to give back; a concatenating one forgets its offset but keeps the entries;
recurrent layers hold a state in which no position can be told from another. So each class has a kind here that does
it exactly, or says that it cannot. A class that is not listed is refused; one that is not mlx-lm's is taken at its
word and checked, unless it descends from one whose word is not enough.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

from telemetry.errors import RoundscopeError

MLX_LM_CACHES = "mlx_lm.models.cache"


class CacheError(RoundscopeError):
    """A cache does not hold what it must; nothing more can be generated with it."""


class Kind(Protocol):
    """How layers of one class are brought back."""

    def can_trim(self, layer: Any, n: int) -> bool:
        """Whether the newest `n` positions can be taken out exactly, in the state that the layer is in."""

    def trim(self, layer: Any, n: int) -> int:
        """Take them out; return how many positions that was."""


class Snapshotting(Kind, Protocol):
    """A kind whose layers can also be put back into an earlier state that was kept."""

    def can_undo_steps(self, layer: Any, n: int) -> bool:
        """Whether `n` positions, fed one by one from now on, could be trimmed again: no state need be kept for them."""

    def save(self, layer: Any) -> list[Any]:
        """The state as it is: handles of its own, so that assignments to the layer's arrays leave it alone."""

    def load(self, layer: Any, saved: Sequence[Any]) -> None:
        """Put a saved state back; it can be put back again."""


class Plain:
    """Entries by position, of which the newest can be forgotten: the layer's own `trim` is exact."""

    def can_trim(self, layer: Any, n: int) -> bool:
        """As far as there are entries."""
        return bool(layer.is_trimmable() and n <= layer.offset)

    def trim(self, layer: Any, n: int) -> int:
        """By the layer's own method, held to what it says and to what its offset says."""
        before = layer.offset
        removed = layer.trim(n)
        return int(removed if layer.offset == before - removed else before - layer.offset)


class Concatenating:
    """Entries are appended by concatenation: they have to be cut off with the offset."""

    def can_trim(self, layer: Any, n: int) -> bool:
        """As far as there are entries."""
        return bool(n <= layer.offset)

    def trim(self, layer: Any, n: int) -> int:
        """Cut keys and values."""
        length = layer.offset - n
        if layer.keys is not None:
            layer.keys, layer.values = layer.keys[..., :length, :], layer.values[..., :length, :]
        layer.offset = length
        return n


class Rotating:
    """A window of entries. A forward over several positions leaves them in order, and longer than the window by all
    but one of them: as many of the newest as that can be cut off again. A single step overwrites the oldest entry,
    for good.
    """

    def can_trim(self, layer: Any, n: int) -> bool:
        """Whether what is left still holds the whole window before the next position."""
        if n == 0:
            return True
        if layer.keys is None or n > layer.offset:
            return False
        held = min(layer.keys.shape[2], layer.offset)
        in_order = layer._idx >= held
        return bool(in_order and held - n >= min(layer.offset - n, layer.max_size - 1))

    def trim(self, layer: Any, n: int) -> int:
        """Cut keys and values; nothing has left a window that is not full yet, and the layer's own method does.

        Where a whole forward is taken back out of a full window, the place of the next entry stays allocated: the
        layer would otherwise try to grow by a negative number.
        """
        if n == 0:
            return 0
        if layer.offset == layer._idx <= layer.max_size:
            return int(layer.trim(n))
        end = layer._idx - n
        layer.offset -= n
        layer._idx = end
        end += end < min(layer.max_size, layer.offset)
        layer.keys, layer.values = layer.keys[..., :end, :], layer.values[..., :end, :]
        return n

    def can_undo_steps(self, layer: Any, n: int) -> bool:
        """As long as no entry is overwritten."""
        return bool(layer.offset == layer._idx and layer.offset + n <= layer.max_size)

    def save(self, layer: Any) -> list[Any]:
        """Keys, values and where the next entry goes."""
        return [copy.copy(layer.keys), copy.copy(layer.values), layer.offset, layer._idx]

    def load(self, layer: Any, saved: Sequence[Any]) -> None:
        """Put them back."""
        keys, values, layer.offset, layer._idx = saved
        layer.keys, layer.values = copy.copy(keys), copy.copy(values)


class Chunked:
    """Entries of the current chunk, older ones cut off in front; masks are by position, so some too many do no harm.

    The front is cut before each forward: after one over several positions the chunk that it began in is still held,
    after as many single steps it may not be.
    """

    def can_trim(self, layer: Any, n: int) -> bool:
        """Whether the chunk of the next position is still held from its beginning."""
        length = layer.offset - n
        return bool(0 <= length and layer.start_position <= length // layer.chunk_size * layer.chunk_size)

    def trim(self, layer: Any, n: int) -> int:
        """By the layer's own method."""
        return int(layer.trim(n))

    def can_undo_steps(self, layer: Any, n: int) -> bool:
        """As long as the front is not cut before the last of them."""
        return bool(layer.offset - layer.start_position + n - 1 <= layer.chunk_size)

    def save(self, layer: Any) -> list[Any]:
        """Keys, values and the positions of the last and the first of them."""
        return [copy.copy(layer.keys), copy.copy(layer.values), layer.offset, layer.start_position]

    def load(self, layer: Any, saved: Sequence[Any]) -> None:
        """Put them back."""
        keys, values, layer.offset, layer.start_position = saved
        layer.keys, layer.values = copy.copy(keys), copy.copy(values)


class Arrays:
    """A recurrent state: only a copy of an earlier one leads back to it."""

    def can_trim(self, layer: Any, n: int) -> bool:
        """Never, but by nothing."""
        return n == 0

    def trim(self, layer: Any, n: int) -> int:
        """Nothing."""
        return 0

    def can_undo_steps(self, layer: Any, n: int) -> bool:
        """Never, but none."""
        return n == 0

    def save(self, layer: Any) -> list[Any]:
        """The arrays, and what says which of them are padding."""
        return [copy.copy(value) for value in (*layer.cache, layer.left_padding, layer.lengths)]

    def load(self, layer: Any, saved: Sequence[Any]) -> None:
        """Put them back."""
        *arrays, left_padding, lengths = (copy.copy(value) for value in saved)
        layer.cache, layer.left_padding, layer.lengths = arrays, left_padding, lengths


PLAIN, CONCATENATING, ROTATING, CHUNKED, ARRAYS = Plain(), Concatenating(), Rotating(), Chunked(), Arrays()
KINDS: dict[str, Kind] = {
    "KVCache": PLAIN,
    "QuantizedKVCache": PLAIN,
    "ConcatenateKVCache": CONCATENATING,
    "RotatingKVCache": ROTATING,
    "ChunkedKVCache": CHUNKED,
    "ArraysCache": ARRAYS,
}
"""The cache classes of mlx-lm. `CacheList` stands for the caches in it (`flatten`)."""

REFUSED = {
    "BatchKVCache": "a batch of sequences, of which each would have to be trimmed by another number",
    "BatchRotatingKVCache": "a batch of sequences, of which each would have to be trimmed by another number",
}
"""Those that cannot be brought back, and why."""


def kind_of(layer: Any) -> Kind | None:
    """The kind of a layer; None if nothing is known that brings it back."""
    cls = type(layer)
    if cls.__module__ == MLX_LM_CACHES:
        kind = KINDS.get(cls.__name__)
        # One that keeps its first entries for good masks a block by place: later rows would miss some of those.
        return None if isinstance(kind, Rotating) and layer.keep else kind
    bases = (KINDS.get(base.__name__) for base in cls.__mro__ if base.__module__ == MLX_LM_CACHES)
    if any(kind not in (None, PLAIN) for kind in bases):
        return None  # what it has changed of a kind that its own word is not enough for is not known
    return PLAIN if hasattr(layer, "offset") and layer.is_trimmable() else None


def needs_snapshot(layer: Any, *, stepwise: bool) -> Snapshotting | None:
    """The kind that has to keep the layer's state before a round, if there is one; stepwise: fed one by one in it."""
    kind = kind_of(layer)
    if isinstance(kind, (Rotating, Chunked)):
        return kind if stepwise else None
    return kind if isinstance(kind, Arrays) else None


def flatten(layers: Sequence[Any]) -> list[Any]:
    """The layers with lists of caches taken apart."""
    flat: list[Any] = []
    for layer in layers:
        flat += flatten(layer.caches) if type(layer).__name__ == "CacheList" else [layer]
    return flat


def describe_layer(layer: Any) -> str:
    """A layer's class, and its window or chunk if it has one."""
    name = type(layer).__name__
    for attribute, word in (("max_size", "window"), ("chunk_size", "chunk")):
        size = getattr(layer, attribute, None)
        if size is not None:
            return f"{name}, {word} of {size}"
    return name


def describe_layers(layers: Sequence[Any], bad: Sequence[int]) -> str:
    """The layers of the indices `bad` by number and class, the first three of them."""
    shown = ", ".join(f"layer {index} ({describe_layer(layers[index])})" for index in bad[:3])
    return shown if len(bad) <= 3 else f"{shown} and {len(bad) - 3} more"
