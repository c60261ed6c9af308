"""What several commands take."""

from __future__ import annotations

from pathlib import Path

import click

DEFAULT_STORE = Path(".roundscope")
DEFAULT_DATA = DEFAULT_STORE / "distilled"
MODEL_HELP = "Target: a folder or hub id as mlx-lm takes it, or a .gguf file. [default: SmolLM2-135M-Instruct]"

store_option = click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_STORE,
    show_default=True,
    metavar="DIR",
)
"""Gives a command the parameter `store`."""
