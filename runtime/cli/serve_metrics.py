"""`roundscope serve-metrics`: an endpoint for Prometheus that follows everything recorded in a store."""

from __future__ import annotations

from pathlib import Path

import click

from runtime.cli.ending import ended_by_sigterm
from runtime.cli.options import store_option


@click.command(
    "serve-metrics",
    epilog="""\b
Examples:
  roundscope serve-metrics --port 9464
  roundscope serve-metrics --store /var/lib/roundscope --port 9464 --host 0.0.0.0
""",
)
@store_option
@click.option(
    "--port", type=click.IntRange(0, 65535), required=True, metavar="P", help="Where to listen; 0: a free port."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; anybody may read there.")
def command(store: Path, port: int, host: str) -> None:
    """Serve the metrics of all processes that record in a store, now and later, until it is ended.

    Counters go on after a restart of this command and after journals were archived: they are kept in
    STORE/metrics.json. docs/metrics.md says what each metric means.
    """
    from telemetry.serving import serve

    with ended_by_sigterm():
        serve(store, host, port)
