"""`roundscope distill`: let a target write on training prompts, for drafters to learn from."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from runtime.cli.options import DEFAULT_DATA, MODEL_HELP


@click.command(
    epilog="""\b
Examples:
  roundscope distill
  roundscope distill --out data --tokens 20000 --sampled 0.5
  roundscope distill --prompts mine.jsonl --out mine --resume
"""
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=DEFAULT_DATA,
    show_default=True,
    metavar="DIR",
    help="Folder of the data.",
)
@click.option("--prompts", metavar="FILE", help="Prompts, .jsonl or .txt. [default: the built-in ones]")
@click.option("--model", metavar="M", help=MODEL_HELP)
@click.option("--tokens", type=click.IntRange(1), default=100_000, show_default=True, help="Tokens of output to write.")
@click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True, help="Most tokens of one answer.")
@click.option(
    "--sampled",
    type=click.FloatRange(0, 1),
    default=0.25,
    show_default=True,
    help="Share of prompts answered a second time, at --temperature. The first answer is always greedy.",
)
@click.option("--temperature", type=click.FloatRange(0.01, 100), default=0.7, show_default=True)
@click.option(
    "--top",
    type=click.IntRange(0),
    default=12,
    show_default=True,
    help="Likeliest tokens kept, with their probabilities, beside every token that was written; 0 for none.",
)
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Prompts decoded together.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Of prompts and draws.")
@click.option("--resume", is_flag=True, help="Go on with what is in DIR, if anything is; only --tokens may differ.")
def command(out: Path, prompts: str | None, model: str | None, seed: int, resume: bool, **given: int | float) -> None:
    """Let the target write answers to training prompts, in batches, and keep them with a manifest.

    A prompt that shares eight words in a row with the embedded workload is left out, so that drafters are never
    measured on what they learned. The manifest goes to stdout as one JSON document.
    """
    import msgspec

    from runtime.cli.output import write_document
    from runtime.targets import load_target

    target = load_target(model)
    from runtime.distillation.prompts import load_training_prompts, make_prompts
    from runtime.distillation.teacher import Settings, Teacher

    settings = Settings(seed=seed, **given)  # type: ignore[arg-type]
    found, n_refused = make_prompts(seed=seed) if prompts is None else load_training_prompts(prompts)
    teacher = Teacher(
        target,
        found,
        out,
        settings,
        source="built-in" if prompts is None else Path(prompts).name,
        python=platform.python_version() if prompts is None else None,
        n_refused=n_refused,
    )
    write_document(msgspec.to_builtins(teacher.run(resume=resume)))
