"""The report's whole text over rows written down by hand."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
from rich.console import Console

from dashboards.report import render_report, render_verdict
from tests.queries.given import Given, spec, step

Show = Callable[[Callable[[Console], None]], str]
LOOKUP = ("prompt-lookup", 4)


def give_two_arms(con: duckdb.DuckDBPyConnection) -> None:
    """An arm that pays on one of two classes, one that never proposes anything, and a generation that was killed."""
    with Given(con) as given:
        for i in range(10):
            class_ = {"class": ("copy", "write")[i % 2]}
            given.add(None, f"p{i}", [step(10 + 0.1 * (7 * i % 10))] * 10, **class_)
            for timing in ("fused", "attributed"):
                copied = [spec(14, 4, 4, draft=1)] * 2 if i % 2 == 0 else [spec(14, 4, 0, draft=1)] * 10
                given.add(LOOKUP, f"p{i}", copied, timing=timing, equal=True, **class_)
                silent = [spec(12, 0, 0, requested=4)] * 10
                given.add(("[odd]", 4), f"p{i}", silent, timing=timing, equal=i > 0, near_tie=False, **class_)
        given.add(LOOKUP, "p9", [], finish_reason="aborted", n_rounds=None, repeat=1)


def test_report(con: duckdb.DuckDBPyConnection, show: Show) -> None:
    give_two_arms(con)
    con.execute("update rounds set proposer = 'ar' where accepted = 4")
    con.execute("update runs set load1 = 0.5, blas_version = '0.3.30', precision = map {'MLX_ENABLE_TF32': '0'}")
    assert show(lambda console: render_report(con, "run-1", console, store="my store")) == (
        """\
run       run-1, 2023-11-14 22:13 UTC, complete
model     scripted, float32, 0 MB of weights
machine   a cpu, 2 cores, Linux x86_64, load 0.50 before, unknown after
MLX       0 on cpu, BLAS openblas 0.3.30, 2 threads, MLX_ENABLE_TF32=0
workload  simulated, 18 prompts, 40 tokens at most, repeats 1
timing    fused, seed 0

[odd] m=4 loses: 1.15 times as slow as ordinary decoding (speedup 0.87, 95 %
interval 0.85 to 0.89, 10 prompts), 12.0 ms a token instead of 10.4 ms. Asked to
speculate, but nothing was ever proposed; 2 of 20 outputs differ from ordinary
decoding beyond a near tie.
                         95 %       ms a accepted
class  n verdict speedup interval  token  a round limited by
copy   5 loses      0.87 0.83-0.90 12.00     0.00 nothing proposed
write  5 loses      0.88 0.84-0.91 12.00     0.00 nothing proposed
all   10 loses      0.87 0.85-0.89 12.00     0.00 nothing proposed

prompt-lookup m=4 pays: 1.24 times as fast as ordinary decoding (speedup 1.24,
95 % interval 1.22 to 1.27, 10 prompts), 8.40 ms a token instead of 10.4 ms. It
pays on copy; loses on write.
                         95 %       ms a accepted
class  n verdict speedup interval  token  a round limited by
copy   5 pays       3.71 3.58-3.86  2.80     4.00 verification
write  5 loses      0.75 0.72-0.78 14.00     0.00 acceptance
all   10 pays       1.24 1.22-1.27  8.40     0.67 acceptance
Break-even: it commits 1.67 tokens a round and needs 1.34; a round takes 14.0 ms
and may take 17.4 ms; drafting takes 1.00 ms and may take 4.42 ms.

Draft length: [odd] was not forecast: it proposes by more than the history, or
the run ended before forecasts were made; every draft length has to be run.
Draft length: prompt-lookup was not forecast: it proposes by more than the
history, or the run ended before forecasts were made; every draft length has to
be run.

prompt-lookup m=4: rounds in which each part proposed: ar 10.

Recorded: 51 generations with 420 rounds.
Generations left out of the figures: 1 aborted: the process died.
Outputs: 38 of 40, the 20 of the stage timing among them, are ordinary
decoding's, token for token.
Outputs: 2 differ from ordinary decoding's, and at no near tie: a fault.

Switch on prompt-lookup m=4: 1.24 times as fast as ordinary decoding, at least
1.22 times.

Next:
  roundscope report stages --run run-1 --store 'my store'
  roundscope report survival --run run-1 --store 'my store'
  roundscope report seconds_per_token --run run-1 --store 'my store'
"""
    )


def test_a_run_without_drafters_says_so(con: duckdb.DuckDBPyConnection, show: Show) -> None:
    with Given(con) as given:
        given.add(None, "p0", [step(10)] * 10, warm_up=True)
        given.add(None, "p1", [step(10)] * 10, finish_reason="running", n_rounds=None)
    assert show(lambda console: render_verdict(con, "run-1", console)) == (
        "No drafter was measured in this run, so there is nothing to compare ordinary\n"
        "decoding with.\n"
        "Recorded: 2 generations (1 for warm-up) with 20 rounds.\n"
        "Still running: 1 generation; the figures are those of what has ended.\n"
    )


def test_without_a_verdict_the_reason_is_given(con: duckdb.DuckDBPyConnection, show: Show) -> None:
    with Given(con) as given:
        given.add(LOOKUP, "p0", [spec(10, 4, 4)])
    assert show(lambda console: render_verdict(con, "run-1", console)) == (
        """\
prompt-lookup m=4 has no verdict. No verdict under 5 prompts that both arms
completed, here 0.
                        95 %      ms a accepted
class n verdict speedup interval token  a round limited by
copy  0 -             - -            -        - -
all   0 -             - -            -        - -

Recorded: 1 generation with 1 round.
"""
    )
