"""K/V caches the loop can trust: what they hold is known token by token, and every trim is checked.

`KeptCache.tokens` is the truth about a cache. Between rounds the target's cache holds the committed history
less its last token; after a finished generation it can be handed to the next one, which keeps the longest
common token prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.protocols import Target
from telemetry.errors import RoundscopeError, Unsupported, UsageError

MLX_LM_CACHES = "mlx_lm.models.cache"
PLAIN_CACHES = frozenset({"KVCache"})
"""Cache classes of mlx-lm whose `trim` gives back exactly the state before. (`is_trimmable` does not promise
that: a rotating cache says yes until its window is full, and a concatenating one forgets the offset but keeps
the entries.)"""


class CacheError(RoundscopeError):
    """A cache does not hold what it must; nothing more can be generated with it."""


def find_untrimmable(layers: Sequence[Any]) -> str | None:
    """Name the layers that cannot be trimmed exactly, or None if all can."""
    bad = [f"layer {index} ({_describe(layer)})" for index, layer in enumerate(layers) if not _is_plain(layer)]
    if not bad:
        return None
    shown = ", ".join(bad[:3])
    return shown if len(bad) <= 3 else f"{shown} and {len(bad) - 3} more"


def require_trimmable(layers: Sequence[Any], owner: str) -> None:
    """Raise Unsupported, naming the layers, unless rejected positions can be taken out of every one of them."""
    untrimmable = find_untrimmable(layers)
    if untrimmable is not None:
        raise Unsupported(
            f"{owner} has a cache that cannot be trimmed: {untrimmable}. Speculation has to take rejected tokens back "
            "out of it. Use ordinary decoding (`runtime.decode`), or a model with plain K/V caches."
        )


def _is_plain(layer: Any) -> bool:
    kind = type(layer)
    if kind.__module__ == MLX_LM_CACHES:
        return kind.__name__ in PLAIN_CACHES
    return bool(hasattr(layer, "offset") and layer.is_trimmable())


def _describe(layer: Any) -> str:
    window = getattr(layer, "max_size", None)
    name = type(layer).__name__
    return name if window is None else f"{name}, window of {window}"


def trim_layers(layers: Sequence[Any], n: int) -> None:
    """Take the newest `n` positions out of every layer.

    Raises CacheError if any layer removed another number than asked: the layers then disagree about the
    history.
    """
    for index, layer in enumerate(layers):
        before = layer.offset
        removed = layer.trim(n)
        if removed != n or layer.offset != before - n:
            raise CacheError(
                f"layer {index} ({_describe(layer)}) removed {removed} of {n} positions and went from {before} to "
                f"{layer.offset}: the cache no longer matches the committed tokens. Start again with a fresh cache."
            )


class KeptCache:
    """A target's cache together with the tokens it holds.

    target: whose cache it is. tokens: ids at positions 0 .. length - 1. layers: the target's own cache
    objects, which may run ahead of `tokens` while a round is open or a pipelined step is in flight.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.layers: list[Any] = target.make_cache()
        self.tokens: list[int] = []
        self.trimmable = find_untrimmable(self.layers) is None
        self.in_use = False
        self._fault: str | None = None

    @property
    def length(self) -> int:
        """Positions held, as far as they are committed."""
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of K/V allocated."""
        return sum(int(getattr(layer, "nbytes", 0)) for layer in self.layers)

    def acquire(self, target: Target) -> None:
        """Reserve the cache for one generation of `target`; UsageError if it is not to be had."""
        if self.target is not target:
            raise UsageError("this cache belongs to another target; pass the cache of a generation of the same one")
        if self.in_use:
            raise UsageError("this cache is in use by a generation that is not finished; close that one first")
        try:
            self.check_integrity()
        except CacheError as error:
            raise UsageError(f"this cache is damaged ({error}); start without it") from error
        self.in_use = True

    def release(self) -> None:
        """Give the cache back; `KeptCache` can now be passed to another generation."""
        self.in_use = False

    def keep_prefix(self, prompt: Sequence[int]) -> int:
        """Reduce the cache to what it shares with `prompt` less its last token; return that length.

        A cache that cannot be trimmed exactly is kept only if it is wholly a prefix, and replaced by an empty
        one if not.
        """
        limit = min(len(self.tokens), len(prompt) - 1)
        shared = next((i for i in range(limit) if self.tokens[i] != prompt[i]), limit)
        if shared == len(self.tokens):
            return shared
        if self.trimmable:
            self.trim_to(shared)
            return shared
        self.layers = self.target.make_cache()
        self.tokens = []
        return 0

    def trim_to(self, length: int) -> None:
        """Forget every position from `length` on. Raises CacheError if a layer does not follow."""
        excess = len(self.tokens) - length
        try:
            trim_layers(self.layers, excess)
        except Exception as error:
            self._fault = str(error)
            raise
        del self.tokens[length:]

    def settle(self, tokens: Sequence[int], grown: int) -> int:
        """Every layer grew by `grown` positions, of which the first ones hold `tokens`: keep those, trim the rest.

        Returns the number of positions trimmed. Raises CacheError if a layer trimmed another number.
        """
        excess = grown - len(tokens)
        if excess:
            trim_layers(self.layers, excess)
        self.tokens.extend(tokens)
        return excess

    def restore(self, length: int) -> None:
        """After a failure in the middle of a round: bring every layer back to `length` positions, however far
        it got.

        If that cannot be done the cache is marked as damaged and refuses further use; nothing is raised.
        """
        length = min(length, len(self.tokens))
        del self.tokens[length:]
        try:
            for index, layer in enumerate(self.layers):
                offset = getattr(layer, "offset", None)
                if offset == length:
                    continue
                if offset is None or offset < length or not _is_plain(layer):
                    raise CacheError(f"layer {index} ({_describe(layer)}) cannot be brought back to {length} positions")
                trim_layers([layer], offset - length)
        except Exception as error:
            self._fault = str(error)

    def check_integrity(self, ahead: int = 0) -> None:
        """Raise CacheError unless every layer holds exactly `tokens`, plus `ahead` positions in flight."""
        if self._fault is not None:
            raise CacheError(self._fault)
        for index, layer in enumerate(self.layers):
            offset = getattr(layer, "offset", None)
            if offset is not None and offset != len(self.tokens) + ahead:
                raise CacheError(
                    f"layer {index} ({_describe(layer)}) holds {offset} positions instead of {len(self.tokens) + ahead}"
                )
