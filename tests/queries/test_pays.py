"""`assert_pays`: the verdict's interval at any confidence, and what it says when a run is not as fast as asked."""

from __future__ import annotations

import math
import random
import statistics
from pathlib import Path
from typing import Any

import duckdb
import pytest

import queries
from queries.student import t_quantile
from queries.testing import assert_pays
from telemetry.errors import UsageError
from telemetry.testing import TraceAssertionError
from tests.dashboards.test_command import record
from tests.queries.given import Given, spec, step
from tests.queries.intervals import t_975
from tests.queries.simulate import Arm, Simulation

PUBLISHED = {
    (0.9, 1): 3.0777, (0.95, 1): 6.3138, (0.995, 1): 63.6567,
    (0.9, 2): 1.8856, (0.95, 2): 2.9200, (0.995, 2): 9.9248,
    (0.9, 5): 1.4759, (0.95, 5): 2.0150, (0.995, 5): 4.0321,
    (0.9, 30): 1.3104, (0.95, 30): 1.6973, (0.995, 30): 2.7500,
    (0.9, 120): 1.2886, (0.95, 120): 1.6577, (0.995, 120): 2.6174,
}  # fmt: skip
"""Tables of Student's t, to four decimals."""

TIMES = [10.0, 12.0, 9.0, 11.0, 10.5, 9.5]
"""Milliseconds of each prompt's ten tokens with the arm; ordinary decoding takes 20."""


def test_quantiles_are_those_of_published_tables() -> None:
    assert {key: round(t_quantile(*key), 4) for key in PUBLISHED} == PUBLISHED
    assert [t_quantile(0.975, df) for df in range(1, 60)] == pytest.approx([t_975(df) for df in range(1, 60)], rel=1e-9)
    assert t_quantile(0.5, 7) == pytest.approx(0, abs=1e-12)


def fill(con: duckdb.DuckDBPyConnection, times: list[float] = TIMES, **changes: Any) -> None:
    """A run of as many prompts as there are times."""
    with Given(con) as given:
        for index, time in enumerate(times):
            given.add(None, f"p{index}", [step(2.0)] * 10)
            given.add(("copy", 4), f"p{index}", [spec(time / 2, 4, 4), spec(time / 2, 4, 4)], **changes)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_the_interval_is_that_of_the_prompts_influences(con: duckdb.DuckDBPyConnection, confidence: float) -> None:
    """Every prompt has the same tokens and the same ordinary time, so only its time with the arm has an influence."""
    fill(con)
    mean = statistics.mean(TIMES)
    half = t_quantile((1 + confidence) / 2, 5) * statistics.stdev(t / mean for t in TIMES) / math.sqrt(6)
    found = assert_pays(con, 1.2, confidence)
    assert (found.run_id, found.arm, found.n_prompts) == ("run-1", "copy m=4", 6)
    assert found.speedup == pytest.approx(20 / mean)
    assert (found.low, found.high) == pytest.approx((found.speedup * math.exp(-half), found.speedup * math.exp(half)))
    assert assert_pays(con, found.low * 0.999999, confidence) == found
    with pytest.raises(TraceAssertionError):
        assert_pays(con, found.low, confidence)


def test_at_95_percent_it_is_the_verdict(con: duckdb.DuckDBPyConnection) -> None:
    """On many runs, some of which pay: the same ends, and it holds exactly where the verdict is `pays`."""
    verdicts = set()
    chance = random.Random(5)
    for index in range(9):
        rate = chance.uniform(0.0, 0.95)
        run_id = f"run-{index}"
        Simulation(
            classes=("copy",),
            n_prompts=8,
            arms=(Arm(), Arm("copy", 4, rate=rate, widening=0.3)),
            seed=index,
            run_id=run_id,
        ).fill(con)
        result = queries.run(con, "verdict", run_id=run_id, resamples=1)
        row = dict(zip(result.columns, result.rows[0], strict=True))
        verdicts.add(row["verdict"])
        if row["verdict"] == "pays":
            found = assert_pays(con, run_id=run_id)
            assert (found.low, found.high) == pytest.approx((row["speedup_low"], row["speedup_high"]), rel=1e-7)
        else:
            with pytest.raises(TraceAssertionError):
                assert_pays(con, run_id=run_id)
    assert verdicts >= {"pays", "loses"}


