"""When a generation is whole: after its comparison if one will come, and not waiting for one that will not."""

from __future__ import annotations

from pathlib import Path

import pytest

from telemetry.grouping import Grouping, Recorded
from telemetry.journal import Journal
from telemetry.records import RankEnd, Record
from telemetry.store import connect
from telemetry.stored import Stored
from tests.telemetry import stores
from tests.telemetry.coarse import levels, ncm, ncm_comparison, ncm_end

ARMS = ["no-cache", "cache", "cache exit"]


def _feed(grouping: Grouping, *records: Record) -> list[str]:
    return [recorded.id for record in records for recorded in grouping.add(record)]


def _begin(arms: list[str] = ARMS) -> Grouping:
    grouping = Grouping()
    grouping.add(stores.run(kind="ncm", arms=arms))
    return grouping


def test_a_cached_generation_of_a_run_waits_for_its_comparison() -> None:
    grouping = _begin()
    assert _feed(grouping, ncm("g1", run_id="run-1"), *levels("g1", 2), ncm_end("g1")) == []
    compared = ncm_comparison("g1")
    assert grouping.add(compared) == [
        Recorded(ncm("g1", run_id="run-1"), levels=list(levels("g1", 2)), end=ncm_end("g1"), comparison=compared)
    ]
    assert grouping.flush() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"cache": False, "arm": "no-cache"},
        {"warm_up": True},
        {"run_id": None},
        {"arm": "cache exit"},
    ],
    ids=["uncached", "warm-up", "of no run", "without a pair"],
)
def test_nothing_else_waits(changes: dict[str, object]) -> None:
    assert _feed(_begin(), ncm("g1", **{"run_id": "run-1", **changes}), ncm_end("g1")) == ["g1"]


def test_what_failed_does_not_wait_and_what_waits_is_whole_when_its_run_is_over() -> None:
    grouping = _begin()
    assert _feed(grouping, ncm("g1", run_id="run-1"), ncm_end("g1", finish_reason="error")) == ["g1"]
    assert _feed(grouping, ncm("g2", run_id="run-1"), ncm_end("g2", finish_reason="exited")) == []
    assert _feed(grouping, stores.run_end()) == ["g2"]


def test_what_waits_is_whole_when_its_rank_is_over() -> None:
    """Of a distributed run only rank 0 has the run's end in its journal."""
    grouping = Grouping()
    speculative = stores.generation("g1", run_id="run-1", drafter="d", draft_length=4, rank=1)
    assert _feed(grouping, speculative, stores.generation_end("g1")) == []
    end = RankEnd(run_id="run-1", rank=1, finish_reason="complete", n_generations=1, ended_wall_ns=0)
    assert _feed(grouping, end) == ["g1"]


def test_in_a_store_a_cached_generation_is_open_until_it_was_compared(tmp_path: Path) -> None:
    alone = ncm("g2", run_id="run-1", arm="cache exit")
    with Journal(tmp_path) as journal:
        for record in (
            stores.run(kind="ncm", arms=ARMS),
            ncm("g1", run_id="run-1"),
            ncm_end("g1"),
            alone,
            ncm_end("g2"),
        ):
            journal.write(record)
        assert _read(tmp_path) == (["g2"], 1)
        journal.write(ncm_comparison("g1", equal=False, diverged_level=1, tolerance=0.5, near_tie=False))
        assert _read(tmp_path) == (["g1", "g2"], 0)


def _read(store: Path) -> tuple[list[str], int]:
    with connect(store) as connected:
        stored = Stored(connected.con)
        return [recorded.id for recorded in stored.read()], stored.n_open
