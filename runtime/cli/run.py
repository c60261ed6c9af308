"""`roundscope run`: measure whether speculation pays, for a model, drafters and prompts of the user's choice."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtime.cli.lengths import LengthType
from runtime.cli.main import INTERRUPTED
from runtime.cli.options import DEFAULT_STORE, MODEL_HELP, store_option
from runtime.cli.sampling import POLICY_HELP, sampling_options
from runtime.cli.scraping import check_metrics_port, metrics_port_option
from runtime.cli.sending import check_endpoint, otlp_option
from runtime.penalty import DEFAULT_CONTEXT
from telemetry.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from runtime.cli.ranks import Part
    from runtime.distributed import Launch
    from runtime.experiment.execution import Execution
    from runtime.experiment.lengths import DraftLength
    from runtime.experiment.plan import Plan, Request
    from runtime.targets import MlxTarget
    from runtime.workloads import Workload
    from telemetry.records import RunRecord

DEFAULT_DRAFTERS = ("prompt-lookup",)
DEFAULT_LENGTHS = (8,)
DEFAULT_TOKENS = 64

_METRICS_OF_RANKS = (
    "--metrics-port serves what one process records, and this run is shared among several: leave it out, and run "
    "`roundscope serve-metrics --store DIR`, which serves all of them"
)

EXAMPLE = """\b
Examples:
  roundscope run --quick
  roundscope run --model ./my-model --drafter prompt-lookup --draft-length 4 --draft-length 8 --prompts mine.jsonl
  roundscope run --draft-length auto --draft-length 4 --draft-length 8
  roundscope run --temperature 0.8 --top-p 0.95 --coupling residual --coupling equality
  roundscope run --policy exact --policy relaxed:threshold=0.2
  mlx.launch -n 2 -- roundscope run --quick
  roundscope run --model ./my-model --draft-model ./my-small-model --draft-length 4
"""


@click.command(epilog=EXAMPLE)
@click.option("--model", metavar="M", help=MODEL_HELP)
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    metavar="NAME",
    help="Drafter, with options as in prompt-lookup:max_n=3; repeatable. [default: prompt-lookup]",
)
@click.option(
    "--draft-length",
    "lengths",
    type=LengthType(),
    multiple=True,
    metavar="N",
    help="Tokens per proposal, 1 or more; auto: a controller chooses for each round; repeatable. [default: 8]",
)
@click.option("--draft-model", metavar="M", help="Model of the drafter `assistant`; implies it.")
@click.option("--prompts", type=click.Path(path_type=Path), metavar="FILE", help="Your prompts: .jsonl or .txt.")
@click.option("--quick", is_flag=True, help="Three classes of the embedded prompts instead of all eight.")
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=DEFAULT_TOKENS, show_default=True, help="Limit of each output."
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Times every prompt is run by every arm.",
)
@click.option(
    "--timing",
    type=click.Choice(["fused", "attributed"]),
    default="fused",
    show_default=True,
    help="fused: true rounds, a verdict. attributed: true stage shares only, no verdict.",
)
@store_option
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Seed of the order of prompts and arms, and of what is drawn.",
)
@sampling_options
@click.option(
    "--coupling",
    "couplings",
    type=click.Choice(["residual", "equality"]),
    multiple=True,
    help="At a temperature, what makes a proposed token stand; repeatable: an arm each. [default: residual]",
)
@click.option("--policy", "policies", multiple=True, metavar="P", help=f"{POLICY_HELP} Repeatable. [default: exact]")
@click.option(
    "--record-text", is_flag=True, help="Keep token ids and text in the store. Off: only their shape is kept."
)
@otlp_option
@metrics_port_option
@click.option("--dry-run", is_flag=True, help="Say what would be done and how long it may take, and stop there.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def command(
    model: str | None,
    drafters: tuple[str, ...],
    lengths: tuple[DraftLength, ...],
    draft_model: str | None,
    prompts: Path | None,
    quick: bool,
    max_tokens: int,
    repeats: int,
    timing: Any,
    store: Path,
    seed: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    repetition_context: int,
    couplings: tuple[Any, ...],
    policies: tuple[str, ...],
    record_text: bool,
    otlp: str | None,
    metrics_port: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run every prompt by ordinary decoding and by each drafter, record each round, and say whether it pays.

    At a temperature outputs are draws from the same distribution: they are paired by prompt, and not compared. The
    output of an arm with a relaxed policy is not the model's, and is marked so wherever the arm is named.
    """
    from runtime.distributed import find_launch
    from runtime.experiment.plan import Request

    if dry_run and as_json:
        raise click.UsageError("--json and --dry-run exclude each other: a plan is text")
    if draft_model is not None and not any(spec.partition(":")[0] == "assistant" for spec in drafters):
        drafters = (*drafters, "assistant")
    if lengths and drafters and all(spec.partition(":")[0] == "none" for spec in drafters):
        raise click.UsageError("the drafter `none` proposes nothing: leave --draft-length out, or name another drafter")
    request = Request(
        drafters or DEFAULT_DRAFTERS,
        lengths or DEFAULT_LENGTHS,
        draft_model,
        max_tokens,
        repeats,
        timing,
        seed,
        record_text,
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        repetition_context,
        couplings or ("residual",),
        policies or ("exact",),
    )
    _check_cheaply(request, store, otlp)
    check_metrics_port(metrics_port)
    workload = _load_workload(prompts, quick)
    launch = find_launch()
    if dry_run:
        if launch is None or launch.rank == 0:
            _print_plan(*_plan(model, request, workload), dry_run)
        return
    if launch is not None:
        if metrics_port is not None:
            raise UsageError(_METRICS_OF_RANKS)
        interrupted = _measure_share(launch, model, request, workload, store, otlp, as_json)
    else:
        run_id, execution = _measure(model, request, workload, store, otlp, metrics_port)
        _report(store, run_id, request, model, as_json)
        if execution.divergent:
            told = ", ".join(f"{name} in {n}" for name, n in execution.divergent.items())
            raise CheckFailed(f"outputs differ from ordinary decoding's, and at no near tie: {told}")
        interrupted = execution.interrupted
    if interrupted:
        sys.exit(INTERRUPTED)


