"""The page about a run of the generator, over rows of simulated times without noise."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
from rich.console import Console

from dashboards.report import render_ncm, render_report
from tests.queries.simulate_ncm import NcmSimulation, fill

Show = Callable[[Callable[[Console], None]], str]


def test_report(con: duckdb.DuckDBPyConnection, show: Show) -> None:
    NcmSimulation(n_batches=8, noise=0.0, prefix_length=81, lengths=(1, 9, 81), solve_rate=0.6).fill(con)
    page = show(lambda console: render_report(con, "run-1", console, store="my store"))
    assert page == (
        """\
run       run-1, 2023-11-14 22:13 UTC, complete
model     scripted, float32, 0 MB of weights
machine   a cpu, 2 cores, Linux x86_64, load unknown before, unknown after
MLX       0 on cpu, BLAS openblas, 2 threads
workload  generated, 16 samples, arms cache, no-cache, cache exit, no-cache
          exit, repeats 1
timing    fused, seed 0

The prefix cache of scripted pays: 1.87 times as fast as uncached (speedup 1.87,
95 % interval 1.87 to 1.87, 7 batches), 3.73 ms a generation instead of 6.97 ms.
All 7 pairs have the same codes.
In each layer and for a sample it processed 172 instead of 334 positions and
allowed 20,575 instead of 33,697 pairs a head; the shapes computed 20,575
instead of 41,068.
The cache held 0.02 MB of the prefix (by the formula 0.02 MB), beside the room
for a level; peak memory 4.8 MB instead of 3.1 MB.

By level, from 2 attributed pairs; positions are those of a layer and sample:
          ms       ms         positions positions
level cached uncached speedup    cached  uncached
    0   1.67     1.67    1.00        82        82
    1   0.21     1.83    8.71         9        90
    2   1.65     3.27    1.98        81       162

cache solved 8 of 14 (57.1%), 3.73 ms a generation, 3.26 ms a solved sample.
cache exit solved 14 of 14 (100.0%), 2.71 ms a generation, 1.35 ms a solved
sample.
no-cache solved 8 of 14 (57.1%), 6.97 ms a generation, 6.10 ms a solved sample.
no-cache exit solved 14 of 14 (100.0%), 4.33 ms a generation, 2.16 ms a solved
sample.

cache exit pays: 2.41 times as fast as cache (speedup 2.41, 95 % interval 1.40
to 4.15, 7 batches), 1.35 ms a solved sample instead of 3.26 ms; solved 100.0%
instead of 57.1%, with 2.0 levels a sample instead of 3.0. Mind that the exit
changes which outputs are selected.

cache exit pays: 4.50 times as fast as no-cache (speedup 4.50, 95 % interval
2.61 to 7.76, 7 batches), 1.35 ms a solved sample instead of 6.10 ms; solved
100.0% instead of 57.1%, with 2.0 levels a sample instead of 3.0. Mind that the
exit changes which outputs are selected.

no-cache exit pays: 2.82 times as fast as no-cache (speedup 2.82, 95 % interval
1.60 to 4.96, 7 batches), 2.16 ms a solved sample instead of 6.10 ms; solved
100.0% instead of 57.1%, with 2.0 levels a sample instead of 3.0. Mind that the
exit changes which outputs are selected.

Recorded: 40 generations (4 for warm-up) with 114 levels.
Codes: 18 of 18, the 4 of the stage timing among them, are the uncached
generator's.

Next:
  roundscope report ncm_cache --run run-1 --store 'my store'
  roundscope report ncm_exit --run run-1 --store 'my store'
  roundscope report completeness --run run-1 --store 'my store'
"""
    )


def test_what_differs_or_was_not_solved_is_said(con: duckdb.DuckDBPyConnection, show: Show) -> None:
    simulation = NcmSimulation(n_batches=8, noise=0.0, solve_rate=0.0, leave_rate=0.0)
    generations, levels = simulation.rows()
    for generation in generations:
        if generation["equal"] and generation["exit"] == "none":
            near = generation["batch_id"] == "b3"
            generation |= {"codes_digest": "other", "equal": False, "near_tie": near}
    fill(con, simulation.run_row(), generations, levels)
    page = show(lambda console: render_ncm(con, "run-1", console))
    assert page == (
        """\
