"""`roundscope train-drafter`: train a drafter on distilled data, and write a checkpoint that says how."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from runtime.cli.ncm_train import SUFFIX, check_path, describe_command
from runtime.cli.options import DEFAULT_DATA
from telemetry.errors import UsageError


@click.command(
    epilog="""\b
Examples:
  roundscope train-drafter ar
  roundscope train-drafter blocks --data data --out mine.safetensors --set steps=200 --set width=128
"""
)
@click.argument("name")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=DEFAULT_DATA,
    show_default=True,
    metavar="DIR",
    help="What `roundscope distill` wrote.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help=f"The checkpoint. [default: NAME{SUFFIX}, here]"
)
@click.option("--model", metavar="M", help="The target that wrote the data. [default: the installed one]")
@click.option(
    "--set", "changes", multiple=True, metavar="FIELD=VALUE", help="Change a field of the recipe; repeatable."
)
@click.option("--resume", is_flag=True, help="Go on where an interrupted run with the same options stopped.")
def command(name: str, data: Path, out: Path | None, model: str | None, changes: tuple[str, ...], resume: bool) -> None:
    """Train the drafter NAME on the target's own answers, and measure it on answers held out.

    The figures go to stdout as one JSON document, and into the checkpoint with recipe, manifest of the data and curve.
    """
    from runtime.cli.output import write_document
    from runtime.drafters.learned.trainers import find_trainer, train

    find_trainer(name)
    path = Path(name + SUFFIX) if out is None else out
    check_path(path)
    from runtime.targets import load_target

    settled = dict(_split(change) for change in changes)
    write_document(train(name, load_target(model), data, path, describe_command(), settled, resume=resume))
    click.echo(f"wrote {path}; measure it: --drafter {name}:checkpoint={shlex.quote(str(path))}", err=True)


def _split(change: str) -> tuple[str, str]:
    field, equals, value = change.partition("=")
    if not field or not equals:
        raise UsageError(f"--set {change}: give FIELD=VALUE, as in steps=200")
    return field, value
