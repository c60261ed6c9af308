"""What a drafter on the host would have offered while ordinary steps were made, held against what they committed."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.protocols import Drafter
from runtime.speculative.controller import Controller
from runtime.speculative.costs import Level

CHEAP = 0.01
"""Part of a step that asking may take for the drafter to be asked while steps are made."""


class Watch:
    """Asks a drafter that proposes on the host, one proposal after the other, and tells the controller how each did."""

    def __init__(self, drafter: Drafter, controller: Controller) -> None:
        self._drafter = drafter
        self._controller = controller
        self._offered: Sequence[int] = ()
        self._right = 0
        self._cost = Level()
        self._was_asked = False
        self.is_on_host = bool(getattr(drafter, "on_host", False))

    def is_free(self, step_ns: float | None) -> bool:
        """Whether asking costs next to nothing beside a step of `step_ns`."""
        cost = self._cost.value
        return self.is_on_host and (cost is None or step_ns is None or cost <= CHEAP * step_ns)

    def expects(self, history: Sequence[int], limit: int) -> bool:
        """Whether the drafter has something for what follows `history`, as far as it was right until here."""
        if not self._offered and limit > 0:
            self._offered, self._right = self._drafter.propose(history, limit).tokens, 0
            self._was_asked = True
            self._controller.observe_offer(len(self._offered))
        return len(self._offered) > 0

    def note(self, draft_ns: int, offered: int | None = None) -> None:
        """A round spent so long on drafting; offered: what it was offered, if it asked for itself."""
        if offered is not None:
            self._controller.observe_offer(offered)
        if self._was_asked or offered is not None:
            self._cost.observe(draft_ns)
        self._was_asked = False

    def see(self, tokens: Sequence[int]) -> None:
        """These were committed by steps."""
        for token in tokens:
            if not self._offered:
                return
            stands = self._offered[self._right] == token
            self._right += stands
            if not stands or self._right == len(self._offered):
                self._controller.observe_watched(len(self._offered), self._right)
                self.stop()

    def stop(self) -> None:
        """What was offered last is of no use any more."""
        self._offered = ()
