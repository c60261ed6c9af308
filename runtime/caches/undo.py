"""The way back after a round: trim every layer, or put a snapshot back where a layer's state cannot be trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.caches.kinds import CacheError, describe_layer, describe_layers, flatten, kind_of, needs_snapshot
from telemetry.errors import Unsupported
from telemetry.fields import Way


def require_undo(layers: Sequence[Any], owner: str) -> None:
    """Raise Unsupported, naming the layers, unless rejected positions can be taken back out of every one of them."""
    flat = flatten(layers)
    bad = [index for index, layer in enumerate(flat) if kind_of(layer) is None]
    if bad:
        raise Unsupported(
            f"{owner} has a cache that can be neither trimmed nor restored: {describe_layers(flat, bad)}. "
            "Speculation has to take rejected tokens back out of it. Use ordinary decoding (`runtime.decode`)."
        )


class Undo:
    """Takes positions back out of the layers of one cache.

    layers: the cache's list, read anew each time, since its members may be replaced. stepwise: whether a round
    feeds them one position at a time (a drafter) and not all at once (verification). way: `trim`, or `snapshot`
    where any layer needs one, in the round that began last; before the first, in any.
    """

    def __init__(self, layers: Sequence[Any], *, stepwise: bool = False) -> None:
        self._layers = layers
        self._stepwise = stepwise
        self._saved: dict[int, tuple[Any, list[Any]]] = {}
        self._saved_at: int | None = None
        self._may_snapshot = bool(self._find_snapshots())
        self.way: Way = "snapshot" if self._may_snapshot else "trim"

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of the states kept now; only those that a round has replaced are memory of their own."""
        return sum(getattr(array, "nbytes", 0) for _, saved in self._saved.values() for array in saved)

    def begin(self, length: int, growth: int | None = None) -> None:
        """A round is about to feed the layers, which hold `length` positions: keep what only a snapshot brings back.

        growth: positions that it feeds at most; with it, nothing is kept for layers that can give back as many.
        """
        if not self._may_snapshot:
            return
        found = self._find_snapshots()
        if growth is not None:
            found = [(layer, kind) for layer, kind in found if not kind.can_undo_steps(layer, growth)]
        self._saved = {id(layer): (kind, kind.save(layer)) for layer, kind in found}
        self._saved_at = length
        self.way = "snapshot" if found else "trim"

    def end(self) -> None:
        """The round is whole: what was kept for it is let go."""
        self._saved = {}
        self._saved_at = None

    def can_trim(self, n: int) -> bool:
        """Whether the newest `n` positions can be taken out of every layer without a snapshot."""
        kinds = ((layer, kind_of(layer)) for layer in flatten(self._layers))
        return all(kind is not None and kind.can_trim(layer, n) for layer, kind in kinds)

    def can_back(self, grown: int) -> bool:
        """Whether `back` can bring every layer back to `begin`."""
        layers = [layer for layer in flatten(self._layers) if id(layer) not in self._saved]
        kinds = ((layer, kind_of(layer)) for layer in layers)
        return all(kind is not None and kind.can_trim(layer, grown) for layer, kind in kinds)

    def trim(self, n: int) -> None:
        """Take the newest `n` positions out of every layer.

        Raises CacheError if a layer cannot, or removes another number than asked: the layers then disagree about
        the history.
        """
        for index, layer in enumerate(flatten(self._layers)):
            _trim_layer(index, layer, n)

    def back(self, grown: int) -> None:
        """Every layer grew by `grown` positions since `begin`: bring all of them back to where they were then."""
        for index, layer in enumerate(flatten(self._layers)):
            if not self._load(layer):
                _trim_layer(index, layer, grown)

    def restore(self, length: int) -> None:
        """After a failure in a round that began at `length` positions: bring every layer back, however far it got.

        Raises CacheError if one cannot be; a snapshot of another length brings nothing back.
        """
        for index, layer in enumerate(flatten(self._layers)):
            offset = getattr(layer, "offset", None)
            if offset == length or (self._saved_at == length and self._load(layer)):
                continue
            if offset is None or offset < length:
                raise CacheError(
                    f"layer {index} ({describe_layer(layer)}) cannot be brought back to {length} positions"
                )
            _trim_layer(index, layer, offset - length)

    def _find_snapshots(self) -> list[tuple[Any, Any]]:
        kinds = ((layer, needs_snapshot(layer, stepwise=self._stepwise)) for layer in flatten(self._layers))
        return [(layer, kind) for layer, kind in kinds if kind is not None]

    def _load(self, layer: Any) -> bool:
        if id(layer) not in self._saved:
            return False
        kind, saved = self._saved[id(layer)]
        kind.load(layer, saved)
        return True


def _trim_layer(index: int, layer: Any, n: int) -> None:
    kind = kind_of(layer)
    if kind is None or not kind.can_trim(layer, n):
        raise CacheError(f"layer {index} ({describe_layer(layer)}) cannot give back {n} positions")
    removed = kind.trim(layer, n)
    if removed != n:
        raise CacheError(
            f"layer {index} ({describe_layer(layer)}) removed {removed} of {n} positions: the cache no longer matches "
            "the committed tokens. Start again with a fresh cache."
        )
