"""Ordinary decoding: one token a step, the next step launched before the last one is read.

That is its best form, and the baseline that speculation has to beat. While a step is in flight the cache runs
one position ahead of the history less its last token; finishing takes that position back. It holds the last
committed token, so where it cannot be taken back (a window that has wrapped, a recurrent state) the cache keeps it
and says so.
"""

from __future__ import annotations

from typing import Any

from runtime.device import read
from runtime.processing import choose
from runtime.rounds import OpenRound
from runtime.session import Session


class Ordinary:
    """Steps a session by ordinary decoding, greedy or sampled."""

    drafter = None
    draft_length = 0
    controlled = False
    coupling = None
    relaxation = None
    arm = "ordinary"

    def __init__(self, session: Session, *, pipelined: bool) -> None:
        self._session = session
        self.pipelined = pipelined
        self._in_flight: Any = None
        self._seen: Any = None
        self._launched = 0

    @property
    def is_in_flight(self) -> bool:
        """Whether a step was launched that nobody has read."""
        return self._in_flight is not None

    def resume(self) -> None:
        """The history has grown without this; nothing is in flight."""
        self._launched, self._seen = self._session.position, None

    def drop(self) -> None:
        """Forget the step in flight, whose position stays in the cache's layers."""
        self._in_flight = None

    def prefill(self) -> None:
        """Fill the target's cache."""
        self._session.prefill()

    def step(self, open_round: OpenRound, *, launches: bool = True) -> None:
        """Commit one token of the target's. launches: the step after it too, if steps are pipelined."""
        import mlx.core as mx

        session = self._session
        current = self._in_flight
        if current is None:
            current = self._launch(mx.array(session.history[-1:]))
        if isinstance(current, Exception):
            raise current
        self._in_flight = self._launch(current) if launches and self.pipelined and session.remaining > 1 else None
        open_round.width = 1
        open_round.mark("verify", "host_launch")
        [[token]] = read(current)
        open_round.mark("synchronize", "host_wait")
        session.cache.hold(session.history[-1:])
        session.history.append(token)
        session.end_at_stop(open_round, [token])
        open_round.tokens = [token]
        open_round.cache_length = session.cache.length + (self._in_flight is not None)
        open_round.skip()

    def _launch(self, ids: Any) -> Any:
        """The token (1,) that follows `ids` (1,), being computed, or the exception of a processor that refused them."""
        import mlx.core as mx

        session = self._session
        logits = session.forward(ids)
        if session.processors:
            self._seen = mx.array(session.history) if self._seen is None else mx.concatenate([self._seen, ids])
        try:
            token = choose(logits, self._seen, session.processors, session.rows, session.sampling, self._launched)
        except Exception as error:
            # The token before this one may turn out to end the output, and then nobody asked; else it is raised.
            return error
        self._launched += 1
        mx.async_eval(token)
        return token

    def abandon(self, open_round: OpenRound) -> None:
        """Give up the open round and whatever is in flight."""
        self.drop()
        self._session.roll_back()
        open_round.cache_length = self._session.cache.length
        open_round.skip()

    def finish(self) -> None:
        """Wait for the device, and take the step in flight back out of the cache, or count it in."""
        cache = self._session.cache
        if self._in_flight is not None:
            self._in_flight = None
            if cache.undo.can_trim(1):
                cache.undo.trim(1)
            else:
                cache.hold(self._session.history[-1:])
        self._session.settle_device()
