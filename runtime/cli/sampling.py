"""The options of commands that draw tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_OPTIONS = (
    click.option("--temperature", type=float, default=0.0, show_default=True, help="0: always the likeliest token."),
    click.option("--top-k", type=int, default=0, show_default=True, help="Draw from the K likeliest tokens. 0: all."),
    click.option("--top-p", type=float, default=1.0, show_default=True, help="Draw from the likeliest of that mass."),
    click.option("--min-p", type=float, default=0.0, show_default=True, help="Draw from that share of the best on."),
)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the parameters `temperature`, `top_k`, `top_p` and `min_p` of `runtime.sampling.Sampling`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
