"""`roundscope ncm run`: measure whether prefix cache and verified exit pay, on puzzles of the user's or made ones."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtime.cli.main import INTERRUPTED
from runtime.cli.options import DEFAULT_STORE, store_option
from runtime.cli.scraping import check_metrics_port, metrics_port_option
from runtime.cli.sending import check_endpoint, otlp_option
from telemetry.errors import CheckFailed

if TYPE_CHECKING:
    from runtime.ncm.experiment.execution import Execution
    from runtime.ncm.experiment.plan import Plan
    from runtime.ncm.experiment.samples import Samples
    from runtime.ncm.model import NcmModel
    from telemetry.records import RunRecord

DEFAULT_CONFIG = "sudoku-demo"
DEFAULT_SAMPLES = 24
N_SHOWN = 2


@click.command(
    epilog="""\b
Examples:
  roundscope ncm run
  roundscope ncm run --puzzles mine.txt --batch 4
  roundscope ncm run --config sudoku-e20 --no-exit --n-puzzles 8
"""
)
@click.option(
    "--config",
    default=DEFAULT_CONFIG,
    show_default=True,
    metavar="C",
    help="Configuration or checkpoint: a name (sudoku-demo, sudoku-e20, tinyworld) or a file.",
)
@click.option(
    "--puzzles",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Your puzzles, 81 characters a line, blanks as `.` or `0`. [default: made ones]",
)
@click.option(
    "--cache/--no-cache", "cache", default=None, help="Only with, or without, the prefix cache. [default: both]"
)
@click.option("--exit/--no-exit", "exit_", default=None, help="Only with, or without, verified exit. [default: both]")
@click.option("--batch", type=int, default=1, show_default=True, help="Samples that are generated together.")
@click.option(
    "--n-puzzles",
    type=int,
    metavar="N",
    help=f"Samples to make, or of the file to take. [default: {DEFAULT_SAMPLES}, all]",
)
@click.option("--repeats", type=int, default=1, show_default=True, help="Times every batch is run by every arm.")
@click.option(
    "--temperature", type=float, default=0.0, show_default=True, help="Of code sampling; 0: the likeliest code."
)
@click.option(
    "--timing",
    type=click.Choice(["fused", "attributed"]),
    default="fused",
    show_default=True,
    help="fused: true generations, a verdict. attributed: true level and stage times only, no verdict.",
)
@store_option
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Seed of made samples, of the order, of code sampling, and of weights where none are shipped.",
)
@otlp_option
@metrics_port_option
@click.option("--dry-run", is_flag=True, help="Say what would be done and how long it may take, and stop there.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows of ncm_cache and ncm_exit as JSON.")
def command(
    config: str,
    puzzles: Path | None,
    cache: bool | None,
    exit_: bool | None,
    batch: int,
    n_puzzles: int | None,
    repeats: int,
    temperature: float,
    timing: Any,
    store: Path,
    seed: int,
    otlp: str | None,
    metrics_port: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Generate for every batch with and without prefix cache and verified exit, record each level, say what pays.

    Puzzles and outputs are shown here and never recorded.
    """
    from runtime.cli.recording import record_run
    from runtime.ncm.experiment.execution import Execution
    from runtime.ncm.experiment.plan import Request, make_plan
    from telemetry.journal import check_writable

    if dry_run and as_json:
        raise click.UsageError("--json and --dry-run exclude each other: a plan is text")
    request = Request(cache, exit_, batch, repeats, temperature, timing, seed)
    check_writable(store)
    check_endpoint(otlp)
    check_metrics_port(metrics_port)
    model = _load(config, seed)
    plan = make_plan(request, model.config, _take_samples(model, puzzles, n_puzzles, seed))
    _print_plan(model, plan, dry_run)
    if dry_run:
        return
    run = _describe_run(model, plan)
    execution = record_run(
        store,
        run,
        plan.n_generations,
        lambda recorder, done: Execution(plan, model, recorder, done),
        otlp=otlp,
        metrics_port=metrics_port,
    )
    if not as_json:
        _show_outputs(execution, "not solved" if model.trained else "not solved (random weights)")
    _report(store, run.run_id, plan, model, as_json)
    if execution.divergent:
        told = ", ".join(f"{name} in {n}" for name, n in execution.divergent.items())
        raise CheckFailed(f"cached codes differ from uncached ones, and at no near tie: {told}")
    if execution.interrupted:
        sys.exit(INTERRUPTED)


