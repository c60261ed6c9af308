"""How many threads BLAS gets, from a machine described in files."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

import pytest

from runtime import cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, /sys and control groups")
TICKS = 100
SIBLINGS = {"plain": ["0", "1", "2", "3"], "hyper-threads": ["0-1", "0-1", "2-3", "2-3"]}


class Machine:
    """Four processors; `busy` says how many of them others keep busy during the sample."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now = folder, 0.0
        self.busy = self.own = 0.0
        monkeypatch.setattr(cores, "_allowed", lambda: {0, 1, 2, 3})
        monkeypatch.setattr(cores, "_STAT", folder / "stat")
        monkeypatch.setattr(cores, "_QUOTA", folder / "cpu.max")
        monkeypatch.setattr(cores, "_TOPOLOGY", str(folder / "cpu{cpu}"))
        monkeypatch.setattr(cores.os, "sysconf", lambda _: TICKS)
        monkeypatch.setattr(cores.time, "sleep", self.sleep)
        monkeypatch.setattr(cores.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(cores.time, "process_time", lambda: self.own * self.now)
        self.describe(SIBLINGS["plain"])
        self.sleep(0)

    def describe(self, siblings: list[str]) -> None:
        for cpu, group in enumerate(siblings):
            (self.folder / f"cpu{cpu}").write_text(group + "\n")

    def grant(self, text: str) -> None:
        (self.folder / "cpu.max").write_text(text)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        used = round((self.busy + self.own) * self.now * TICKS)
        idle = round((4 - self.busy - self.own) * self.now * TICKS)
        lines = ["cpu  9 9 9 9 9 9 9 9 0 0", f"cpu0 {used} 0 0 {idle} 7 0 0 0 0 0"]
        lines += [f"cpu{other} 0 0 0 0 0 0 0 0 0 0" for other in (1, 2, 3)]
        lines += ["cpu4 999 0 0 0 0 0 0 0 0 0", "intr 1 2 3"]
        (self.folder / "stat").write_text("\n".join(chain(lines, [""])))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(("busy", "expected"), [(0, 4), (0.2, 4), (0.3, 3), (1, 3), (1.2, 3), (2.5, 1), (4, 1)])
def test_a_core_that_others_keep_busy_gets_no_thread(machine: Machine, busy: float, expected: int) -> None:
    machine.busy = busy
    assert cores.free_cores() == expected


def test_what_this_process_uses_is_not_somebody_elses(machine: Machine) -> None:
    machine.own = 1.0
    assert cores.free_cores() == 4


def test_hyper_threads_of_one_core_count_once(machine: Machine) -> None:
    machine.describe(SIBLINGS["hyper-threads"])
    assert cores.free_cores() == 2


@pytest.mark.parametrize(
    ("granted", "expected"),
    [("max 100000", 4), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("?", 4)],
)
def test_a_containers_quota_is_a_limit(machine: Machine, granted: str, expected: int) -> None:
    machine.grant(granted)
    assert cores.free_cores() == expected


def test_a_quota_is_not_lowered_by_others_on_other_cores(machine: Machine) -> None:
    machine.grant("200000 100000")
    machine.busy = 2.0
    assert cores.free_cores() == 2


def test_without_proc_and_sys_every_allowed_processor_counts(machine: Machine) -> None:
    for path in machine.folder.iterdir():
        path.unlink()
    assert cores.free_cores() == 4