The prefix cache of scripted pays: 1.38 times as fast as uncached (speedup 1.38,
95 % interval 1.38 to 1.38, 7 batches), 530 us a generation instead of 730 us. 7
of 7 have other codes.
In each layer and for a sample it processed 12 instead of 22 positions and
allowed 81 instead of 131 pairs a head; the shapes computed 81 instead of 166.
The cache held 0.00 MB of the prefix (by the formula 0.00 MB), beside the room
for a level; peak memory 4.8 MB instead of 3.1 MB.

By level, from 2 attributed pairs; positions are those of a layer and sample:
          ms       ms         positions positions
level cached uncached speedup    cached  uncached
    0   0.15     0.15    1.00         6         6
    1   0.07     0.17    2.43         2         7
    2   0.11     0.21    1.91         4         9

cache solved 0 of 14 (0.0%), 530 us a generation.
cache exit solved 0 of 14 (0.0%), 830 us a generation.
no-cache solved 0 of 14 (0.0%), 730 us a generation.
no-cache exit solved 0 of 14 (0.0%), 1.03 ms a generation.

cache exit has no verdict against cache; solved 0.0% instead of 0.0%, with 3.0
levels a sample instead of 3.0. No time per solved sample where none was solved.
Mind that the exit changes which outputs are selected.

cache exit has no verdict against no-cache; solved 0.0% instead of 0.0%, with
3.0 levels a sample instead of 3.0. No time per solved sample where none was
solved. Mind that the exit changes which outputs are selected.

no-cache exit has no verdict against no-cache; solved 0.0% instead of 0.0%, with
3.0 levels a sample instead of 3.0. No time per solved sample where none was
solved. Mind that the exit changes which outputs are selected.

Recorded: 40 generations (4 for warm-up) with 120 levels.
Codes: 9 of 18, the 4 of the stage timing among them, are the uncached
generator's; 1 differ from a near tie on, which rounding explains.
Codes: 8 differ from the uncached generator's, and at no near tie: a fault.
"""
    )


def test_a_run_of_one_arm_has_nothing_to_compare(con: duckdb.DuckDBPyConnection, show: Show) -> None:
    NcmSimulation(arms=((True, "none"),), n_attributed=0).fill(con)
    page = show(lambda console: render_ncm(con, "run-1", console))
    assert page == (
        """\
cache solved 7 of 10 (70.0%), 530 us a generation, 378 us a solved sample.

Recorded: 6 generations (1 for warm-up) with 18 levels.
Codes: 5 of 5 are the uncached generator's.
"""
    )


def test_what_could_not_be_paired_is_said(con: duckdb.DuckDBPyConnection, show: Show) -> None:
    NcmSimulation(arms=((True, "none"), (False, "none")), n_batches=1, n_attributed=2).fill(con)
    page = " ".join(show(lambda console: render_ncm(con, "run-1", console)).split())
    assert page.startswith(
        "The prefix cache of scripted has no verdict against uncached. No verdict under 5 batches that were completed "
        "fused, cached and uncached, here 0. By level, "
    )


def test_arms_with_the_exit_alone_are_told_and_listed(con: duckdb.DuckDBPyConnection, show: Show) -> None:
    NcmSimulation(arms=((True, "verified"),), n_batches=1, n_attributed=3, noise=0.0).fill(con)
    page = show(lambda console: render_report(con, "run-1", console))
    assert "\ntiming    fused, seed 0\n\ncache exit has no figures. No generation was completed fused.\n\n" in page
    following = ("ncm_exit", "completeness")
    assert page.endswith("\nNext:\n" + "".join(f"  roundscope report {name} --run run-1\n" for name in following))


def test_an_arm_that_nobody_checked_has_a_time(con: duckdb.DuckDBPyConnection, show: Show) -> None:
    simulation = NcmSimulation(arms=((False, "none"),), noise=0.0)
    generations, levels = simulation.rows()
    fill(con, simulation.run_row(), [generation | {"n_solved": None} for generation in generations], levels)
    page = show(lambda console: render_ncm(con, "run-1", console))
    assert page.startswith("no-cache was not checked, 730 us a generation.\n")
