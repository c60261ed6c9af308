"""Numbers and rows in words."""

from __future__ import annotations

import pytest

from dashboards.report.completeness import say_completeness
from dashboards.report.rows import Row
from dashboards.report.sentences import say_arm, say_draft_length, say_duration, say_speed, say_verify_cost


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
    row |= {"n_generations": 12345, "n_rounds": 1234567, "n_levels": 0}
    row |= {"n_compared": 40, "n_attributed": 12, "n_equal": 23, "n_sampled": 0, "n_relaxed": 0}
    row |= {"n_ranks": 4, "missing_ranks": "2 (aborted), 3 (absent)"}
    assert list(say_completeness([{"arm": "a m=4"}, {"arm": "all"} | row])) == [
        ("Recorded: 12,345 generations (7 for warm-up) with 1,234,567 rounds.", False),
        ("Still running: 4 generations; the figures are those of what has ended.", False),
        ("The run is incomplete: of its 4 ranks these are not whole: 2 (aborted), 3 (absent).", True),
        (
            "Generations left out of the figures: 1 cancelled, 2 ended by an error, 3 aborted: the process died, "
            "5 not ended as far as is known: written on another machine, 6 with rounds or levels missing.",
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


def forecast(
    m: int,
    milliseconds: float,
    measured: float | None = None,
    *,
    best: bool | None = False,
    priced_on: str = "other lengths",
) -> Row:
    """A row of `draft_length` beside ordinary steps of 10 ms."""
    speedup = 10 / milliseconds
    return {
        "drafter": "a",
        "m": m,
        "note": None,
        "predicted_seconds_per_token": milliseconds / 1e3,
        "measured_seconds_per_token": None if measured is None else measured / 1e3,
        "priced_on": priced_on,
        "predicted_speedup": speedup,
        "predicted_speedup_low": None if m == 0 else speedup - 0.1,
        "predicted_speedup_high": None if m == 0 else speedup + 0.1,
        "is_best": best,
    }


def test_the_best_draft_length_is_said_beside_what_was_measured() -> None:
    rows = [forecast(0, 10), forecast(1, 9, 9.1), forecast(2, 8, best=True), forecast(3, 8.5, 8.25)]
    assert say_draft_length(rows) == (
        "Draft length: a would pay best at m=2: predicted 8.00 ms a token, speedup 1.25, 95 % interval 1.15 to 1.35; "
        "measured m=1 9.10 ms (predicted from the others 9.00 ms) and m=3 8.25 ms (predicted from the others 8.50 ms)."
    )
    alone = [forecast(0, 10), forecast(1, 9), forecast(2, 8, 8.0, best=True, priced_on="this length")]
    assert str(say_draft_length(alone)).endswith("; measured m=2 8.00 ms.")


def test_where_no_draft_length_pays_the_nearest_is_said() -> None:
    rows = [forecast(0, 10, best=True), forecast(1, 12.5), forecast(2, 16)]
    assert say_draft_length(rows) == (
        "Draft length: a would pay for sure at none from 1 to 2; it comes nearest at m=1: predicted 12.5 ms a token, "
        "speedup 0.80, 95 % interval 0.70 to 0.90."
    )


def test_no_draft_length_is_named_under_five_prompts_or_without_a_forecast() -> None:
    assert say_draft_length([forecast(0, 10, best=None), forecast(1, 9, best=None)]) is None
    assert say_draft_length([forecast(4, 9, best=None) | {"note": "not forecast: so"}]) == (
        "Draft length: a was not forecast: so."
    )


@pytest.mark.parametrize("speedup", [None, float("nan"), float("inf")])
def test_a_draft_length_without_a_price_is_none(speedup: float | None) -> None:
    """No round of the drafter was timed: the forecast has nothing to multiply with."""
    unpriced = forecast(1, 1) | {"predicted_seconds_per_token": 0.0, "predicted_speedup": speedup}
    assert say_draft_length([forecast(0, 10, best=True), unpriced]) is None


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (2.2, ", 2.2 steps: of 8 proposed tokens, 15% have to be accepted even if drafting were free."),
        (1.0, ", 1.0 steps: 8 proposed tokens are verified for nothing."),
        (9.5, ", 9.5 steps: no drafter can pay with 8 proposed tokens."),
        (None, "."),
    ],
)
def test_what_verification_asks_is_said_of_the_widest_forward(steps: float | None, said: str) -> None:
    share = None if steps is None else (steps - 1) / 8
    wide = {"context": 64, "width": 9, "relative_to_step": steps, "accepted_share_needed": share}
    narrow = {"context": 64, "width": 1, "relative_to_step": 1.0, "accepted_share_needed": None}
    rows = [narrow | {"verify_seconds": 0.01}, wide | {"verify_seconds": 0.022}]
    assert say_verify_cost(rows) == f"After 64 positions, 9 positions in one forward take 22.0 ms{said}"


def test_of_samples_equality_is_not_asked() -> None:
    counts = dict.fromkeys(("n_cancelled", "n_error", "n_aborted", "n_running", "n_unknown", "n_incomplete"), 0)
    counts |= dict.fromkeys(("n_torn_lines", "n_rejected_lines", "n_waiting_lines", "n_lost_records"), 0)
    counts |= dict.fromkeys(("n_unassigned_lines", "n_warm_up", "n_compared", "n_levels", "n_ranks"), 0)
    row = {
        "arm": "all",
        "n_generations": 9,
        "n_rounds": 80,
        "n_sampled": 9,
        "n_relaxed": 0,
        "missing_ranks": None,
    } | counts
    not_exact = "Not exact: 2 generations by a relaxed policy, whose output is not the target's and was not compared."
    assert list(say_completeness([row | {"n_relaxed": 2}]))[2:] == [(not_exact, False)]
    assert list(say_completeness([row]))[1:] == [
        ("Outputs: 9 generations drew from the target's distribution; equality is not asked of samples.", False)
    ]
