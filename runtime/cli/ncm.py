"""`roundscope ncm`: the commands of the coarse-to-fine generator, each in a module `runtime.cli.ncm_NAME`."""

from __future__ import annotations

import click

from runtime.cli.main import LazyGroup

SUMMARIES = {
    "run": "Measure whether prefix cache and verified exit pay.",
    "train": "Train a configuration, resumable, into a checkpoint.",
}


@click.group(
    cls=LazyGroup,
    summaries=SUMMARIES,
    prefix="ncm_",
    epilog="""\b
Example:
  roundscope ncm run
""",
)
def command() -> None:
    """Generate coarse to fine, from a prefix that is processed once or at every level."""
