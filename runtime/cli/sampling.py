"""The options of commands that draw tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from runtime.penalty import DEFAULT_CONTEXT

_OPTIONS = (
    click.option("--temperature", type=float, default=0.0, show_default=True, help="0: always the likeliest token."),
    click.option("--top-k", type=int, default=0, show_default=True, help="Draw from the K likeliest tokens. 0: all."),
    click.option("--top-p", type=float, default=1.0, show_default=True, help="Draw from the likeliest of that mass."),
    click.option("--min-p", type=float, default=0.0, show_default=True, help="Draw from that share of the best on."),
    click.option(
        "--repetition-penalty",
        type=float,
        default=1.0,
        show_default=True,
        help="Above 1 makes what was said last less likely, without a temperature too. 1: none.",
    ),
    click.option(
        "--repetition-context",
        type=int,
        default=DEFAULT_CONTEXT,
        show_default=True,
        metavar="N",
        help="Last tokens of prompt and output that the penalty acts on.",
    ),
)

POLICY_HELP = (
    "exact, or not exact: relaxed:threshold=T, relaxed:typical[,epsilon=E][,delta=D], which accept more and change the "
    "output (docs/sampling.md)."
)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command what p depends on: parameters of `runtime.sampling.Sampling` and `runtime.penalty.Penalty`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