@pytest.mark.parametrize(
    ("min_speedup", "judgement"),
    [
        (1.85, "its lower end lies 0.074 too low; more prompts would narrow it"),
        (1.95, "it may be slower than that"),
        (3.0, "it is slower than that"),
    ],
)
def test_a_run_that_is_too_slow_says_what_was_measured(
    con: duckdb.DuckDBPyConnection, min_speedup: float, judgement: str
) -> None:
    fill(con)
    with pytest.raises(TraceAssertionError) as caught:
        assert_pays(con, min_speedup, 0.9)
    assert str(caught.value) == (
        f"expected copy m=4 more than {min_speedup:g} times as fast as ordinary decoding, at 90 % confidence\n"
        f"found 1.935 times, interval 1.776 to 2.109: {judgement}\n"
        "run run-1, class all, 6 prompts; a token takes 1.03 ms, ordinary decoding 2 ms"
    )


def test_what_is_no_verdict_does_not_pass(con: duckdb.DuckDBPyConnection) -> None:
    fill(con, TIMES[:4])
    with pytest.raises(TraceAssertionError, match="found no verdict under 5 prompts that both arms completed, here 4"):
        assert_pays(con, 0.1)


def test_other_output_does_not_pass(con: duckdb.DuckDBPyConnection) -> None:
    fill(con, equal=False, near_tie=False)
    with pytest.raises(TraceAssertionError, match="found 6 of 6 outputs that are not ordinary decoding's"):
        assert_pays(con)


def test_an_arm_that_proposed_nothing_does_not_pass(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        for index in range(6):
            given.add(None, f"p{index}", [step(2.0)] * 10)
            given.add(("copy", 4), f"p{index}", [spec(1.0, 0, 0, requested=4)] * 10)
    with pytest.raises(TraceAssertionError, match="found that nothing was ever proposed"):
        assert_pays(con)


def test_what_makes_no_sense_is_refused(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(UsageError, match="the run has no arm that drafts"):
        assert_pays(con)
    fill(con)
    with pytest.raises(UsageError, match="the run has no arm 'lookup'; it has: copy m=4"):
        assert_pays(con, arm="lookup")
    with pytest.raises(UsageError, match="the arm ran no class 'chat'; it ran: copy, all"):
        assert_pays(con, class_="chat")
    for confidence in (0.0, 1.0, 95):
        with pytest.raises(UsageError, match="must lie between 0 and 1"):
            assert_pays(con, 1, confidence)
    for speedup in (0, -1, math.inf, math.nan):
        with pytest.raises(UsageError, match="must be above 0"):
            assert_pays(con, speedup)


def test_several_arms_must_be_told_apart(con: duckdb.DuckDBPyConnection) -> None:
    fill(con)
    with Given(con) as given:
        for index in range(6):
            given.add(("copy", 8), f"p{index}", [spec(30.0, 8, 7), spec(30.0, 4, 1)])
    with pytest.raises(UsageError, match="the run has several arms; choose one with arm=: copy m=4, copy m=8"):
        assert_pays(con)
    assert assert_pays(con, 1.5, arm="copy m=4", class_="copy").arm == "copy m=4"


def test_a_store_will_do(tmp_path: Path) -> None:
    record(tmp_path, Simulation(classes=("copy",), n_prompts=8, arms=(Arm(), Arm("copy", 4, rate=0.9))))
    assert assert_pays(tmp_path).n_prompts == 8
    with pytest.raises(TraceAssertionError, match="expected copy m=4 more than 9 times as fast"):
        assert_pays(str(tmp_path), 9)
