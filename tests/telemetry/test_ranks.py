"""Rank 0's wait for the others, by the journals they leave, on a clock that goes on while it sleeps."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from telemetry.fields import RankFinish
from telemetry.journal import Journal
from telemetry.ranks import Ranks, RankState
from telemetry.records import RankEnd, RankRecord
from tests.conftest import run_python

RUN = "r"


class Time:
    """What happens while one waits: at each look another thing, and a minute passes."""

    def __init__(self, *happenings: Callable[[], object]) -> None:
        self.seconds = 0.0
        self.slept = 0
        self._happenings: Iterator[Callable[[], object]] = iter(happenings)

    def sleep(self, _: float) -> None:
        """A minute, and the next happening."""
        self.seconds += 60
        self.slept += 1
        next(self._happenings, lambda: None)()


def wait(store: Path, ranks: list[int], time: Time, **limits: float) -> dict[int, RankState]:
    """What is known of the ranks in the end."""
    return Ranks(store, RUN, ranks).wait(now=lambda: time.seconds, sleep=time.sleep, **limits)


def begin(store: Path, rank: int, host: str | None = None, run_id: str = RUN) -> Journal:
    """A rank that has begun; `host` None: here."""
    journal = Journal(store)
    journal.write(
        RankRecord(
            run_id=run_id,
            rank=rank,
            size=3,
            host=host or socket.gethostname(),
            pid=1,
            backend="ring",
            n_prompts=1,
            started_wall_ns=0,
            offset_ns=0,
            uncertainty_ns=0,
        )
    )
    return journal


def end(journal: Journal, rank: int, finish: RankFinish = "complete") -> None:
    """It ends by itself."""
    journal.write(RankEnd(run_id=RUN, rank=rank, finish_reason=finish, n_generations=1, ended_wall_ns=0))
    journal.close()


def test_all_that_have_ended_are_known_at_once(tmp_path: Path) -> None:
    for rank, finish in ((1, "complete"), (2, "error")):
        end(begin(tmp_path, rank), rank, finish)  # type: ignore[arg-type]
    begin(tmp_path, 0).close()
    begin(tmp_path, 1, run_id="another").close()
    time = Time()
    assert wait(tmp_path, [1, 2], time) == {1: "complete", 2: "error"}
    assert time.slept == 0


def test_one_that_begins_late_and_records_now_and_then_is_waited_for(tmp_path: Path) -> None:
    journals: list[Journal] = []

    def grow() -> None:
        journals[0].write(RankEnd(run_id="another", rank=1, finish_reason="error", n_generations=0, ended_wall_ns=0))

    time = Time(lambda: journals.append(begin(tmp_path, 1)), *[grow] * 9, lambda: end(journals[0], 1, "interrupted"))
    assert wait(tmp_path, [1], time, appear_s=120, silence_s=120) == {1: "interrupted"}
    assert time.slept == 11


def test_one_that_died_is_found_by_its_lock(tmp_path: Path) -> None:
    child = run_python(
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.telemetry.test_ranks import begin\n"
        "begin(Path(sys.argv[1]), 1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
        str(tmp_path),
    )
    assert child.returncode == -9
    time = Time()
    assert wait(tmp_path, [1], time) == {1: "aborted"}
    assert time.slept == 0


def test_one_that_lives_and_records_nothing_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with closing(begin(tmp_path, 1)):
        time = Time()
        assert wait(tmp_path, [1], time, silence_s=300) == {1: "silent"}
        assert time.seconds == 300


def test_another_hosts_lock_says_nothing(tmp_path: Path) -> None:
    begin(tmp_path, 1, host="elsewhere").close()
    time = Time()
    assert wait(tmp_path, [1], time, silence_s=300) == {1: "silent"}
    assert time.seconds == 300


def test_one_without_a_journal_here_is_absent(tmp_path: Path) -> None:
    with closing(begin(tmp_path, 0)):
        time = Time()
        assert wait(tmp_path, [1, 2], time, appear_s=120) == {1: "absent", 2: "absent"}
        assert time.seconds == 120


def test_who_is_told_to_stop_takes_what_there_is(tmp_path: Path) -> None:
    end(begin(tmp_path, 1), 1)
    with closing(begin(tmp_path, 2)):
        ranks = Ranks(tmp_path, RUN, [1, 2, 3])
        states = ranks.wait(is_over=lambda: True, sleep=lambda _: pytest.fail("it went on waiting"))
    assert states == {1: "complete", 2: "silent", 3: "absent"}
