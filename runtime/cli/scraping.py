"""The option --metrics-port, and the process that serves a run's metrics while it is going on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

metrics_port_option = click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="P",
    help="Serve this run's metrics to Prometheus at 127.0.0.1:P while it goes on; 0: a free port.",
)


def check_metrics_port(port: int | None) -> None:
    """Raise RoundscopeError if nothing can listen at `port`. None: nothing is to."""
    if port is not None:
        from telemetry.serving import LOOPBACK, check_port

        check_port(LOOPBACK, port)


@contextmanager
def serving_metrics(port: int | None, store: Path, journal: Path) -> Iterator[None]:
    """Let a process of its own serve the metrics of `journal` while the block runs; None: none is started.

    Raises RoundscopeError if it cannot begin; nothing that happens to it later reaches the block.
    """
    if port is None:
        yield
        return
    from telemetry.logs import get_logger
    from telemetry.serving import LOOPBACK, follow
    from telemetry.sidecar import running

    endpoint = follow(store, journal, LOOPBACK, port)
    get_logger().info("metrics.serving", address=endpoint.ready["address"], until="the run has ended")
    with running(endpoint):
        yield
