"""Where the ranks of a distributed run meet, once, before anything is timed: a program of its own.

A process that joins MLX's distributed engine keeps its sockets and threads until it ends, and waits without a limit for
a rank that never comes. So a short-lived child joins in place of the process that measures, which ends it when its time
is over. It reads a request on standard input and answers on standard output, both JSON.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import mlx.core as mx

N_EXCHANGES = 8
Gather = Callable[[int], list[int]]
"""Hands a number to all ranks and gives back everybody's, in the order of the ranks; returns once all have called."""


def meet(backend: str, message: str) -> dict[str, Any]:
    """Join the group, give `message` to all ranks and get theirs, and hold the wall clock against rank 0's.

    Returns rank, size, `messages` in the order of the ranks, and `offset_ns` and `uncertainty_ns` of `compare_clocks`.
    """
    import mlx.core as mx

    group = mx.distributed.init(strict=True, backend=backend)

    def gather(number: int) -> list[int]:
        numbers: list[int] = _gather(group, mx.array([number], dtype=mx.int64))
        return numbers

    data = message.encode()
    lengths = gather(len(data))
    padded = data.ljust(max(lengths), b"\0")
    rows = _gather(group, mx.array([list(padded)], dtype=mx.uint8))
    messages = [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]
    offset, uncertainty = compare_clocks(gather)
    return {
        "rank": group.rank(),
        "size": group.size(),
        "messages": messages,
        "offset_ns": offset if group.rank() else 0,
        "uncertainty_ns": uncertainty if group.rank() else 0,
    }


def _gather(group: mx.distributed.Group, array: mx.array) -> Any:
    import mlx.core as mx

    # The engine works on the processor; a copy through a GPU would be part of the round trip.
    return mx.distributed.all_gather(array, group=group, stream=mx.cpu).tolist()


def compare_clocks(
    gather: Gather, now: Callable[[], int] = time.time_ns, n_exchanges: int = N_EXCHANGES
) -> tuple[int, int]:
    """Nanoseconds by which this rank's clock is ahead of rank 0's, and by how much that may be wrong.

    Cristian's method ("Probabilistic clock synchronization", Distributed Computing 3, 1989) with collectives only: rank
    0 reads its clock after a gathering that ended no earlier than this rank joined it, and hands the reading out in the
    next. So the reading was taken between two of this rank's own, however long either way took; the exchange in which
    these lie closest together tells most.
    """
    best: tuple[int, int] | None = None
    for _ in range(n_exchanges):
        before = now()
        gather(0)
        reading = gather(now())[0]
        after = now()
        width = after - before
        if best is None or width < best[1]:
            best = (before + width // 2 - reading, width)
    assert best is not None
    offset, width = best
    return offset, width - width // 2


def main() -> None:
    """Answer the request on standard input: `backend`, `message`, and `seconds` after which this process ends."""
    request = json.load(sys.stdin)
    # Should the parent die meanwhile: a collective that waits is in no Python code, where a handler would run.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(request["seconds"]) + 1)
    json.dump(meet(request["backend"], request["message"]), sys.stdout)


if __name__ == "__main__":
    main()
