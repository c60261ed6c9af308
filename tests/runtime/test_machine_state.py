"""Load, power and heat: what the system's own words and files mean, and nothing where it has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.machine_state import count_throttles, find_limit, find_source, read_source, read_state

ON_MAINS = "Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\t100%; charged; 0:00 remaining present: true\n"
ON_BATTERY = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t81%; discharging; 5:11 remaining\n"
HOT = "Note: No thermal warning level has been recorded\nCPU_Scheduler_Limit \t= 100\nCPU_Speed_Limit \t= 62\n"


def supply(root: Path, name: str, **files: str) -> None:
    folder = root / "class" / "power_supply" / name
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(f"{text}\n")


def test_what_pmset_says() -> None:
    assert [find_source(text) for text in (ON_MAINS, ON_BATTERY, "")] == ["mains", "battery", None]
    assert [find_limit(text) for text in (HOT, ON_MAINS, "")] == [62.0, None, None]


@pytest.mark.parametrize(
    ("online", "status", "expected"),
    [
        ("1", "Charging", "mains"),
        ("1", "Full", "mains"),
        ("0", "Discharging", "battery"),
        ("1", "Discharging", "battery"),
    ],
)
def test_what_linux_says_of_power(tmp_path: Path, online: str, status: str, expected: str) -> None:
    supply(tmp_path, "AC", type="Mains", online=online)
    supply(tmp_path, "BAT0", type="Battery", status=status)
    supply(tmp_path, "hid-mouse", type="Battery", scope="Device", status="Discharging")
    assert read_source(tmp_path) == expected


def test_a_machine_without_supplies_does_not_tell(tmp_path: Path) -> None:
    assert read_source(tmp_path) is None
    supply(tmp_path, "hid-mouse", type="Battery", scope="Device", status="Discharging")
    assert read_source(tmp_path) is None


def test_throttles_are_summed_over_processors(tmp_path: Path) -> None:
    assert count_throttles(tmp_path) is None
    for cpu, count in enumerate((2, 0, 5)):
        folder = tmp_path / "devices" / "system" / "cpu" / f"cpu{cpu}" / "thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(f"{count}\n")
    assert count_throttles(tmp_path) == 7


def test_this_machine_can_be_asked() -> None:
    state = read_state()
    assert state.power in (None, "mains", "battery")
    assert state.speed_limit is None or 0 < state.speed_limit <= 100
