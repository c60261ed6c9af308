"""A target's cache with the tokens it holds.

`KeptCache.tokens` is the truth about a cache. Between rounds the target's cache holds the committed history less its
last token, or is behind that by what a snapshot took back and the next round feeds again. After a finished generation
it can be handed to the next one, which keeps the longest common token prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.caches.kinds import CacheError, describe_layer, flatten
from runtime.caches.undo import Undo
from runtime.protocols import Target
from telemetry.errors import UsageError


class KeptCache:
    """A target's cache together with the tokens it holds.

    target: whose cache it is. tokens: ids at positions 0 .. length - 1. layers: the target's own cache objects,
    which may run ahead of `tokens` while a round is open or a pipelined step is in flight. undo: the way back out
    of them.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.in_use = False
        self._fault: str | None = None
        self._empty()

    def _empty(self) -> None:
        self.layers: list[Any] = self.target.make_cache()
        self.undo = Undo(self.layers)
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        """Positions held, as far as they are committed."""
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of K/V and states allocated."""
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
        self.undo.end()
        self.in_use = False

    def keep_prefix(self, prompt: Sequence[int]) -> int:
        """Reduce the cache to what it shares with `prompt` less its last token; return that length.

        What cannot be trimmed that far back is replaced by an empty cache.
        """
        limit = min(len(self.tokens), len(prompt) - 1)
        shared = next((i for i in range(limit) if self.tokens[i] != prompt[i]), limit)
        excess = len(self.tokens) - shared
        if excess and self.undo.can_trim(excess):
            self.trim_to(shared)
        elif excess:
            self._empty()
        return len(self.tokens)

    def trim_to(self, length: int) -> None:
        """Forget every position from `length` on. Raises CacheError if a layer does not follow."""
        try:
            self.undo.trim(len(self.tokens) - length)
        except Exception as error:
            self._fault = str(error)
            raise
        del self.tokens[length:]

    def adopt(self, layers: Sequence[Any], tokens: Sequence[int]) -> None:
        """Take over layers that hold `tokens` already."""
        self.layers = list(layers)
        self.undo = Undo(self.layers)
        self.tokens = list(tokens)

    def hold(self, tokens: Sequence[int]) -> None:
        """Every layer grew by `tokens`, which are committed."""
        self.tokens.extend(tokens)

    def restore(self, length: int) -> None:
        """After a failure in the middle of a round: bring every layer back to `length` positions, however far it
        got.

        If that cannot be done the cache is marked as damaged and refuses further use; nothing is raised.
        """
        length = min(length, len(self.tokens))
        del self.tokens[length:]
        try:
            self.undo.restore(length)
        except Exception as error:
            self._fault = str(error)

    def check_integrity(self, ahead: int = 0) -> None:
        """Raise CacheError unless every layer holds exactly `tokens`, plus `ahead` positions in flight."""
        if self._fault is not None:
            raise CacheError(self._fault)
        expected = len(self.tokens) + ahead
        for index, layer in enumerate(flatten(self.layers)):
            offset = getattr(layer, "offset", None)
            if offset is not None and offset != expected:
                raise CacheError(
                    f"layer {index} ({describe_layer(layer)}) holds {offset} positions instead of {expected}"
                )
