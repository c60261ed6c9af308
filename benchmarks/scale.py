"""Journals of any number of rounds, the same every time, and what loading and querying them takes.

`python -m benchmarks.scale ROUNDS [FOLDER]` loads that many and runs every query: docs/scale.md has what it printed.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from telemetry.journal import Journal
from telemetry.records import ComparisonRecord, GenerationEnd, GenerationRecord, Record, RoundRecord, RunEnd, RunRecord
from tests.queries.simulate import Arm, Simulation

ROUNDS_A_RUN = 1_000_000
ROUNDS_A_GENERATION = 100
PROMPTS_A_CLASS = 48
CLASSES = ("answer", "copy", "edit", "extract", "list", "rewrite", "translate", "write")
ARMS = (Arm(), Arm("prompt-lookup", 4, rate=0.6), Arm("prompt-lookup", 8, rate=0.6), Arm("assistant", 4, rate=0.8))
LOADED = 2_000_000
GOAL = 500_000
STEP_NS = 50_000_000


def run_loading() -> bool:
    """Print rounds a second into an empty database; True if that reaches the goal."""
    from telemetry.store import load

    with tempfile.TemporaryDirectory() as folder:
        write_rounds(Path(folder), LOADED)
        os.sync()
        start, worked = time.perf_counter(), time.process_time()
        load(Path(folder))
        pace = LOADED / (time.perf_counter() - start)
        work = (time.process_time() - worked) / LOADED
    print(f"  loading: {pace:,.0f} rounds/s, {LOADED:,} rounds, {1e6 * work:.2f} us of CPU each; goal {GOAL:,}")
    return pace >= GOAL


def write_rounds(store: Path, n: int) -> None:
    """Journals of runs with `n` rounds in all, a journal a run, ROUNDS_A_RUN rounds each."""
    for first in range(0, n, ROUNDS_A_RUN):
        with Journal(store) as journal:
            for record in make_run(first // ROUNDS_A_RUN, min(ROUNDS_A_RUN, n - first)):
                journal.write(record)


def make_run(number: int, n_rounds: int) -> Iterator[Record]:
    """A run of generations of ROUNDS_A_GENERATION rounds, by every arm on every prompt in turn."""
    chance = random.Random(number)
    run_id = f"run-{number:04}"
    started = 1_700_000_000_000_000_000 + number * 3_600_000_000_000
    row = Simulation(run_id=run_id, classes=CLASSES, n_prompts=PROMPTS_A_CLASS, arms=ARMS).run_row()
    row |= {"started_wall_ns": started, "ended_wall_ns": started + 3_000_000_000_000, "max_tokens": 2000}
    yield msgspec.convert(row, RunRecord)
    n_generations = -(-n_rounds // ROUNDS_A_GENERATION)
    for i in range(n_generations):
        arm = ARMS[i % len(ARMS)]
        prompt = i // len(ARMS) % (len(CLASSES) * PROMPTS_A_CLASS)
        repeat = i // len(ARMS) // (len(CLASSES) * PROMPTS_A_CLASS)
        generation_id = f"{number:08x}{chance.getrandbits(96):024x}"
        yield GenerationRecord(
            generation_id=generation_id,
            run_id=run_id,
            arm=arm.name,
            drafter=arm.drafter,
            draft_length=arm.draft_length,
            pipelined=arm.drafter is None,
            timing="attributed" if repeat % 2 else "fused",
            model="scripted",
            prompt_id=f"p{prompt}",
            class_=CLASSES[prompt % len(CLASSES)],
            repeat=repeat // 2,
            sequence=i,
            warm_up=False,
            prompt_tokens=20,
            cached_tokens=0,
            max_tokens=2000,
            n_processors=0,
            started_wall_ns=started + i * 1_000_000,
            started_monotonic_ns=i * 1_000_000,
        )
        n = min(ROUNDS_A_GENERATION, n_rounds - i * ROUNDS_A_GENERATION)
        committed = decode = 0
        for one in _make_rounds(generation_id, n, arm, chance, attributed=bool(repeat % 2)):
            committed += one.committed
            decode += one.t_round_ns
            yield one
        yield GenerationEnd(
            generation_id=generation_id,
            finish_reason="length",
            n_rounds=n,
            n_committed=committed,
            prefill_ns=3 * STEP_NS,
            decode_ns=decode,
            unaccounted_ns=0,
            consumer_ns=0,
            ttft_ns=4 * STEP_NS,
            total_ns=decode + 3 * STEP_NS,
            peak_memory_bytes=1_000_000,
            cache_bytes=100_000,
            snapshot_bytes=0,
        )
        if arm.drafter:
            yield ComparisonRecord(generation_id=generation_id, pair_id="0" * 32, equal=True)
    yield msgspec.convert(row, RunEnd)


def _make_rounds(
    generation_id: str, n: int, arm: Arm, chance: random.Random, *, attributed: bool
) -> Iterator[RoundRecord]:
    draw, start, m = chance.random, 0, arm.draft_length
    spent = "barrier" if attributed else "host_launch"
    waited = "barrier" if attributed else "host_wait"
    for index in range(n):
        accepted = 0
        while accepted < m and draw() < arm.rate:
            accepted += 1
        verify = int(STEP_NS * (0.95 + 0.1 * draw()) * (1 + 0.05 * m))
        drafting = 200_000 * m
        yield RoundRecord(
            generation_id,
            index,
            start,
            drafting + verify + 20_000,
            m,
            m,
            accepted,
            accepted + 1,
            0,
            "step" if not m else "bonus" if accepted == m else "correction",
            m + 1,
            0,
            1,
            20 + index,
            "trim" if accepted < m else "none",
            0,
            "none",
            drafting,
            verify // 50,
            verify - verify // 50,
            1_000 if accepted < m else 0,
            0,
            "host" if m else None,
            spent,
            waited,
            "host" if accepted < m else None,
        )
        start += drafting + verify + 25_000


def measure(store: Path, n_rounds: int) -> None:
    """Print what writing, loading, every query and archiving take, each in a process of its own."""
    start = time.perf_counter()
    write_rounds(store, n_rounds)
    os.sync()
    print(f"wrote {n_rounds:,} rounds in {time.perf_counter() - start:.1f} s", flush=True)
    import queries

    for source in ("database", "archive"):
        for step in ("load", *queries.names()) if source == "database" else ("archive", *queries.names()):
            subprocess.run([sys.executable, "-m", __spec__.name, "--step", str(store), source, step], check=True)


def measure_step(store: Path, source: str, step: str) -> None:
    """Print seconds and the most memory that this process took."""
    from datetime import date

    import queries
    from telemetry.archiving import archive_before
    from telemetry.store import connect, connect_archive, load

    start = time.perf_counter()
    if step == "load":
        load(store, queries.install_views)
    elif step == "archive":
        archive_before(store, date(2100, 1, 1))
    else:
        with (connect if source == "database" else connect_archive)(store, queries.install_views) as connected:
            opened = time.perf_counter()
            rows = queries.run(connected.con, step).rows
            seconds = time.perf_counter() - opened
            print(f"{source:<9} {step:<22} {seconds:8.2f} s, {_peak_mb():6,.0f} MB, {len(rows):,} rows", flush=True)
            return
    print(f"{source:<9} {step:<22} {time.perf_counter() - start:8.2f} s, {_peak_mb():6,.0f} MB", flush=True)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1 << 20)


def main(arguments: list[str]) -> None:
    """ROUNDS [FOLDER]; the folder is kept."""
    if arguments[0] == "--step":
        measure_step(Path(arguments[1]), arguments[2], arguments[3])
    elif len(arguments) > 1:
        measure(Path(arguments[1]), int(arguments[0]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), int(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
