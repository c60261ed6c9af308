"""What every command that records a run does: the run's own record, a journal, a progress bar, a clean end."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from runtime.cli.ranks import Part
from runtime.cli.scraping import serving_metrics
from runtime.cli.sending import sending_spans
from runtime.environment import describe
from runtime.machine_state import read_state
from telemetry.fields import RankFinish, RunOutcome
from telemetry.journal import Journal
from telemetry.logs import bound
from telemetry.recorder import Recorder
from telemetry.records import RunEnd, RunRecord


class Runnable(Protocol):
    """An execution of a plan."""

    interrupted: bool

    def run(self) -> None:
        """Do everything, or as much as an interrupt lets it."""


Run = TypeVar("Run", bound=Runnable)


def new_run_id() -> str:
    """The id of a run that begins now; ids sort by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.urandom(3).hex()}"


def describe_start(run_id: str | None = None) -> dict[str, Any]:
    """The fields of a RunRecord that do not depend on what is run: its id, when, by which command, and where.

    run_id: of a run that has one already.
    """
    return {
        **msgspec.structs.asdict(describe()),
        "run_id": run_id or new_run_id(),
        "started_wall_ns": time.time_ns(),
        "command": _clean(shlex.join(["roundscope", *sys.argv[1:]])),
    }


def _clean(text: str) -> str:
    """`text` with what is no Unicode in it (from file names, say) replaced, so that it can be recorded."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def record_run(
    store: Path,
    run: RunRecord,
    n_generations: int,
    make: Callable[[Recorder, Callable[[], None]], Run],
    *,
    otlp: str | None = None,
    metrics_port: int | None = None,
    part: Part | None = None,
) -> Run:
    """Record `run` in `store` while the execution that `make` gives does it, and return that execution.

    make: gets the recorder, and what to call after each of `n_generations` generations. otlp, metrics_port: what
    `sending_spans` and `serving_metrics` take. part: this process's in a distributed run, whose journal is written
    then; rank 0 alone shows progress and records the run itself, which ends when all ranks have ended.
    """
    leads = part is None or part.leads
    # Drawn between generations only: a refreshing thread would take its share of the processor from timed ones.
    progress = Progress(
        TextColumn("generations"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("time left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        disable=not leads,
    )
    with (
        bound(run_id=run.run_id),
        Journal(store) if part is None else nullcontext(part.journal) as journal,
        sending_spans(otlp, store, journal.path, run.run_id),
        serving_metrics(metrics_port, store, journal.path),
        progress,
    ):
        if leads:
            journal.write(run)
        bar = progress.add_task("", total=n_generations)
        rank = None if part is None else part.group.rank

        def advance() -> None:
            progress.update(bar, advance=1, refresh=True)
            if part is not None:
                part.n_generations += 1

        recorder = Recorder(journal, run_id=run.run_id, record_text=run.record_text, rank=rank)
        execution = make(recorder, advance)
        finish: RankFinish | None = None
        outcome: RunOutcome = "error"
        try:
            execution.run()
            finish = "interrupted" if execution.interrupted else "complete"
        except KeyboardInterrupt:
            execution.interrupted = True
            finish = "interrupted"
        finally:
            try:
                if finish is not None:
                    outcome = finish if part is None else part.finish(finish)
            finally:
                if leads:
                    state = {f"{name}_end": value for name, value in asdict(read_state()).items()}
                    journal.write(RunEnd(run_id=run.run_id, outcome=outcome, ended_wall_ns=time.time_ns(), **state))
    if execution.interrupted and leads:
        click.echo("interrupted: the report is of what was measured until then", err=True)
    if journal.n_lost:
        click.echo(f"{journal.n_lost} records could not be written to {journal.path}; the figures lack them", err=True)
    return execution


def say_duration(seconds: float) -> str:
    """A duration as a plan says it."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
