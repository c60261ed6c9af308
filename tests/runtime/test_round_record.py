"""Every number of a round lands in its own field: records are made by position, so each has a value of its own here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.device import drain
from runtime.generate import speculate
from runtime.rounds import Decision, OpenRound, Round
from runtime.stopping import Stop
from runtime.testing import ScriptedLayer, ScriptedTarget
from telemetry.recorder import Recorder
from telemetry.records import RoundRecord
from telemetry.testing import FakeClock
from tests.runtime.scripted import KeepingDrafter, counting, rows

MS = 1_000_000


def open_round() -> OpenRound:
    """A round as no loop would leave it: no two of its values are the same."""
    clock = FakeClock()
    clock.advance(1000)
    entry = OpenRound(7, clock.monotonic_ns)
    entry.requested, entry.proposed, entry.accepted, entry.cut, entry.width = 90, 80, 70, 60, 50
    entry.cache_length, entry.drafter_length = 40, 30
    entry.processed, entry.replayed = 20, 10
    entry.overlap, entry.overlap_positions = 0.75, 2
    entry.proposer, entry.q_source = "suffix", "point"
    entry.outcome = "stop"
    entry.tokens, entry.proposal = [1, 2], [1, 2, 3]
    entry.stop = Stop("end", "stop_string")
    entry.decision = Decision(100, "probe", 200, 300)
    entry.trim_way, entry.rewind_way = "trim", "none"
    for spent, (stage, basis) in enumerate(
        {"draft": "host", "verify": "host_launch", "synchronize": "host_wait", "trim": "barrier"}.items()
    ):
        clock.advance(10**spent)
        entry.mark(stage, basis)  # type: ignore[arg-type]
    for _ in range(3):
        drain()
    return entry


def test_what_the_caller_gets() -> None:
    assert open_round().close() == Round(
        index=7,
        requested=90,
        proposed=80,
        accepted=70,
        committed=2,
        cut=60,
        outcome="stop",
        tokens=(1, 2),
        stop="end",
        cache_length=40,
        drafter_length=30,
        width=50,
        syncs=3,
        t_round_ns=1111,
        stages={
            "draft": (1, "host"),
            "verify": (10, "host_launch"),
            "synchronize": (100, "host_wait"),
            "trim": (1000, "barrier"),
        },
        trim_way="trim",
        rewind_way="none",
        replayed=10,
        processed=20,
        proposer="suffix",
        decision=Decision(100, "probe", 200, 300),
    )


def test_what_is_recorded() -> None:
    """Rewinding was not entered, so that every stage has a basis of its own: it lasts 0 ns, on none."""
    entry = open_round()
    expected: dict[str, Any] = {
        "generation_id": "g",
        "index": 7,
        "start_ns": 1000 - 400,
        "t_round_ns": 1111,
        "requested": 90,
        "proposed": 80,
        "accepted": 70,
        "committed": 2,
        "cut": 60,
        "outcome": "stop",
        "width": 50,
        "processed": 20,
        "syncs": 3,
        "cache_length": 40,
        "trim_way": "trim",
        "replayed": 10,
        "rewind_way": "none",
        "draft_ns": 1,
        "verify_ns": 10,
        "synchronize_ns": 100,
        "trim_ns": 1000,
        "rewind_ns": 0,
        "draft_basis": "host",
        "verify_basis": "host_launch",
        "synchronize_basis": "host_wait",
        "trim_basis": "barrier",
        "rewind_basis": None,
        "drafter_length": 30,
        "proposer": "suffix",
        "stop_kind": "stop_string",
        "proposal": None,
        "tokens": None,
        "overlap": 0.75,
        "overlap_positions": 2,
        "reason": "probe",
        "expected_ns": 200,
        "expected_step_ns": 300,
        "q_source": "point",
    }
    closed = entry.close()
    assert entry.record(closed, "g", 400, with_text=False) == RoundRecord(**expected)
    expected |= {"proposal": [1, 2, 3], "tokens": [1, 2]}
    assert entry.record(closed, "g", 400, with_text=True) == RoundRecord(**expected)
    assert set(expected) == set(RoundRecord.__struct_fields__)


class SlowTrim(ScriptedTarget):
    """A scripted target whose layers take 4 ms each to trim."""

    def __init__(self, clock: FakeClock, **options: Any) -> None:
        super().__init__(counting(90), vocab_size=90, clock=clock, **options)
        self.clock = clock

    def make_cache(self) -> list[ScriptedLayer]:
        clock = self.clock

        class Layer(ScriptedLayer):
            def trim(self, n: int) -> int:
                clock.advance(4 * MS)
                return super().trim(n)

        return [Layer("plain") for _ in range(self.n_layers)]


def test_every_stage_of_a_real_round_has_its_own_time() -> None:
    """The second round of a generation in which drafting, verifying, trimming and rewinding all cost something else."""
    clock = FakeClock(tick_ns=1)

    class Slow(KeepingDrafter):
        def propose(self, history: Sequence[int], m: int) -> Any:
            clock.advance(20 * MS)
            return super().propose(history, m)

        def rewind(self, length: int) -> None:
            clock.advance(3 * MS)
            super().rewind(length)

    recorder = Recorder(clock=clock)
    target = SlowTrim(clock, cost_ns=lambda width, context: 5 * MS + width * MS)
    drafter: Any = Slow(lambda history, m: [history[-1] + 1, *[0] * (m - 1)])
    generation = speculate(target, drafter, [0, 1, 2, 3], draft_length=4, max_tokens=20, recorder=recorder)
    next(generation)
    start = clock.monotonic_ns()
    clock.advance(50 * MS)
    next(generation)
    # One look at the clock begins a round, each stage ends with one, and one before trimming belongs to none.
    assert rows(recorder.records, RoundRecord)[1] == RoundRecord(
        generation_id=generation.id,
        index=1,
        start_ns=start + 50 * MS,
        t_round_ns=(20 + 10 + 8 + 3) * MS + 6,
        requested=4,
        proposed=4,
        accepted=1,
        committed=2,
        cut=0,
        outcome="correction",
        width=5,
        processed=0,
        syncs=1,
        cache_length=7,
        trim_way="trim",
        replayed=0,
        rewind_way="trim",
        draft_ns=20 * MS + 1,
        verify_ns=10 * MS + 1,
        synchronize_ns=1,
        trim_ns=8 * MS + 1,
        rewind_ns=3 * MS + 1,
        draft_basis="host",
        verify_basis="host_launch",
        synchronize_basis="host_wait",
        trim_basis="host",
        rewind_basis="host",
        drafter_length=7,
    )
    generation.close()
