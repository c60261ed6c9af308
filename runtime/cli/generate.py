"""`roundscope generate`: answer one prompt with the drafter that a run recommended, recording its rounds."""

from __future__ import annotations

import contextlib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtime.cli.lengths import LengthType
from runtime.cli.options import MODEL_HELP, store_option
from runtime.cli.output import read_text, say_notes
from runtime.cli.run import DEFAULT_LENGTHS
from runtime.cli.sampling import POLICY_HELP, sampling_options
from telemetry.errors import UsageError

if TYPE_CHECKING:
    from runtime.experiment.lengths import DraftLength
    from runtime.generate import Options
    from runtime.generation import Generation
    from runtime.targets import MlxTarget
    from telemetry.fields import Coupling
    from telemetry.journal import Journal
    from telemetry.records import Record

EXAMPLE = """\b
Examples:
  roundscope generate --drafter prompt-lookup --draft-length 8 "Fix the spelling: I has a aple."
  roundscope generate --temperature 0.8 --top-p 0.95 --seed 7 "Name a colour."
"""


@click.command(epilog=EXAMPLE)
@click.argument("prompt")
@click.option("--model", metavar="M", help=MODEL_HELP)
@click.option("--drafter", metavar="NAME", help="Who proposes. [default: nobody, ordinary decoding]")
@click.option(
    "--draft-length",
    type=LengthType(),
    metavar="N",
    help=f"Tokens per proposal, 1 or more; auto: a controller chooses for each round. [default: {DEFAULT_LENGTHS[0]}]",
)
@click.option("--draft-model", metavar="M", help="Model of the drafter `assistant`; implies it.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="Limit of the output.")
@sampling_options
@click.option(
    "--coupling",
    type=click.Choice(["residual", "equality"]),
    help="At a temperature, what makes a proposed token stand. [default: residual]",
)
@click.option("--policy", metavar="P", help=f"{POLICY_HELP} [default: exact]")
@click.option("--seed", type=int, help="Repeats what was drawn. [default: a fresh one, which the record tells]")
@store_option
@click.option("--record-text", is_flag=True, help="Keep token ids and text in the store.")
def command(
    prompt: str,
    model: str | None,
    drafter: str | None,
    draft_length: DraftLength | None,
    draft_model: str | None,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    repetition_context: int,
    coupling: Coupling | None,
    policy: str | None,
    seed: int | None,
    store: Path,
    record_text: bool,
) -> None:
    """Write the answer to PROMPT (`-`: read it from stdin) to stdout as it comes, and what it cost to stderr.

    PROMPT is sent as one user message where the model has a chat template, as it stands where not. At a temperature the
    answer is a draw: with a drafter it has the distribution that it has without one, not the same tokens. With a
    relaxed policy it is not exact: neither the answer nor the distribution that the model has without a drafter.
    """
    from queries import install_views
    from runtime import decode, load_target, speculate
    from runtime.drafters import parse
    from runtime.experiment.plan import make_drafter
    from runtime.generate import check_coupling
    from runtime.penalty import make_penalty
    from runtime.sampling import make_sampling
    from runtime.speculative.relaxed import EXACT, parse_policy
    from telemetry.journal import check_writable
    from telemetry.recorder import Recorder
    from telemetry.store import StoreBusy, StoreUnwritable, load

    drafter = drafter or ("assistant" if draft_model else None)
    if drafter is None and draft_length is not None:
        raise UsageError("--draft-length needs --drafter: without one nothing is proposed")
    if drafter is None and coupling is not None:
        raise UsageError("--coupling needs --drafter: without one there is nothing to accept")
    if drafter is None and policy is not None:
        raise UsageError("--policy needs --drafter: without one there is nothing to accept")
    if drafter is not None:
        parse(drafter)
    relaxed = parse_policy(policy or EXACT)
    check_coupling(coupling or "residual", temperature, relaxed)
    make_sampling(temperature, top_k, top_p, min_p, seed)  # refuses what makes no sense before the model is loaded
    make_penalty(repetition_penalty, repetition_context)
    check_writable(store)
    text = read_text(prompt)
    if not text.strip():
        raise UsageError("the prompt is empty")
    target = load_target(model)
    ids = _encode(target, text)
    proposer = None if drafter is None else make_drafter(drafter, target, draft_model)
    if hasattr(proposer, "learn"):
        raise UsageError(
            f"the drafter {drafter} has to know ordinary decoding's output first, which only `roundscope run` tells it"
        )
    sink = _JournalWhenNeeded(store)
    recorder = Recorder(sink, record_text=record_text)
    shared: Options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    shared |= {"repetition_penalty": repetition_penalty, "repetition_context": repetition_context, "recorder": recorder}
    if proposer is None:
        generation = decode(target, ids, max_tokens=max_tokens, **shared)
    else:
        length = draft_length or DEFAULT_LENGTHS[0]
        rule: Any = {"coupling": coupling or "residual", "policy": policy or EXACT}
        generation = speculate(target, proposer, ids, draft_length=length, max_tokens=max_tokens, **rule, **shared)
    with closing(sink), generation:
        seconds = _stream(generation)
    with contextlib.suppress(StoreBusy, StoreUnwritable):  # the journal is the truth; the next report loads it
        say_notes(load(store, install_views).notes)
    n_rounds, n_tokens = len(seconds), len(generation.tokens)
    click.echo(
        f"{n_tokens} tokens in {n_rounds} rounds, {sum(seconds) / n_tokens:.4f} s per committed token; "
        f"generation {generation.id}" + (f"; not exact: relaxed:{relaxed.rule}" if relaxed is not None else ""),
        err=True,
    )


class _JournalWhenNeeded:
    """A journal that is opened by its first record, so that what is refused leaves none."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._journal: Journal | None = None

    def write(self, record: Record) -> None:
        """Take one record."""
        from telemetry.journal import Journal

        if self._journal is None:
            self._journal = Journal(self._store)
        self._journal.write(record)

    def close(self) -> None:
        """Close the journal, if there is one."""
        if self._journal is not None:
            self._journal.close()


def _encode(target: MlxTarget, text: str) -> list[int]:
    return target.encode_chat([{"role": "user", "content": text}]) if target.has_chat_template else target.encode(text)


def _stream(generation: Generation) -> list[float]:
    """Print the output as far as it is whole characters after each round; return T_round of each, in seconds."""
    shown, seconds = "", []
    for closed in generation:
        seconds.append(closed.t_round_ns / 1e9)
        text = generation.text
        if not text.endswith("\ufffd") and text.startswith(shown):
            click.echo(text[len(shown) :], nl=False)
            shown = text
    click.echo(generation.text[len(shown) :])
    return seconds
