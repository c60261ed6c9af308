"""What drafters on the host would have offered in rounds that are not theirs, held against what was committed."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.protocols import Drafter
from runtime.speculative.costs import Level
from runtime.speculative.standing import Standing

CHEAP = 0.01
"""Part of a step that asking may take, for a drafter to be asked in rounds that are not its own."""


class Watch:
    """Asks one drafter that works on the host, one proposal after the other, and notes in `standing` how each did."""

    def __init__(self, drafter: Drafter, standing: Standing) -> None:
        self._drafter = drafter
        self._standing = standing
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
        if not self._offered and not self._was_asked and limit > 0:
            self._offered, self._right = self._drafter.propose(history, limit).tokens, 0
            self.note_offer(len(self._offered))
        return len(self._offered) > 0

    def note_offer(self, offered: int) -> None:
        """It was asked, and offered so many tokens."""
        self._standing.observe_offer(offered)
        self._was_asked = True

    def note_draft(self, draft_ns: int | None) -> None:
        """The round spent so long on drafting; None: part of it on a drafter that is not on the host."""
        if self._was_asked and draft_ns is not None:
            self._cost.observe(draft_ns)
        self._was_asked = False

    def see(self, tokens: Sequence[int]) -> None:
        """These were committed, without a proposal of this drafter's."""
        for token in tokens:
            if not self._offered:
                return
            stands = self._offered[self._right] == token
            self._right += stands
            if not stands or self._right == len(self._offered):
                self._standing.acceptance.observe(len(self._offered), self._right)
                self.stop()

    def stop(self) -> None:
        """What was offered last is of no use any more."""
        self._offered = ()
