"""What recording a round costs: taking it down and writing it to the journal on disk, median and p99."""

from __future__ import annotations

import tempfile
import time
from statistics import median, quantiles

from runtime.generation_log import GenerationLog
from runtime.rounds import OpenRound
from telemetry.journal import Journal
from telemetry.recorder import Recorder
from telemetry.records import STAGES

ROUNDS = 50_000
LIMIT_US = 5.0


def run() -> bool:
    """Print microseconds a round; True if the median of recording stays within the limit."""
    with tempfile.TemporaryDirectory() as store, Journal(store) as journal:
        log = GenerationLog(Recorder(journal), timing="fused", cached_tokens=0)
        log.take_anchor()
        handing_out, recording = _time_rounds(log)
    for label, times in (("the round itself, for its caller", handing_out), ("recording it, on disk", recording)):
        print(f"  {label}: median {median(times):.2f} us, p99 {quantiles(times, n=100)[98]:.2f} us")
    print(f"  limit for the median of recording: {LIMIT_US} us")
    return median(recording) <= LIMIT_US


def _time_rounds(log: GenerationLog) -> tuple[list[float], list[float]]:
    now = time.perf_counter_ns
    handing_out, recording = [], []
    for _ in range(ROUNDS):
        open_round = _make_round(log)
        start = now()
        closed = open_round.close()
        middle = now()
        log.record_round(open_round, closed)
        recording.append((now() - middle) / 1e3)
        handing_out.append((middle - start) / 1e3)
    return handing_out, recording


def _make_round(log: GenerationLog) -> OpenRound:
    open_round = log.open_round()
    open_round.requested = open_round.proposed = 8
    open_round.accepted, open_round.width, open_round.outcome = 3, 9, "correction"
    open_round.tokens, open_round.proposal = [11, 12, 13, 14], list(range(11, 19))
    open_round.cache_length, open_round.drafter_length = 412, 412
    for stage in STAGES:
        open_round.mark(stage, "host_launch")
    return open_round
