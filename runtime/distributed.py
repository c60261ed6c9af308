"""A run shared among processes that MLX's launcher started: who takes part, what they agree on, who does which prompts.

Nothing here is done unless the launcher's variables are in the environment. The ranks meet once (`runtime.rendezvous`):
rank 0 hands the run's context to the others, and every rank's clock is held against its own. From then on they do not
talk, because a rank that waits in a collective spins, and takes its share of the processor from one that measures: each
writes its journal, and rank 0 watches those (`telemetry.ranks`).
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from telemetry import roundscope_version
from telemetry.errors import RoundscopeError, UsageError
from telemetry.sidecar import child_environment

if TYPE_CHECKING:
    from runtime.workloads import WorkItem

JOIN_PATIENCE_S = 60.0
"""How long a rank waits for the others to come."""

_VARIABLES = {
    "jaccl": ("MLX_RANK", "MLX_JACCL_COORDINATOR", "MLX_IBV_DEVICES"),
    "nccl": ("MLX_RANK", "MLX_WORLD_SIZE", "NCCL_HOST_IP"),
    "ring": ("MLX_RANK", "MLX_HOSTFILE"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
}
"""What `mlx.launch` sets for each backend: first the rank."""


@dataclass(frozen=True)
class Launch:
    """What the launcher's variables say. The group's size is known once the ranks have met."""

    rank: int
    backend: str


@dataclass(frozen=True)
class Context:
    """What rank 0 hands to the others. traceparent: the context, in W3C's form, that every generation links to."""

    run_id: str
    seed: int
    traceparent: str


@dataclass(frozen=True)
class Group:
    """The ranks after they have met, from one of them.

    hosts: every rank's, in their order. offset_ns: this rank's wall clock less rank 0's, give or take uncertainty_ns.
    """

    rank: int
    backend: str
    hosts: tuple[str, ...]
    context: Context
    offset_ns: int
    uncertainty_ns: int

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.hosts)


def find_launch(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """What the launcher says of this process; None if none started it, or it is alone.

    Raises UsageError if the variables cannot be read.
    """
    for backend, names in _VARIABLES.items():
        if all(environment.get(name) for name in names):
            text = environment[names[0]]
            if not text.isdecimal():
                raise UsageError(f"{names[0]} is {text!r}; it must be the rank of this process, from 0")
            return None if _is_alone(backend, environment) else Launch(int(text), backend)
    return None


def _is_alone(backend: str, environment: Mapping[str, str]) -> bool:
    if backend == "ring":
        path = environment["MLX_HOSTFILE"]
        try:
            # The launcher names no hosts to a single process.
            return not Path(path).read_text().strip()
        except OSError as error:
            raise UsageError(f"MLX_HOSTFILE names {path}, which cannot be read: {error.strerror}") from error
    sizes = {"nccl": "MLX_WORLD_SIZE", "mpi": "OMPI_COMM_WORLD_SIZE"}
    return backend in sizes and environment[sizes[backend]] == "1"


def digest_request(workload_digest: str, **request: Any) -> str:
    """A checksum of what all ranks have to be asked for alike; the version of roundscope is in it."""
    return hashlib.sha256(json.dumps([roundscope_version(), workload_digest, request]).encode()).hexdigest()


def join(launch: Launch, context: Context, digest: str, *, patience_s: float = JOIN_PATIENCE_S) -> Group:
    """Meet the other ranks; the group's context is the one that rank 0 brought.

    Raises RoundscopeError if they do not come within `patience_s` seconds, UsageError if a rank's `digest` is another
    than rank 0's: every rank raises it then.
    """
    own = {"host": socket.gethostname(), "digest": digest, "context": asdict(context)}
    met = _meet(launch, json.dumps(own), patience_s)
    said = [json.loads(message) for message in met["messages"]]
    others = [str(rank) for rank, one in enumerate(said) if one["digest"] != said[0]["digest"]]
    if others:
        raise UsageError(
            f"rank {' and '.join(others)} was started with other prompts or options, or another version of roundscope, "
            "than rank 0: start all ranks with the same command line"
        )
    return Group(
        rank=met["rank"],
        backend=launch.backend,
        hosts=tuple(one["host"] for one in said),
        context=Context(**said[0]["context"]),
        offset_ns=met["offset_ns"],
        uncertainty_ns=met["uncertainty_ns"],
    )


def _meet(launch: Launch, message: str, patience_s: float) -> dict[str, Any]:
    request = json.dumps({"backend": launch.backend, "message": message, "seconds": patience_s})
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "runtime.rendezvous"],
            input=request,
            capture_output=True,
            text=True,
            timeout=patience_s,
            env=child_environment(),
        )
    except subprocess.TimeoutExpired:
        raise RoundscopeError(
            f"the other ranks did not come within {patience_s:.0f} s (backend {launch.backend}): one of them has ended "
            "early, or was not started, or cannot be reached from here; see what the others say"
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RoundscopeError(f"cannot join the other ranks by MLX's backend {launch.backend}: {reason}")
    met: dict[str, Any] = json.loads(done.stdout)
    return met


def share_out(items: Sequence[WorkItem], rank: int, size: int) -> tuple[WorkItem, ...]:
    """The items that fall to a rank: every one to exactly one rank, and every class spread over the ranks evenly.

    An item is done by all arms on its rank, so that what is compared was measured on one machine. Raises UsageError if
    a rank would be left with nothing.
    """
    if size > len(items):
        raise UsageError(f"there are {size} ranks and {len(items)} prompts: start {len(items)} at most")
    classes = list(dict.fromkeys(item.class_ for item in items))
    ordered = sorted(items, key=lambda item: classes.index(item.class_))
    return tuple(ordered[rank::size])
