"""A process's part in a distributed run: its journal, what it leaves of itself there, rank 0's wait for the others."""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runtime.cores import free_cores
from runtime.distributed import Context, Group, Launch, digest_request, join, share_out
from runtime.experiment.signals import catch_signals
from telemetry.context import VARIABLE, Caller, find_caller
from telemetry.errors import CheckFailed, RoundscopeError
from telemetry.fields import RankFinish, RunOutcome
from telemetry.journal import Journal
from telemetry.logs import bound
from telemetry.ranks import Ranks
from telemetry.records import RankEnd, RankRecord
from telemetry.span_data import derive_span_id, derive_trace_id

if TYPE_CHECKING:
    from runtime.experiment.plan import Request
    from runtime.workloads import WorkItem, Workload

THREAD_VARIABLES = ("ROUNDSCOPE_BLAS_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
"""Where a user may have said how many threads BLAS is to use."""

GRACE_S = 15.0
"""How long an interrupted rank 0 waits for the others, who were probably interrupted too, to end their rounds."""


@dataclass
class Part:
    """What this process does of a distributed run, and the journal it writes. items: the prompts that fall to it."""

    group: Group
    journal: Journal
    store: Path
    items: tuple[WorkItem, ...]
    n_generations: int = 0
    interrupted: bool = False
    _has_ended: bool = False
    _deadline: float = math.inf

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which reports."""
        return self.group.rank == 0

    def finish(self, finish: RankFinish) -> RunOutcome:
        """Record how this rank ended, and on rank 0 wait for the others; the outcome of the whole run, there."""
        self.end(finish)
        return self._await_others(finish) if self.leads else finish

    def end(self, finish: RankFinish, error: BaseException | None = None) -> None:
        """Record once how this rank ended."""
        if self._has_ended:
            return
        self._has_ended = True
        self.journal.write(
            RankEnd(
                run_id=self.group.context.run_id,
                rank=self.group.rank,
                finish_reason=finish,
                error_type=None if error is None else type(error).__name__,
                n_generations=self.n_generations,
                ended_wall_ns=time.time_ns(),
            )
        )

    def _await_others(self, finish: RankFinish) -> RunOutcome:
        """Wait for the others.

        Some time after Ctrl-C or SIGTERM what is open is taken as it stands, and so it is at the end of patience
        (`telemetry.ranks`).
        """
        ranks = Ranks(self.store, self.group.context.run_id, range(1, self.group.size))
        if finish == "complete":
            click.echo(f"this rank has ended; waiting for {self.group.size - 1} more", err=True)
        else:
            self.interrupt()
        with catch_signals(self):
            states = ranks.wait(is_over=lambda: time.monotonic() >= self._deadline)
        whole = all(state == "complete" for state in states.values())
        return "incomplete" if finish == "complete" and not whole else finish

    def interrupt(self) -> None:
        """Wait a little longer only."""
        self.interrupted = True
        self._deadline = time.monotonic() + GRACE_S


def make_context(run_id: str, seed: int) -> Context:
    """What rank 0 hands out. Where nobody called with a trace context, one is derived from the run's id."""
    caller = find_caller() or Caller(derive_trace_id(run_id), derive_span_id(run_id), True)
    return Context(run_id, seed, caller.traceparent)


def digest(request: Request, workload: Workload) -> str:
    """A checksum of what all ranks have to be asked for alike. Models may lie elsewhere on another machine."""
    asked = asdict(replace(request, draft_model=None, seed=0))
    return digest_request(workload.digest, **asked)


@contextmanager
def taking_part(
    launch: Launch, store: Path, context: Context, digest: str, items: Sequence[WorkItem]
) -> Iterator[Part]:
    """Meet the other ranks and open this one's journal in `store`; what ends the block is recorded as this rank's end.

    context: what this process hands out if it is rank 0. digest: see `join`. items: the whole workload's. From here on
    SIGTERM, which the launcher sends when another rank has failed, is taken as Ctrl-C is, and what is raised says which
    rank it comes from. Raises what `join` and `share_out` do.
    """
    with _terminating_as_interrupt(), _naming(launch.rank):
        group = join(launch, context, digest)
        share = share_out(items, group.rank, group.size)
        os.environ[VARIABLE] = group.context.traceparent
        _share_cores(group)
        with bound(rank=group.rank), Journal(store) as journal:
            journal.write(_describe(group, len(share)))
            part = Part(group, journal, store, share)
            try:
                yield part
            except KeyboardInterrupt:
                part.end("interrupted")
                raise
            except BaseException as error:
                part.end("error", error)
                raise


def _share_cores(group: Group) -> None:
    """Ranks of one machine would each take all its cores for BLAS, whose threads wait by spinning."""
    n_here = group.hosts.count(group.hosts[group.rank])
    if n_here > 1 and not any(os.environ.get(name) for name in THREAD_VARIABLES):
        os.environ[THREAD_VARIABLES[0]] = str(max(1, free_cores() // n_here))


def _describe(group: Group, n_prompts: int) -> RankRecord:
    return RankRecord(
        run_id=group.context.run_id,
        rank=group.rank,
        size=group.size,
        host=socket.gethostname(),
        pid=os.getpid(),
        backend=group.backend,
        n_prompts=n_prompts,
        started_wall_ns=time.time_ns(),
        offset_ns=group.offset_ns,
        uncertainty_ns=group.uncertainty_ns,
    )


@contextmanager
def _terminating_as_interrupt() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _naming(rank: int) -> Iterator[None]:
    """All ranks may write to one terminal."""
    try:
        yield
    except RoundscopeError as error:
        raise type(error)(f"rank {rank} on {socket.gethostname()}: {error}") from error


@contextmanager
def undisturbed() -> Iterator[None]:
    """While rank 0 reports, a launcher that ends what is left of a failed run does not end the report."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_ranks(store: Path, run_id: str) -> None:
    """After the report: CheckFailed if any rank had outputs that are not ordinary decoding's, RoundscopeError if a rank
    is missing.
    """
    from dashboards.report.ranks import say_missing
    from dashboards.report.rows import POOLED, fetch
    from queries import install_views
    from telemetry.store import connect

    with connect(store, prepare=install_views) as connected:
        arms = [row for row in fetch(connected.con, "completeness", run_id) if row["class"] == POOLED != row["arm"]]
        missing = say_missing(fetch(connected.con, "ranks", run_id))
    if told := ", ".join(f"{row['arm']} in {row['n_divergent']}" for row in arms if row["n_divergent"]):
        raise CheckFailed(f"outputs differ from ordinary decoding's, and at no near tie: {told}")
    if missing:
        raise RoundscopeError(f"the run is incomplete: {missing}")
