"""The way back after a round: trim every layer, or put a snapshot back where a layer's state cannot be trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.caches.kinds import ARRAYS, CacheError, describe_layer, describe_layers, flatten, kind_of
from telemetry.errors import Unsupported
from telemetry.records import Way


def require_undo(layers: Sequence[Any], owner: str) -> Undo:
    """The way back for `layers`; raises Unsupported, naming the layers, where there is none."""
    flat = flatten(layers)
    bad = [index for index, layer in enumerate(flat) if kind_of(layer) is None]
    if bad:
        raise Unsupported(
            f"{owner} has a cache that can be neither trimmed nor restored: {describe_layers(flat, bad)}. Speculation has "
            "to take rejected tokens back out of it. Use ordinary decoding (`runtime.decode`), or another model."
        )
    return Undo(layers)


class Undo:
    """Takes positions back out of the layers of one cache.

    way: `trim`, or `snapshot` if any layer needs one. Layers may be replaced in the list (quantised, for example), so the
    list itself is kept.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers
        self.way: Way = "snapshot" if any(_snapshots(layer) for layer in flatten(layers)) else "trim"
        self._saved: list[tuple[Any, list[Any]]] = []

    @property
    def snapshot_bytes(self) -> int:
        """Bytes that the snapshot keeps alive beyond what the cache itself holds, at most."""
        return sum(getattr(array, "nbytes", 0) for _, saved in self._saved for array in saved)

    def begin(self) -> None:
        """A round is about to feed the layers: keep what only a snapshot can bring back."""
        if self.way == "snapshot":
            self._saved = [(layer, ARRAYS.save(layer)) for layer in flatten(self._layers) if _snapshots(layer)]

    def can_trim(self, n: int) -> bool:
        """Whether the newest `n` positions can be taken out of every layer without a snapshot."""
        return all(kind is not None and kind.can_trim(layer, n) for layer, kind in _kinds(self._layers))

    def trim(self, n: int) -> None:
        """Take the newest `n` positions out of every layer.

        Raises CacheError if a layer cannot, or removes another number than asked: the layers then disagree about
        the history.
        """
        for index, (layer, kind) in enumerate(_kinds(self._layers)):
            _trim_layer(index, layer, kind, n)

    def back(self, grown: int) -> None:
        """Every layer grew by `grown` positions since `begin`: bring all of them back to where they were then."""
        saved = {id(layer): state for layer, state in self._saved}
        for index, (layer, kind) in enumerate(_kinds(self._layers)):
            if id(layer) in saved:
                ARRAYS.load(layer, saved[id(layer)])
            else:
                _trim_layer(index, layer, kind, grown)

    def restore(self, length: int) -> None:
        """After a failure in the middle of a round that began at `length`: bring every layer back, however far it got.

        Raises CacheError if one cannot be.
        """
        saved = {id(layer): state for layer, state in self._saved}
        for index, (layer, kind) in enumerate(_kinds(self._layers)):
            if id(layer) in saved:
                ARRAYS.load(layer, saved[id(layer)])
                continue
            offset = getattr(layer, "offset", None)
            if offset == length:
                continue
            if offset is None or offset < length:
                raise CacheError(f"layer {index} ({describe_layer(layer)}) cannot be brought back to {length} positions")
            _trim_layer(index, layer, kind, offset - length)


def _kinds(layers: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(layer, kind_of(layer)) for layer in flatten(layers)]


def _snapshots(layer: Any) -> bool:
    kind = kind_of(layer)
    return kind is not None and kind.snapshots


def _trim_layer(index: int, layer: Any, kind: Any, n: int) -> None:
    if kind is None or not kind.can_trim(layer, n):
        raise CacheError(f"layer {index} ({describe_layer(layer)}) cannot give back {n} positions")
    removed = kind.trim(layer, n)
    if removed != n:
        raise CacheError(
            f"layer {index} ({describe_layer(layer)}) removed {removed} of {n} positions: the cache no longer matches the "
            "committed tokens. Start again with a fresh cache."
        )
