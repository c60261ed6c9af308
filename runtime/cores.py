"""How many cores are free for BLAS right now.

OpenBLAS's threads wait for each other by spinning, so one thread too many is far worse than one too few: measured
on 2 cores, a (1 x 1024) @ (1024 x 1024) product took 0.23 ms with two threads and 0.41 ms with one while the
machine was quiet, but 32 to 64 ms with two and still 0.41 ms with one beside two busy processes. The load average
is no guide: it still counts a run that ended a minute ago. So the cores' busy time is sampled for a moment instead.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

SAMPLE_SECONDS = 0.1
_STAT = Path("/proc/stat")
_TOPOLOGY = "/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_processors() -> int:
    """Logical processors this process may run on."""
    return len(_allowed())


def free_cores() -> int:
    """Physical cores that this process may use and that others leave idle, at least 1.

    Takes `SAMPLE_SECONDS` where there is more than one.
    """
    cores = min(_physical_cores(), _quota())
    return max(1, min(cores, _physical_cores() - _busy_cores())) if cores > 1 else 1


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _physical_cores() -> int:
    """Cores among the allowed processors; hyper-threads of one core count once."""
    siblings = set()
    for cpu in _allowed():
        try:
            siblings.add(Path(_TOPOLOGY.format(cpu=cpu)).read_text())
        except OSError:
            return len(_allowed())
    return len(siblings)


def _quota() -> int:
    """Whole processors that the control group grants (cgroup v2), or all."""
    try:
        quota, period = _QUOTA.read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return usable_processors()


def _busy_cores() -> int:
    """How many of the allowed processors other processes keep busy just now; over a quarter of one counts as one."""
    try:
        busy, own, start = _busy_seconds(), time.process_time(), time.perf_counter()
        time.sleep(SAMPLE_SECONDS)
        others = (_busy_seconds() - busy) - (time.process_time() - own)
        return max(0, math.ceil(others / (time.perf_counter() - start) - 0.25))
    except (OSError, ValueError):
        return 0


def _busy_seconds() -> float:
    """Processor time since boot that was not idle, over the allowed processors (see proc(5), /proc/stat)."""
    names = {f"cpu{cpu}" for cpu in _allowed()}
    ticks = 0
    for line in _STAT.read_text().splitlines():
        name, *values = line.split()
        if name in names:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(value) for value in values[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")
