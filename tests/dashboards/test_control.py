"""What a controller did, in words and as a part of the page."""

from __future__ import annotations

import pytest

from dashboards.page.control import make_choices
from dashboards.report.control import say_controllers
from dashboards.report.rows import Row, fetch
from tests.queries.simulate import Arm, Simulation, open_store

POOLED: Row = {
    "arm": "a m=auto",
    "class": "all",
    "n_rounds": 100,
    "share_of_steps": 0.25,
    "mean_proposed": 5.31,
    "n_probes": 2,
    "probing_share": 0.01,
    "probing_lost_share": 0.004,
    "seconds_per_token": 0.0204,
    "best_fixed": "a m=8",
    "best_fixed_seconds_per_token": 0.02,
    "regret": 0.02,
}
CHOSE = "a m=auto chose a step, or had nothing to propose, in 25% of its rounds and proposed 5.3 tokens in the others"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            f"{CHOSE}; 2 probes took 1.0% of the time and lost 0.4%. "
            "It took 20.4 ms a token, 2.0% more than a m=8 (20.0 ms) and 32.0% less than m=3, the best "
            "fixed one by the forecast (30.0 ms).",
        ),
        (
            {"n_probes": 0, "seconds_per_token": 0.01, "regret": -0.5},
            f"{CHOSE}; it made no probe. It took 10.0 ms a token, 50.0% less than a m=8 (20.0 ms) and "
            "66.7% less than m=3, the best fixed one by the forecast (30.0 ms).",
        ),
        (
            {"regret": None, "best_fixed": None, "best_fixed_seconds_per_token": None, "seconds_per_token": 0.03},
            f"{CHOSE}; 2 probes took 1.0% of the time and lost 0.4%. "
            "It took 30.0 ms a token, as much as m=3, the best fixed one by the forecast (30.0 ms).",
        ),
        ({"seconds_per_token": None, "n_probes": 0}, f"{CHOSE}; it made no probe."),
    ],
)
def test_a_controller_in_words(changes: Row, said: str) -> None:
    lengths: list[Row] = [
        {"drafter": drafter, "class": "all", "m": m, "predicted_seconds_per_token": seconds}
        | {"measured_seconds_per_token": None}
        for drafter, m, seconds in (("a", 2, 0.04), ("a", 3, 0.03), ("a", 4, None), ("b", 1, 0.001))
    ]
    rows = [POOLED | changes, POOLED | {"class": "copy"}, POOLED | {"n_rounds": 0}]
    assert list(say_controllers(rows, lengths)) == [said]


def test_the_page_has_the_choices_of_every_class_and_the_lengths_by_quarter() -> None:
    arms = (Arm(), Arm("prompt-lookup", 8, rate=0.5), Arm("prompt-lookup", 8, rate=0.5, auto=True))
    with open_store() as con:
        Simulation(arms=arms).fill(con)
        choices, decisions = fetch(con, "controller", "run-1"), fetch(con, "decisions", "run-1")
    cost, lengths = make_choices(choices, decisions)
    assert [row[:2] for row in cost.table.rows] == [
        ("prompt-lookup m=auto", name) for name in ("copy", "list", "write", "all")
    ]
    pooled = [row for row in decisions if row["class"] == "all"]
    assert len(lengths.table.rows) == len(pooled) > 8
    assert lengths.svg.startswith("<svg")
    assert list(make_choices([], [])) == []


def test_the_best_length_by_the_forecast_is_not_told_where_it_was_run() -> None:
    ran: Row = {"drafter": "a", "class": "all", "m": 8, "predicted_seconds_per_token": 0.02}
    [said] = say_controllers([POOLED], [ran | {"measured_seconds_per_token": 0.02}])
    assert said.endswith("It took 20.4 ms a token, 2.0% more than a m=8 (20.0 ms).")
