"""`roundscope calibrate`: what verification costs on this machine, for any target, before any drafter is tried."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from runtime.cli.options import MODEL_HELP, store_option
from telemetry.errors import RoundscopeError, UsageError

if TYPE_CHECKING:
    from runtime.targets import MlxTarget

DEFAULT_CONTEXTS = (64, 256)
REPEATS = 5
LIMIT_NS = 50_000_000_000
SHOWN = ("context", "width", "verify_seconds", "relative_to_step", "accepted_share_needed")


@click.command(
    epilog="""\b
Examples:
  roundscope calibrate
  roundscope calibrate --model ./my-model --context 128 --context 2048 --json
"""
)
@click.option("--model", metavar="M", help=MODEL_HELP)
@click.option(
    "--context",
    "contexts",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help=f"Positions in the cache before the forward; repeatable. [default: {', '.join(map(str, DEFAULT_CONTEXTS))}]",
)
@store_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def command(model: str | None, contexts: tuple[int, ...], store: Path, as_json: bool) -> None:
    """Measure what a forward of the target costs by its width, relative to one ordinary step.

    That curve decides: a round that proposes m tokens verifies m + 1 positions, and has to commit as many tokens as
    that costs steps. Ends within a minute: with a slow target contexts or repeats are left out, and a note says
    so. The times are kept in the store, where the query `verify_cost` shows them.
    """
    from dashboards.report.sentences import say_verify_cost
    from queries import install_views, run
    from runtime import load_target
    from runtime.cli.output import make_objects, say_notes, write_document, write_rows
    from telemetry.journal import check_writable
    from telemetry.store import connect

    check_writable(store)
    click.echo(f"loading {model or 'the default model'} ...", err=True)
    target = load_target(model)
    calibration_id = _measure(target, contexts or DEFAULT_CONTEXTS, store)
    with connect(store, prepare=install_views) as connected:
        say_notes(connected.notes)
        result = run(connected.con, "verify_cost", calibration_id=calibration_id)
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    if not rows:
        raise RoundscopeError(f"nothing of the calibration {calibration_id} is in {store}: its records were lost")
    sentence = say_verify_cost(rows)
    if as_json:
        curve = list(make_objects(result.columns, result.rows))
        write_document({"calibration_id": calibration_id, "verify_cost": curve, "sentence": sentence})
        return
    write_rows(SHOWN, [[row[name] for name in SHOWN] for row in rows], "table")
    click.echo(sentence)
    click.echo(f"calibration {calibration_id}", err=True)


def _measure(target: MlxTarget, contexts: tuple[int, ...], store: Path) -> str:
    """Measure and record; the id of the measurement. Nothing is left in the store where nothing can be measured."""
    from dashboards.report.sentences import say_count
    from runtime.experiment.calibration import measure_verify_costs
    from runtime.workloads import encode, load_embedded
    from telemetry.journal import Journal
    from telemetry.recorder import Recorder

    limit = target.max_positions
    if limit is not None and (too_long := [context for context in contexts if context >= limit]):
        raise UsageError(f"--context is {too_long[0]} and the target has positions for {limit}; ask for a shorter one")
    ids = [token for item in load_embedded(quick=True).items for token in encode(item, target)]
    now = Recorder().clock.monotonic_ns
    end = now() + LIMIT_NS
    costs = measure_verify_costs(target, ids, contexts, repeats=REPEATS, now=now, go_on=lambda: now() < end)
    first = next(costs, None)
    if first is None:
        raise RoundscopeError(
            f"a forward of this target takes so long that nothing was measured in {LIMIT_NS // 10**9} s; a shorter "
            "--context takes less"
        )
    measured = {(first.context, first.n)}
    with Journal(store) as journal:
        journal.write(first)
        for record in costs:
            journal.write(record)
            measured.add((record.context, record.n))
    if {context for context, _ in measured} != set(contexts) or any(n < REPEATS for _, n in measured):
        kept = ", ".join(f"{context} ({say_count(n, 'repeat')})" for context, n in sorted(measured))
        click.echo(f"note: the time was up; measured were contexts {kept}", err=True)
    return first.calibration_id
