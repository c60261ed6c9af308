"""What can change a machine's speed from one minute to the next, where the system tells: load, power, heat.

Linux says it in /sys, macOS by `pmset`. Elsewhere, and in most virtual machines, nothing is known.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from telemetry.fields import Power

SYS = Path("/sys")
PATIENCE_S = 2.0


@dataclass(frozen=True)
class MachineState:
    """The fields of `telemetry.records.Environment` of these names."""

    load1: float | None
    power: Power | None
    speed_limit: float | None
    throttle_count: int | None


def read_state() -> MachineState:
    """The state now; None for what the system does not tell. Never raises."""
    if sys.platform == "darwin":
        return MachineState(_load1(), find_source(_ask("ps")), find_limit(_ask("therm")), None)
    return MachineState(_load1(), read_source(SYS), None, count_throttles(SYS))


def _load1() -> float | None:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _ask(topic: str) -> str:
    try:
        command = ["/usr/bin/pmset", "-g", topic]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def find_source(text: str) -> Power | None:
    """What `pmset -g ps` says that the machine draws from."""
    found = re.search(r"drawing from '(AC|Battery|UPS) Power'", text)
    return None if found is None else "mains" if found[1] == "AC" else "battery"


def find_limit(text: str) -> float | None:
    """The percentage of the processor's speed that `pmset -g therm` says is allowed; it is silent while all is."""
    found = re.search(r"CPU_Speed_Limit\s*=\s*(\d+)", text)
    return None if found is None else float(found[1])


def read_source(root: Path) -> Power | None:
    """What Linux says: `battery` if one is being emptied, else `mains` if a supply is plugged in; `root` is /sys."""
    supplies = [_read_supply(folder) for folder in sorted(root.glob("class/power_supply/*"))]
    if ("Battery", "System", "Discharging") in supplies:
        return "battery"
    known = any(kind in ("Mains", "USB") and state == "1" for kind, _, state in supplies)
    return "mains" if known or any(kind == "Battery" and scope == "System" for kind, scope, _ in supplies) else None


def _read_supply(folder: Path) -> tuple[str, str, str]:
    """Kind, scope and state. The batteries of mice and keyboards have the scope `Device`."""
    kind = _read(folder / "type")
    return kind, _read(folder / "scope") or "System", _read(folder / ("status" if kind == "Battery" else "online"))


def count_throttles(root: Path) -> int | None:
    """How often processors were slowed for heat since the system started; None where Linux does not count it."""
    counts = [_read(file) for file in root.glob("devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count")]
    return sum(int(count) for count in counts if count.isdigit()) if counts else None


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
