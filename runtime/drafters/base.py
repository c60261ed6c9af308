"""What drafters without device state share: the count of positions they cover."""

from __future__ import annotations

from collections.abc import Sequence


class HostDrafter:
    """Keeps `length` by the convention of `runtime.drafters`; subclasses add `name` and `propose`."""

    prefix_consistent = True
    pure_in_history = True
    on_host = True

    def __init__(self) -> None:
        self.length = 0

    def reset(self, prompt: Sequence[int]) -> None:
        """Start over with `prompt`."""
        self.length = len(prompt) - 1

    def commit(self, tokens: Sequence[int]) -> None:
        """Take note that `tokens` became output."""
        self.length += len(tokens)

    def rewind(self, length: int) -> None:
        """Cover no more than `length` positions."""
        self.length = min(self.length, length)
