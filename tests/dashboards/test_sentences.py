"""Numbers and rows in words."""

from __future__ import annotations

import pytest

from dashboards.report.completeness import say_completeness
from dashboards.report.sentences import say_arm, say_duration, say_speed


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (75.04, "75.0 s"),
        (1.0, "1.00 s"),
        (0.14249, "142 ms"),
        (0.0104, "10.4 ms"),
        (0.00104, "1.04 ms"),
        (0.000955, "955 us"),
        (0.0, "0.00 us"),
    ],
)
def test_durations_have_three_digits(seconds: float, said: str) -> None:
    assert say_duration(seconds) == said


def test_speed_is_said_the_way_round_that_is_over_one() -> None:
    assert say_speed(1.714) == "1.71 times as fast as ordinary decoding"
    assert say_speed(0.5) == "2.00 times as slow as ordinary decoding"


def test_an_arm_names_the_classes_that_differ() -> None:
    row = {
        "arm": "a m=4",
        "n_prompts": 6,
        "speedup": 1.5,
        "speedup_low": 1.2,
        "speedup_high": 1.9,
        "seconds_per_token": 0.02,
        "ordinary_seconds_per_token": 0.03,
        "limited_by": "acceptance",
        "more_prompts": None,
        "would_settle": None,
        "note": None,
    }
    verdicts = {"w": "loses", "x": "pays", "y": None, "z": "indistinguishable", "v": "pays", "u": "pays"}
    rows = [row | {"class": name, "verdict": verdict} for name, verdict in verdicts.items()]
    assert say_arm([*rows, row | {"class": "all", "verdict": "pays"}]) == (
        "a m=4 pays: 1.50 times as fast as ordinary decoding (speedup 1.50, 95 % interval 1.20 to 1.90, 6 prompts), "
        "20.0 ms a token instead of 30.0 ms. It pays on x, v and u; loses on w; cannot be told from ordinary decoding "
        "on z; has no verdict on y."
    )
    assert say_arm([rows[1], row | {"class": "all", "verdict": "pays"}]) == (
        "a m=4 pays: 1.50 times as fast as ordinary decoding (speedup 1.50, 95 % interval 1.20 to 1.90, 6 prompts), "
        "20.0 ms a token instead of 30.0 ms."
    )


def test_everything_that_is_missing_is_said() -> None:
    names = ["cancelled", "error", "aborted", "running", "unknown", "incomplete", "warm_up", "near_ties", "divergent"]
    lines = ["torn_lines", "rejected_lines", "waiting_lines", "lost_records", "unassigned_lines"]
    row = {f"n_{name}": i + 1 for i, name in enumerate([*names, *lines])}
    row |= {"n_generations": 12345, "n_rounds": 1234567, "n_compared": 40, "n_attributed": 12, "n_equal": 23}
    assert list(say_completeness([{"arm": "a m=4"}, {"arm": "all"} | row])) == [
        ("Recorded: 12,345 generations (7 for warm-up) with 1,234,567 rounds.", False),
        ("Still running: 4 generations; the figures are those of what has ended.", False),
        (
            "Generations left out of the figures: 1 cancelled, 2 ended by an error, 3 aborted: the process died, "
            "5 not ended as far as is known: written on another machine, 6 with rounds missing.",
            True,
        ),
        (
            "Not in the record: 10 torn journal lines, 11 rejected journal lines (select * from rejected), "
            "12 ends or comparisons of something that is not in the store, 13 records that could not be written, "
            "14 unreadable lines in journals that may be another run's.",
            True,
        ),
        (
            "Outputs: 23 of 40, the 12 of the stage timing among them, are ordinary decoding's, token for token; "
            "8 differ from a near tie on, which rounding explains.",
            False,
        ),
        ("Outputs: 9 differ from ordinary decoding's, and at no near tie: a fault.", True),
    ]
