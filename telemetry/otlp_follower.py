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
from collections.abc import Callable
from pathlib import Path

from telemetry.errors import RoundscopeError
from telemetry.exporting import Counts, Taker, deliver
from telemetry.following import Follower
from telemetry.grouping import Grouping, Recorded, group
from telemetry.journal import FOLDER
from telemetry.ledger import Ledger
from telemetry.otlp import Sender, Sent
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

    def __init__(self, follower: Follower, taker: Taker, ledger: Ledger) -> None:
        self.counts = Counts()
        self._follower = follower
        self._taker = taker
        self._ledger = ledger
        self._grouping = Grouping()
        self._queue: deque[Recorded] = deque()
        self._not_before = 0.0

    def step(self) -> bool:
        """Take what is new and send one generation that is over; whether there is another to send at once."""
        self._take()
        if time.monotonic() < self._not_before or not self._queue:
            return False
        return self._send_first() and bool(self._queue)

    def finish(self) -> None:
        """The writer has gone: what is left is sent as it stands, as far as the time allows, and the rest counted."""
        until = time.monotonic() + END_S
        self._take()
        self._enqueue(self._grouping.flush())
        while self._queue and time.monotonic() < until and self._send_first():
            pass
        for recorded in self._queue:
            self._give_up(recorded)

    def _take(self) -> None:
        while lines := self._follower.poll():
            for line in lines:
                if line.record is not None:
                    self._enqueue(self._grouping.add(line.record))

    def _enqueue(self, generations: list[Recorded]) -> None:
        for recorded in generations:
            if recorded.start.sampled is False:
                self.counts.unsampled += 1
            else:
                self._queue.append(recorded)
        while len(self._queue) > QUEUE:
            self._give_up(self._queue.popleft())

    def _give_up(self, recorded: Recorded) -> None:
        if self._ledger.has(recorded.id):
            return
        n_spans = len(list(spans_of(recorded)))
        self.counts.failed += n_spans
        self._ledger.note_failed(n_spans)

    def _send_first(self) -> bool:
        """Send the oldest generation; whether that is done with, and not to be tried again from here."""
        recorded = self._queue[0]
        if not self._ledger.has(recorded.id):
            sent = deliver(recorded.id, list(spans_of(recorded)), self._taker, self._ledger)
            if sent.failed:  # counted when it is given up
                self._not_before = time.monotonic() + max(RETRY_S, sent.after_s)
                self.counts.add(Sent(reason=sent.reason))
                return False
            self.counts.add(sent)
            if sent.again:
                self._ledger.note_failed(sent.refused, "refused")
        self._queue.popleft()
        return True


def note_unsent(store: Path, journal: Path, endpoint: str) -> int:
    """For who started a follower that died: count in the cursor of `endpoint` every span of `journal` that is not
    there, and return how many. What the follower had given up on is then counted a second time.

    endpoint: as the follower said it. Raises RoundscopeError.
    """
    follower = Follower(store / FOLDER, journals=[journal.name])
    records = (line.record for lines in iter(follower.poll, []) for line in lines if line.record is not None)
    with Ledger(store, endpoint) as ledger:
        unsent = [each for each in group(records) if each.start.sampled is not False and not ledger.has(each.id)]
        n_spans = sum(len(list(spans_of(recorded))) for recorded in unsent)
        if n_spans:
            ledger.note_failed(n_spans)
    return n_spans


def send_until(is_over: Callable[[float], bool], exporter: Exporter) -> None:
    """Send until `is_over`, which waits as many seconds as it is told; it is asked between any two generations."""
    is_more = False
    while not is_over(0.0 if is_more else POLL_S):
        is_more = exporter.step()
    exporter.finish()


def main(arguments: list[str]) -> None:
    """Follow a journal: arguments are the store, the journal's name, and the endpoint (empty: the environment's)."""
    store, journal, endpoint = Path(arguments[0]), arguments[1], arguments[2] or None
    try:
        sender = Sender(endpoint, timeout_s=TIMEOUT_S)
        ledger = Ledger(store, sender.endpoint)
    except RoundscopeError as error:
        tell(error=str(error))
        return
    with ledger:
        exporter = Exporter(Follower(store / FOLDER, journals=[journal]), sender, ledger)
        begin_following()
        tell(endpoint=sender.endpoint)
        send_until(is_over, exporter)
        counts = exporter.counts
        tell(
            sent=counts.sent,
            refused=counts.refused,
            for_good=counts.for_good,
            failed=counts.failed,
            unsampled=counts.unsampled,
            reasons=dict(counts.reasons),
        )


if __name__ == "__main__":
    main(sys.argv[1:])