def _measure(
    model: str | None,
    request: Request,
    workload: Workload,
    store: Path,
    otlp: str | None,
    metrics_port: int | None = None,
    part: Part | None = None,
) -> tuple[str, Execution]:
    """The run's id and its execution, or this process's `part` of it."""
    from runtime.cli.recording import record_run
    from runtime.experiment.execution import Execution

    target, plan = _plan(model, request, workload, part)
    if part is None or part.leads:
        _print_plan(target, plan, dry_run=False)
    run = _describe_run(target, plan, part)
    return run.run_id, record_run(
        store,
        run,
        plan.n_generations,
        lambda recorder, done: Execution(plan, target, recorder, done),
        otlp=otlp,
        metrics_port=metrics_port,
        part=part,
    )


def _measure_share(
    launch: Launch,
    model: str | None,
    request: Request,
    workload: Workload,
    store: Path,
    otlp: str | None,
    as_json: bool,
) -> bool:
    """Take part in a distributed run, and on rank 0 report on all of it. Whether this rank was interrupted."""
    from runtime.cli.ranks import check_ranks, digest, make_context, taking_part, undisturbed
    from runtime.cli.recording import new_run_id

    context = make_context(new_run_id(), request.seed)
    with taking_part(launch, store, context, digest(request, workload), workload.items) as part:
        request = replace(request, seed=part.group.context.seed)
        run_id, execution = _measure(model, request, workload, store, otlp, part=part)
        if part.leads:
            with undisturbed():
                _report(store, run_id, request, model, as_json)
    if part.leads and not execution.interrupted:
        check_ranks(store, run_id)
    return execution.interrupted


def _check_cheaply(request: Request, store: Path, otlp: str | None) -> None:
    """What can be refused before a model is loaded."""
    from runtime.drafters import ASSISTANT_NEEDS_MODEL, parse
    from telemetry.journal import check_writable

    for spec in request.drafters:
        if parse(spec).name == "assistant" and request.draft_model is None and "model=" not in spec:
            raise UsageError(ASSISTANT_NEEDS_MODEL)
    check_endpoint(otlp)
    check_writable(store)


def _load_workload(prompts: Path | None, quick: bool) -> Workload:
    from runtime.workloads import load_embedded, load_prompts

    if prompts is not None and quick:
        raise click.UsageError("--quick selects among the embedded prompts; leave it out with --prompts")
    return load_embedded(quick=quick) if prompts is None else load_prompts(prompts)


def _plan(model: str | None, request: Request, workload: Workload, part: Part | None = None) -> tuple[MlxTarget, Plan]:
    from runtime import load_target
    from runtime.experiment.plan import make_plan

    if part is None or part.leads:
        click.echo(f"loading {model or 'the default model'} ...", err=True)
    target = load_target(model)
    return target, make_plan(request, workload, target, None if part is None else part.items)