def _load(config: str, seed: int) -> NcmModel:
    from runtime.ncm import load_model

    click.echo(f"loading {config} ...", err=True)
    return load_model(config, seed=seed)


def _take_samples(model: NcmModel, puzzles: Path | None, n: int | None, seed: int) -> Samples:
    from runtime.ncm.experiment.samples import make_samples, read_samples

    if puzzles is None:
        return make_samples(model.config, DEFAULT_SAMPLES if n is None else n, seed)
    samples = read_samples(model.config, puzzles, n)
    for note in samples.notes:
        click.echo(f"note: {note}", err=True)
    return samples


def _print_plan(model: NcmModel, plan: Plan, dry_run: bool) -> None:
    from dashboards.report.sentences import say_count
    from runtime.cli.recording import say_duration
    from runtime.ncm.experiment.execution import measure_pace

    config, request = plan.config, plan.request
    seconds = plan.n_generations * measure_pace(model, plan)
    weights = "trained weights" if model.trained else "random weights: outputs mean nothing, only cost is measured"
    exits = "" if plan.samples.judge else "; no exit: there is no checker for its outputs"
    click.echo(
        f"config    {config.name} ({config.dtype}), {config.n_levels} levels after a prefix of {config.prefix_length}; "
        f"{weights}\n"
        f"samples   {len(plan.samples.conditioning)}: {plan.samples.name}, in batches of {request.batch}\n"
        f"arms      {', '.join(arm.name for arm in plan.arms)}{exits}\n"
        f"amount    {say_count(len(plan.arms), 'arm')} x {say_count(len(plan.batches), 'batch', 'batches')} x "
        f"{say_count(request.repeats, 'repeat')}; with warm-up and attributed pass "
        f"{say_count(plan.n_generations, 'generation')}\n"
        f"time      about {say_duration(seconds)}; less where cache or exit pay",
        err=not dry_run,
    )


def _describe_run(model: NcmModel, plan: Plan) -> RunRecord:
    from runtime.cli.recording import describe_start
    from runtime.weights import count_bytes
    from telemetry.records import RunRecord

    request, config = plan.request, plan.config
    return RunRecord(
        **describe_start(),
        kind="ncm",
        model=config.name if model.trained else f"{config.name}, random weights",
        dtype=config.dtype,
        parameter_bytes=count_bytes(model),
        workload=plan.samples.name,
        workload_digest=plan.samples.digest,
        n_prompts=len(plan.samples.conditioning),
        arms=[arm.name for arm in plan.arms],
        timing=request.timing,
        seed=request.seed,
        max_tokens=config.output_length,
        repeats=request.repeats,
        record_text=False,
    )


def _show_outputs(execution: Execution, unsolved: str) -> None:
    """A few grids of an output and whether each is a solution; nothing where there is no checker."""
    if execution.shown is None or execution.shown[1].solved is None:
        return
    from runtime.ncm.sudoku.grid import draw_grid

    batch, output = execution.shown
    samples = list(zip(batch.conditioning, output.tokens, execution.shown[1].solved, strict=True))
    for puzzle, tokens, solved in sorted(samples, key=lambda sample: not sample[2])[:N_SHOWN]:
        left, right = draw_grid(puzzle).splitlines(), draw_grid(tuple(tokens)).splitlines()
        click.echo(f"{'puzzle':<24}{'solved' if solved else unsolved}")
        click.echo("\n".join(f"{a:<24}{b}" for a, b in zip(left, right, strict=True)) + "\n")


def _report(store: Path, run_id: str, plan: Plan, model: NcmModel, as_json: bool) -> None:
    from rich.console import Console

    from dashboards.report import render_ncm
    from queries import install_views, run
    from runtime.cli.output import make_objects, say_notes, write_document
    from telemetry.store import connect

    with connect(store, prepare=install_views) as connected:
        say_notes(connected.notes)
        if as_json:
            document: dict[str, Any] = {"run_id": run_id, "trained": model.trained}
            for name in ("ncm_cache", "ncm_exit"):
                result = run(connected.con, name, run_id=run_id)
                document[name] = list(make_objects(result.columns, result.rows))
            write_document(document)
            return
        render_ncm(connected.con, run_id, Console())
    where = "" if store == DEFAULT_STORE else f" --store {shlex.quote(str(store))}"
    has_pairs = {True, False} <= {arm.cache for arm in plan.arms if arm.exit == "none"}
    following = "ncm_cache" if has_pairs else "ncm_exit"
    click.echo(f"\nrun {run_id}; next: roundscope report {following} --run {run_id}{where}")
