"""A generation: an iterator of rounds with one life, whatever happens to it.

It owns the order of things (record the start, prefill, rounds, record the end), the time between rounds, and
every way out: end of text, limit, cancellation from this thread or another, an exception anywhere, or being
forgotten by its consumer. What a round does is its stepper's business (`runtime.ordinary`,
`runtime.speculative`). It never touches the caller's current OpenTelemetry context.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Literal, Protocol

from runtime.caches import KeptCache
from runtime.generation_log import GenerationLog
from runtime.protocols import Drafter
from runtime.rounds import OpenRound, Round
from runtime.session import Session
from telemetry.fields import Coupling, FinishReason


class Stepper(Protocol):
    """One way of getting from a prompt to output."""

    @property
    def arm(self) -> str:
        """What this way is called in records."""

    @property
    def drafter(self) -> Drafter | None:
        """Whatever proposes, if anything does."""

    @property
    def draft_length(self) -> int:
        """Most tokens asked for in a round."""

    @property
    def controlled(self) -> bool:
        """Whether a controller chooses how many are asked for, up to `draft_length`."""

    @property
    def pipelined(self) -> bool:
        """Whether a step is launched before the last one is read."""

    @property
    def coupling(self) -> Coupling | None:
        """What makes proposed tokens stand at a temperature; None for greedy decoding and without a drafter."""

    @property
    def relaxation(self) -> str | None:
        """The rule by which more proposed tokens stand than exactness allows; None: exact."""

    def prefill(self) -> None:
        """Bring target and drafter to the prompt less its last token, and wait until that is done."""

    def step(self, open_round: OpenRound) -> None:
        """Do one round."""

    def abandon(self, open_round: OpenRound) -> None:
        """After an exception in `step`: bring every state back to the committed history."""

    def finish(self) -> None:
        """Leave the target's cache at the committed history less its last token, with nothing in flight."""


class Generation(Iterator[Round]):
    """Rounds, one at a time; made by `decode` and `speculate`.

    Nothing runs before the first round is asked for. Iterate in one thread; `close` may be called from any.
    As a context manager it closes on leaving. `id` is in every record; `error` is the exception that ended
    it, which was also raised.
    """

    def __init__(self, session: Session, stepper: Stepper, log: GenerationLog) -> None:
        self._session = session
        self._stepper = stepper
        self._log = log
        self._thread: int | None = None
        self._in_round = False
        self._handing_out = False
        self._unraised: Exception | None = None
        self._unseen: Callable[[], None] | None = None
        self.id = log.generation_id
        self.error: BaseException | None = None
        self.finish_reason: FinishReason | None = None

    @property
    def traceparent(self) -> str:
        """W3C trace context of this generation's root span, for what is called while it goes on.

        It is known from the start, though the span is made after the end; its ids are `telemetry.span_data`'s.
        """
        return self._log.traceparent

    @property
    def tokens(self) -> list[int]:
        """The committed ids so far, the one that ended the output included."""
        return self._session.output

    @property
    def text(self) -> str:
        """The output as text: without the id that ended it, and cut before a stop string."""
        return self._session.text()

    @property
    def cache(self) -> KeptCache:
        """The target's cache, to be passed on as `cache=` once this generation is finished."""
        return self._session.cache

    def __next__(self) -> Round:
        if self.finish_reason is not None:
            self._show_end()
            late, self._unraised = self._unraised, None
            raise late or StopIteration
        self._enter()
        if self._session.cancelled:
            self._end("cancelled")
            raise StopIteration
        self._in_round = True
        try:
            open_round = None
            if self._log.end_of_prefill is None:
                self._log.begin(self._session, self._stepper)
                self._stepper.prefill()
                self._log.end_prefill()
            if not self._session.cancelled:
                open_round = self._log.open_round()
                self._stepper.step(open_round)
        except BaseException as error:
            self._fail(error, open_round)
            if isinstance(error, StopIteration):  # to whoever iterates it would look like the end of the output
                raise RuntimeError("StopIteration was raised inside a round") from error
            raise
        finally:
            self._in_round = False
        if open_round is None:
            self._end("cancelled")
            raise StopIteration
        self._session.accept_round()
        return self._hand_out(open_round)

    def _hand_out(self, open_round: OpenRound) -> Round:
        session = self._session
        try:
            closed = self._log.close_round(open_round)
        except BaseException as error:
            self.error = error
            self._end(_name_failure(error))
            raise
        self._handing_out = True
        try:
            if session.finished:
                self._end("length" if session.stop is None else "stop")
            elif session.cancelled:
                self._end("cancelled")
        except Exception as error:
            self._unraised = error  # this round is whole and its caller's; the error follows it
        finally:
            self._handing_out = False
        return closed

    def _enter(self) -> None:
        me = threading.get_ident()
        if self._thread is None:
            self._thread = me
        elif self._thread != me:
            raise RuntimeError(
                "a generation is bound to the thread that took its first round, because MLX's streams are; "
                "only close() may be called from another thread"
            )
        if self._in_round:
            raise RuntimeError("a round of this generation is already open; a drafter must not iterate its generation")

    def _fail(self, error: BaseException, open_round: OpenRound | None) -> None:
        reason = _name_failure(error)
        self.error = error
        try:
            if open_round is None:
                self._session.roll_back()
            else:
                open_round.void(reason)
                self._stepper.abandon(open_round)
                self._log.close_round(open_round)
        finally:
            with contextlib.suppress(Exception):  # the device may be what failed; the first error is reported
                self._stepper.finish()
            self._finish(reason)

    def _end(self, reason: FinishReason) -> None:
        try:
            self._stepper.finish()
        except BaseException as error:
            self.error = error
            self._session.roll_back()
            self._finish(_name_failure(error))
            raise
        self._finish(reason)

    def _finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        self._session.cache.release()
        self._unseen = self._log.end(self._session, reason, self.error)
        if not self._handing_out:
            self._show_end()

    def _show_end(self) -> None:
        """Show the end to who is shown late: when the last round is handed out, as they may take their time."""
        unseen, self._unseen = self._unseen, None
        if unseen is not None:
            unseen()

    def drain(self) -> Generation:
        """Run to the end without consumer work; return the generation itself."""
        for _ in self:
            pass
        return self

    def cancel(self) -> None:
        """Ask for the end: the iterating thread sees it between prefill chunks, or at its round's next stage.

        Touches nothing else, so any thread and any signal handler may call it.
        """
        self._session.cancelled = True

    def close(self) -> None:
        """End the generation; does nothing if it has ended.

        From another thread, or from inside a round, this is `cancel`: arrays are never touched elsewhere.
        """
        if self.finish_reason is not None:
            self._show_end()
            return
        self.cancel()
        if self._thread is None:
            self._finish("cancelled")
        elif self._thread == threading.get_ident() and not self._in_round:
            self._end("cancelled")

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Forgotten in the middle: the rows are kept and say so. Another thread's garbage collector may run
        # this, so the device is left alone unless it is our own.
        if hasattr(self, "finish_reason"):
            with contextlib.suppress(Exception):
                self.close()
                if self.finish_reason is None:
                    self._finish("cancelled")


def _name_failure(error: BaseException) -> Literal["cancelled", "error"]:
    return "cancelled" if isinstance(error, (KeyboardInterrupt, GeneratorExit)) else "error"
