"""The interval holds what it promises: its quantiles, and its coverage over simulated runs.

`python -m tests.queries.test_interval` prints the coverage of every kind of draw at every number of prompts.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

import duckdb
import pytest

import queries
from telemetry.schema import create_schema
from tests.queries.given import Given, spec
from tests.queries.intervals import t_975

N_RUNS = 600
STEP_MS = 30.0
MOST_TOKENS = 1000
WIDE = 1.36
"""What a round of the embedded workload at m = 8 takes, in ordinary steps."""


@dataclass(frozen=True)
class Draws:
    """How prompts of one class differ: output tokens, rounds a token at m = 8, and noise of a generation's time.

    Measured on the embedded workload (SmolLM2-135M-Instruct, prompt-lookup m=8, 64 tokens at most): rounds a token were
    0.13 to 0.17 in copy-edit, 0.31 to 0.73 in answer, 0.75 to 1 in free-writing; a quarter of the answers ended early.
    """

    low: float
    high: float
    early: float = 0.0
    noise: float = 0.03
    spread: float = 0.0

    def draw(self, chance: random.Random) -> tuple[int, float, float]:
        """Tokens, and milliseconds of ordinary decoding and of speculation, of one prompt."""
        tokens = chance.randint(20, 63) if chance.random() < self.early else 64
        tokens = min(MOST_TOKENS, max(1, round(tokens * chance.lognormvariate(0, self.spread))))
        rounds = max(1.0, tokens * chance.uniform(self.low, self.high))
        ordinary, mine = (chance.lognormvariate(0, self.noise) for _ in range(2))
        return tokens, tokens * STEP_MS * ordinary, rounds * WIDE * STEP_MS * mine

    def average(self) -> tuple[float, float]:
        """Milliseconds of ordinary decoding and of speculation, over all the prompts there could be."""
        chance = random.Random("all")
        drawn = [self.draw(chance) for _ in range(200_000)]
        return math.fsum(t for _, t, _ in drawn) / len(drawn), math.fsum(t for _, _, t in drawn) / len(drawn)

    def speedup(self) -> float:
        """Of all the prompts there could be."""
        ordinary, mine = self.average()
        return ordinary / mine


DRAWS = {
    "copy-edit": Draws(0.13, 0.17),
    "answer": Draws(0.31, 0.73, early=0.25),
    "free-writing": Draws(0.75, 1.0),
    "wildly uneven lengths": Draws(0.31, 0.73, spread=1.2),
}
EMBEDDED = ("copy-edit", "answer", "free-writing")
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


@pytest.mark.parametrize("n_prompts", [5, 8, 24])
@pytest.mark.parametrize("name", EMBEDDED)
def test_coverage_of_prompts_drawn_like_the_embedded_workload(
    con: duckdb.DuckDBPyConnection, name: str, n_prompts: int
) -> None:
    """93 to 97 %, with two standard errors of what so many runs can tell."""
    error = 2 * math.sqrt(0.95 * 0.05 / count_runs(n_prompts))
    assert 0.93 - error <= find_coverage(con, DRAWS[name], n_prompts) <= 0.97 + error


def count_runs(n_prompts: int) -> int:
    """How many runs are simulated."""
    return 12_000 // n_prompts


def find_coverage(con: duckdb.DuckDBPyConnection, draws: Draws, n_prompts: int) -> float:
    """The share of runs whose interval holds the speedup of all the prompts there could be."""
    chance, speedup = random.Random(f"{draws} {n_prompts}"), draws.speedup()
    with Given(con) as given:
        for i in range(count_runs(n_prompts)):
            for k in range(n_prompts):
                tokens, ordinary, mine = draws.draw(chance)
                given.add(None, f"p{k}", [spec(ordinary, tokens, tokens - 1)], **{"class": f"c{i}"})
                given.add(("noisy", 4), f"p{k}", [spec(mine, tokens, tokens - 1)], **{"class": f"c{i}"})
    result = queries.run(con, "verdict", resamples=1)
    at = [result.columns.index(name) for name in ("class", "speedup_low", "speedup_high")]
    found = [(low, high) for class_, low, high in ([row[i] for i in at] for row in result.rows) if class_ != "all"]
    assert len(found) == count_runs(n_prompts)
    return sum(low <= speedup <= high for low, high in found) / len(found)


@pytest.mark.parametrize("n_prompts", [2, 5, 8])
def test_coverage_over_classes_that_are_fixed(con: duckdb.DuckDBPyConnection, n_prompts: int) -> None:
    """Prompts of the three embedded kinds, so many of each: 93 to 97 %, as within a class.

    Without the classes' names, which are then chance as well, the same prompts give intervals that nearly always hold:
    what they say is of prompts of any class.
    """
    error = 2 * math.sqrt(0.95 * 0.05 / N_RUNS)
    counts = dict.fromkeys(EMBEDDED, n_prompts)
    assert 0.93 - error <= find_pooled_coverage(con, counts, N_RUNS) <= 0.98 + error
    with duckdb.connect() as other:
        create_schema(other)
        queries.install_views(other)
        assert find_pooled_coverage(other, counts, N_RUNS, named=False) > 0.985


def find_pooled_coverage(
    con: duckdb.DuckDBPyConnection, counts: dict[str, int], n_runs: int, *, named: bool = True
) -> float:
    """The share of runs, each an arm, whose interval over all classes holds the speedup of all the prompts there could
    be in these proportions."""
    chance, arms = random.Random(f"{counts}"), [("noisy", 1 + i) for i in range(n_runs)]
    with Given(con) as given:
        for arm in arms:
            for name, count in counts.items():
                for k in range(count):
                    tokens, ordinary, mine = DRAWS[name].draw(chance)
                    prompt, class_ = f"{arm[1]}-{name}-{k}", {"class": name if named else None}
                    given.add(None, prompt, [spec(ordinary, tokens, tokens - 1)], **class_)
                    given.add(arm, prompt, [spec(mine, tokens, tokens - 1)], **class_)
    works = {name: DRAWS[name].average() for name in counts}
    ordinary, mine = (sum(count * works[name][at] for name, count in counts.items()) for at in (0, 1))
    result = queries.run(con, "verdict", resamples=1)
    at = [result.columns.index(name) for name in ("class", "speedup_low", "speedup_high")]
    found = [(low, high) for class_, low, high in ([row[i] for i in at] for row in result.rows) if class_ == "all"]
    assert len(found) == n_runs
    return sum(low <= ordinary / mine <= high for low, high in found) / n_runs


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


def main() -> None:
    """Print the coverage, in per cent."""
    for name, draws in DRAWS.items():
        shares = {}
        for n_prompts in (5, 8, 24):
            with duckdb.connect() as con:
                create_schema(con)
                queries.install_views(con)
                shares[n_prompts] = f"{100 * find_coverage(con, draws, n_prompts):.1f} at {n_prompts}"
        print(f"{name}: speedup {draws.speedup():.3f}; {', '.join(shares.values())}", flush=True)
    for n_prompts in (2, 5, 8, 24):
        for named in (True, False):
            with duckdb.connect() as con:
                create_schema(con)
                queries.install_views(con)
                share = find_pooled_coverage(con, dict.fromkeys(EMBEDDED, n_prompts), 2400 // n_prompts, named=named)
            kind = "classes fixed" if named else "classes by chance"
            print(f"all, {n_prompts} of each, {kind}: {100 * share:.1f}", flush=True)


if __name__ == "__main__":
    main()
