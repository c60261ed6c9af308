"""The option --otlp, and the process that sends a run's spans while it is going on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from telemetry.errors import RoundscopeError
from telemetry.logs import get_logger

otlp_option = click.option(
    "--otlp",
    is_flag=False,
    flag_value="",
    metavar="[ENDPOINT]",
    help="Send spans by OTLP to ENDPOINT, as in http://127.0.0.1:4318; without it, to OTEL_EXPORTER_OTLP_ENDPOINT.",
)


def check_endpoint(endpoint: str | None) -> None:
    """Raise UsageError if spans can be sent to no such place. None: nothing is sent."""
    if endpoint is not None:
        from telemetry.otlp import complete_endpoint

        complete_endpoint(endpoint)


@contextmanager
def sending_spans(endpoint: str | None, store: Path, journal: Path, run_id: str) -> Iterator[None]:
    """Let a process of its own send the spans of `journal` while the block runs, and say at the end what became of
    them.

    endpoint: None: send nothing; empty: the environment's. Raises RoundscopeError if it cannot begin; nothing that
    happens to it or the receiver later reaches the block.
    """
    if endpoint is None:
        yield
        return
    from telemetry.otlp_follower import PATIENCE_S, follow, note_unsent

    follower = follow(store, journal, endpoint)
    try:
        yield
    finally:
        summary = follower.end(PATIENCE_S)
        rest = f"`{shlex.join(['roundscope', 'export', '--otlp', endpoint, '--run', run_id, '--store', str(store)])}`"
        if "sent" not in summary:
            try:
                lost = f"{note_unsent(store, journal, follower.ready['endpoint'])} not delivered"
            except RoundscopeError as error:
                lost = f"what it left is not counted ({error})"
            click.echo(f"spans: the exporter ended before its time, {lost}; {rest} sends what is missing", err=True)
        else:
            said = describe(summary["sent"], summary["refused"], summary["failed"], summary["reasons"])
            again = summary["refused"] - summary["for_good"] + summary["failed"]
            if again or summary["for_good"]:
                get_logger().warning(
                    "spans.not_delivered",
                    sent=summary["sent"],
                    refused=summary["refused"],
                    failed=summary["failed"],
                    reasons=list(summary["reasons"]),
                    effect="the run's records are whole",
                )
            if again:
                said += f"; {rest} tries again what was not delivered"
            if summary["for_good"]:
                said += f"; {summary['for_good']} were refused for good by this receiver"
            click.echo(said, err=True)


def describe(sent: int, refused: int, failed: int, reasons: dict[str, int]) -> str:
    """What became of spans, in a line."""
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return f"spans: {sent} sent, {refused} refused by the receiver, {failed} not delivered{why}"
