"""What every command that records a run does: the run's own record, a journal, a progress bar, a clean end."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from runtime.cli.scraping import serving_metrics
from runtime.cli.sending import sending_spans
from runtime.environment import describe
from runtime.machine_state import read_state
from telemetry.journal import Journal
from telemetry.logs import bound
from telemetry.recorder import Recorder
from telemetry.records import RunEnd, RunOutcome, RunRecord


class Runnable(Protocol):
    """An execution of a plan."""

    interrupted: bool

    def run(self) -> None:
        """Do everything, or as much as an interrupt lets it."""


Run = TypeVar("Run", bound=Runnable)


def describe_start() -> dict[str, Any]:
    """The fields of a RunRecord that do not depend on what is run: its id, when, by which command, and where."""
    return {
        **msgspec.structs.asdict(describe()),
        "run_id": f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.urandom(3).hex()}",
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
) -> Run:
    """Record `run` in `store` while the execution that `make` gives does it, and return that execution.

    make: gets the recorder, and what to call after each of `n_generations` generations. otlp, metrics_port: what
    `sending_spans` and `serving_metrics` take.
    """
    # Drawn between generations only: a refreshing thread would take its share of the processor from timed ones.
    progress = Progress(
        TextColumn("generations"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("time left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
    )
    with (
        bound(run_id=run.run_id),
        Journal(store) as journal,
        sending_spans(otlp, store, journal.path, run.run_id),
        serving_metrics(metrics_port, store, journal.path),
        progress,
    ):
        journal.write(run)
        bar = progress.add_task("", total=n_generations)
        recorder = Recorder(journal, run_id=run.run_id, record_text=run.record_text)
        execution = make(recorder, lambda: progress.update(bar, advance=1, refresh=True))
        outcome: RunOutcome = "error"
        try:
            execution.run()
            outcome = "interrupted" if execution.interrupted else "complete"
        except KeyboardInterrupt:
            execution.interrupted = True
            outcome = "interrupted"
        finally:
            state = {f"{name}_end": value for name, value in asdict(read_state()).items()}
            journal.write(RunEnd(run_id=run.run_id, outcome=outcome, ended_wall_ns=time.time_ns(), **state))
    if execution.interrupted:
        click.echo("interrupted: the report is of what was measured until then", err=True)
    if journal.n_lost:
        click.echo(f"{journal.n_lost} records could not be written to {journal.path}; the figures lack them", err=True)
    return execution


def say_duration(seconds: float) -> str:
    """A duration as a plan says it."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
