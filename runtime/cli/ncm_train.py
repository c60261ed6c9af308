"""`roundscope ncm train`: train a configuration's codec and generator, and write a checkpoint that says how."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from telemetry.errors import UsageError

DEFAULT_CONFIG = "sudoku-demo"
SUFFIX = ".safetensors"


@click.command(
    epilog="""\b
Examples:
  roundscope ncm train --config tinyworld
  roundscope ncm train --config sudoku-demo --out mine.safetensors
  roundscope ncm train --config sudoku-demo --out mine.safetensors --resume
"""
)
@click.option(
    "--config", default=DEFAULT_CONFIG, show_default=True, metavar="C", help="Configuration: a name, or a .json file."
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help=f"The checkpoint. [default: NAME{SUFFIX}, here]"
)
@click.option("--resume", is_flag=True, help="Go on where an interrupted run with the same options stopped.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Of weights and data. [default: the recipe's]")
@click.option("--batch", type=click.IntRange(1), help="Samples a step, of every stage. [default: the recipe's]")
@click.option("--codec-steps", type=click.IntRange(0), help="Steps of the codec. [default: the recipe's]")
@click.option("--direct-steps", type=click.IntRange(0), help="Steps of the direct network. [default: the recipe's]")
@click.option("--steps", type=click.IntRange(0), help="Steps of the generator. [default: the recipe's]")
@click.option("--n-held-out", type=click.IntRange(1), help="Samples to measure with. [default: the recipe's]")
def command(
    config: str, out: Path | None, resume: bool, batch: int | None, steps: int | None, **changes: int | None
) -> None:
    """Train codec, direct network (the baseline) and generator one after another, measure them on samples held out.

    The figures go to stdout as one JSON document, and into the checkpoint with configuration, recipe, data and curves.
    `roundscope ncm run --config FILE` takes the checkpoint.
    """
    from runtime.backend import prepare
    from runtime.cli.output import write_document
    from runtime.ncm.config import load_config

    settled = load_config(config)
    path = Path(settled.name + SUFFIX) if out is None else out
    check_path(path)
    prepare()
    from runtime.ncm.training.recipe import change_recipe, load_recipe
    from runtime.ncm.training.run import train

    recipe = load_recipe(settled.name)
    recipe = change_recipe(recipe, batch=batch, generator_batch=batch, generator_steps=steps, **changes)
    write_document(train(settled, recipe, path, describe_command(), resume=resume))
    click.echo(f"wrote {path}; measure it: roundscope ncm run --config {shlex.quote(str(path))}", err=True)


def check_path(path: Path) -> None:
    """Raise UsageError if no checkpoint can be written to `path`: `--out`."""
    if path.suffix != SUFFIX:
        raise UsageError(f"--out {path}: a checkpoint's name ends in {SUFFIX}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--out {path}: its folder does not exist")


def describe_command() -> str:
    """The command line that makes the same checkpoint: as typed, less the program's own path and `--resume`."""
    return shlex.join(["roundscope", *(argument for argument in sys.argv[1:] if argument != "--resume")])
