"""Follows a run's journal and sends its spans: the process behind `roundscope run --otlp`.

It is started and ended by the run (`telemetry.sidecar`) and shares nothing with it but the journal, so whatever becomes
of it or of the receiver, the run goes on. A generation is sent when it is over; one that cannot be delivered waits in a
line of bounded length, and is tried again from time to time and at the end. What is not delivered by then is counted,
and stays exportable from the store.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path

from telemetry.errors import RoundscopeError
from telemetry.exporting import Counts, deliver
from telemetry.following import Follower
from telemetry.grouping import Grouping, Recorded
from telemetry.journal import FOLDER
from telemetry.ledger import Ledger
from telemetry.otlp import Sender
from telemetry.sidecar import Sidecar, begin_following, is_over, start, tell
from telemetry.spans import spans_of

POLL_S = 0.25
RETRY_S = 5.0
TIMEOUT_S = 3.0
"""For a request. A run waits at its end for one that is under way."""

END_S = 5.0
"""How long the rest is being sent after the run has ended."""

PATIENCE_S = END_S + 2 * TIMEOUT_S + 5.0
"""How long a run waits for it at the end, at most; it waits longer than what it may take by itself."""

QUEUE = 1000
"""Generations that wait for a receiver; of more, the oldest are left to `roundscope export`."""


def follow(store: Path, journal: Path, endpoint: str) -> Sidecar:
    """Start a follower of `journal`. Raises RoundscopeError if it cannot begin, so that a run need not start in
    vain."""
    return start("the exporter of spans", __name__, [str(store), journal.name, endpoint])


class Exporter:
    """Groups a journal's records into generations and sends them, oldest first."""

    def __init__(self, follower: Follower, sender: Sender, ledger: Ledger) -> None:
        self.counts = Counts()
        self._follower = follower
        self._sender = sender
        self._ledger = ledger
        self._grouping = Grouping()
        self._queue: deque[Recorded] = deque()
        self._not_before = 0.0

    def step(self, until: float | None = None) -> None:
        """Take what is new and send what is over; if `until` is given, no later, and without waiting to retry."""
        while lines := self._follower.poll():
            for line in lines:
                if line.record is not None:
                    self._enqueue(self._grouping.add(line.record))
        while self._queue and time.monotonic() < (until or float("inf")):
            if until is None and time.monotonic() < self._not_before:
                return
            if not self._send(self._queue[0]):
                self._not_before = time.monotonic() + RETRY_S
                return
            self._queue.popleft()

    def finish(self) -> None:
        """The writer has gone: what is left is sent as it stands, as far as the time allows, and the rest counted."""
        until = time.monotonic() + END_S
        self.step(until)
        self._enqueue(self._grouping.flush())
        self.step(until)
        for recorded in self._queue:
            self._give_up(recorded)

    def _enqueue(self, generations: list[Recorded]) -> None:
        for recorded in generations:
            if recorded.start.sampled is False:
                self.counts.unsampled += 1
            elif recorded.id not in self._ledger.entries:
                self._queue.append(recorded)
        while len(self._queue) > QUEUE:
            self._give_up(self._queue.popleft())

    def _give_up(self, recorded: Recorded) -> None:
        n_spans = len(list(spans_of(recorded)))
        self.counts.failed += n_spans
        self._ledger.note_failed(n_spans)

    def _send(self, recorded: Recorded) -> bool:
        attempt = Counts()
        done = deliver(recorded.id, list(spans_of(recorded)), self._sender, self._ledger, attempt)
        self.counts.reasons += attempt.reasons
        if attempt.failed:  # counted when it is given up
            return False
        self.counts.sent += attempt.sent
        self.counts.refused += attempt.refused
        return done or bool(attempt.refused)


def main(arguments: list[str]) -> None:
    """Follow a journal: arguments are the store, the journal's name, and the endpoint (empty: the environment's)."""
    store, journal, endpoint = Path(arguments[0]), arguments[1], arguments[2] or None
    begin_following()
    try:
        sender = Sender(endpoint, timeout_s=TIMEOUT_S)
        ledger = Ledger(store, sender.endpoint)
    except RoundscopeError as error:
        tell(error=str(error))
        return
    with ledger:
        exporter = Exporter(Follower(store / FOLDER, journals=[journal]), sender, ledger)
        tell(endpoint=sender.endpoint)
        while not is_over(POLL_S):
            exporter.step()
        exporter.finish()
        counts = exporter.counts
        tell(
            sent=counts.sent,
            refused=counts.refused,
            failed=counts.failed,
            unsampled=counts.unsampled,
            reasons=dict(counts.reasons),
        )


if __name__ == "__main__":
    main(sys.argv[1:])