def _print_plan(target: MlxTarget, plan: Plan, dry_run: bool) -> None:
    from dashboards.report.sentences import say_count
    from runtime.cli.recording import say_duration
    from runtime.experiment.pace import measure_pace
    from runtime.experiment.plan import MIN_PROMPTS

    pace = measure_pace(target, plan.prompts[0])
    seconds = plan.estimate_seconds(pace.seconds_per_prompt_token, pace.seconds_per_step)
    arms = ", ".join(arm.name for arm in plan.arms)
    request, workload = plan.request, plan.workload
    models = any(hasattr(arm.drafter, "model") for arm in plan.arms)
    looks_on = request.forecasts and any(arm.draft_length for arm in plan.arms)
    forecasts = ", then one pass over the outputs for what other draft lengths would cost" if looks_on else ""
    shared = "" if len(plan.prompts) == len(workload.items) else f" of {len(workload.items)}, the share of rank 0,"
    click.echo(
        f"target    {target.name} ({target.dtype})\n"
        f"workload  {workload.name}: {say_count(len(plan.prompts), 'prompt')}{shared} in "
        f"{say_count(len(workload.classes), 'class', 'classes')}\n"
        f"arms      {arms}\n"
        f"amount    {say_count(len(plan.arms), 'arm')} x {say_count(len(plan.prompts), 'prompt')} x "
        f"{say_count(request.repeats, 'repeat')}, up to {say_count(request.max_tokens, 'token')} each; "
        f"with warm-up and attributed pass {say_count(plan.n_generations, 'generation')}{forecasts}\n"
        f"time      about {say_duration(seconds)}; less where outputs end early or speculation pays, else more"
        + (", and the draft model's work comes on top" if models else ""),
        err=not dry_run,
    )
    limit = target.max_positions
    if shortened := [p for p in plan.prompts if limit is not None and len(p.ids) + request.max_tokens > limit]:
        click.echo(
            f"note: the target has positions for {limit} tokens, prompt and output together: {len(shortened)} of "
            f"{len(plan.prompts)} prompts leave fewer than {request.max_tokens}, {shortened[0].item.id} for one",
            err=True,
        )
    if plan.too_few and request.timing == "fused":
        short = ", ".join(f"{name} ({n})" for name, n in plan.too_few.items())
        click.echo(f"note: a verdict takes {MIN_PROMPTS} prompts of a class; these have fewer: {short}", err=True)


def _describe_run(target: MlxTarget, plan: Plan, part: Part | None) -> RunRecord:
    from runtime.cli.recording import describe_start
    from telemetry.records import RunRecord

    request = plan.request
    return RunRecord(
        **describe_start(None if part is None else part.group.context.run_id),
        kind="speculation",
        model=target.name,
        dtype=target.dtype,
        parameter_bytes=target.parameter_bytes,
        workload=plan.workload.name,
        workload_digest=plan.workload.digest,
        n_prompts=len(plan.workload.items),
        arms=[arm.name for arm in plan.arms],
        timing=request.timing,
        seed=request.seed,
        max_tokens=request.max_tokens,
        repeats=request.repeats,
        record_text=request.record_text,
    )


def _report(store: Path, run_id: str, request: Request, model: str | None, as_json: bool) -> None:
    from dataclasses import asdict

    from rich.console import Console

    from dashboards.report import recommend, render_verdict
    from queries import install_views, run
    from runtime.cli.output import make_objects, say_notes, write_document
    from telemetry.store import connect

    with connect(store, prepare=install_views) as connected:
        say_notes(connected.notes)
        recommendation = recommend(connected.con, run_id)
        use = None if recommendation.arm is None else _say_use(recommendation.arm, request, model)
        if as_json:
            result = run(connected.con, "verdict", run_id=run_id)
            document = {
                "run_id": run_id,
                "verdict": list(make_objects(result.columns, result.rows)),
                "recommendation": {**asdict(recommendation), "command": use},
            }
            write_document(document)
        else:
            render_verdict(connected.con, run_id, Console())
            if request.timing == "fused":
                click.echo(f"\n{recommendation.sentence}" + (f"\n  {use}" if use else ""))
            where = "" if store == DEFAULT_STORE else f" --store {shlex.quote(str(store))}"
            click.echo(f"\nrun {run_id}; next: roundscope report stages --run {run_id}{where}")


def _say_use(arm: str, request: Request, model: str | None) -> str:
    spec, _, rest = arm.rpartition(" m=")
    length, _, coupling = rest.partition(" ")
    words = ["roundscope", "generate", "--drafter", spec, "--draft-length", length]
    if model is not None:
        words += ["--model", model]
    if spec.partition(":")[0] == "assistant" and isinstance(request.draft_model, str):
        words += ["--draft-model", request.draft_model]
    if request.temperature:
        words += ["--temperature", f"{request.temperature:g}"]
    given: dict[str, tuple[float, float]] = {
        "--top-k": (request.top_k, 0),
        "--top-p": (request.top_p, 1),
        "--min-p": (request.min_p, 0),
        "--repetition-penalty": (request.repetition_penalty, 1),
        "--repetition-context": (request.repetition_context, DEFAULT_CONTEXT),
    }
    words += [word for name, (value, off) in given.items() if value != off for word in (name, f"{value:g}")]
    words += ["--coupling", coupling] if coupling else []
    return shlex.join([*words, "your prompt"])
