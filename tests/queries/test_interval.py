"""The interval holds what it promises: its quantiles, and its coverage over simulated runs."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import Counter

import duckdb
import pytest

import queries
from tests.queries.given import Given, spec
from tests.queries.intervals import t_975

N_RUNS = 600
PUBLISHED = {1: 12.706, 2: 4.303, 4: 2.776, 7: 2.365, 10: 2.228, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980}


def test_t_quantile(con: duckdb.DuckDBPyConnection) -> None:
    """Exact to 1e-6 and better wherever a run can have so many prompts; published tables have three decimals."""
    found = dict(con.execute("select df, t_975(df) from range(1, 301) as r (df)").fetchall())
    assert con.execute("select t_975(0)").fetchone() == (None,)
    assert found == {df: pytest.approx(t_975(df), abs=1e-7) for df in found}
    assert {df: round(found[df], 3) for df in PUBLISHED} == PUBLISHED
    assert con.execute("select t_975(1000000000)").fetchone() == (pytest.approx(1.959963984540054, abs=1e-8),)


def test_t_quantile_for_the_best_of_sixteen(con: duckdb.DuckDBPyConnection) -> None:
    """Exact to 2e-6: the further out a quantile lies, the slower its expansion converges."""
    found = dict(con.execute("select df, t_975_of_16(df) from range(1, 301) as r (df)").fetchall())
    assert con.execute("select t_975_of_16(0)").fetchone() == (None,)
    assert found == {df: pytest.approx(t_975(df, 16), abs=2e-6) for df in found}


def test_prompts_to_settle(con: duckdb.DuckDBPyConnection) -> None:
    """The first number of prompts at which the interval is narrow enough, whatever effect and spread."""
    cases = [(0.01 * k, sd) for k in (-30, -3, 1, 2, 5, 20, 70) for sd in (0.02, 0.1, 0.5)]
    found = [con.execute("select prompts_to_settle(?, ?)", case).fetchone() for case in cases]
    assert found == [(first_to_settle(effect, sd),) for effect, sd in cases]
    assert con.execute("select prompts_to_settle(0.0, 0.1)").fetchone() == (None,)


def first_to_settle(effect: float, sd: float) -> int:
    """By bisection: the interval gets narrower with every prompt."""
    return bisect_left(range(20_000), True, lo=2, key=lambda n: t_975(n - 1) * sd / math.sqrt(n) < abs(effect))


@pytest.mark.parametrize("speedup", [1.0, 1.5])
def test_coverage_at_eight_prompts(con: duckdb.DuckDBPyConnection, speedup: float) -> None:
    """Each class is an experiment of eight prompts whose gain differs from prompt to prompt by a third or so."""
    chance = random.Random(f"coverage {speedup}")
    with Given(con) as given:
        for i in range(N_RUNS):
            for k in range(8):
                tokens = chance.randint(20, 60)
                ordinary = tokens * 10 * chance.lognormvariate(0, 0.03)
                gain = chance.lognormvariate(-(0.3**2) / 2, 0.3)
                given.add(None, f"p{k}", [spec(ordinary, tokens, tokens - 1)], **{"class": f"c{i}"})
                mine = spec(tokens * 10 / speedup * gain, tokens, tokens - 1)
                given.add(("noisy", 4), f"p{k}", [mine], **{"class": f"c{i}"})
    result = queries.run(con, "verdict", resamples=1)
    at = [result.columns.index(name) for name in ("class", "verdict", "speedup_low", "speedup_high")]
    rows = [row for row in ([row[i] for i in at] for row in result.rows) if row[0] != "all"]
    coverage = sum(low <= speedup <= high for _, _, low, high in rows) / N_RUNS
    assert len(rows) == N_RUNS
    assert 0.92 <= coverage <= 0.97
    verdicts = Counter(verdict for _, verdict, *_ in rows)
    if speedup == 1:
        assert 0.03 <= (verdicts["pays"] + verdicts["loses"]) / N_RUNS <= 0.08
    else:
        assert verdicts["pays"] / N_RUNS > 0.8
        assert verdicts["loses"] == 0
