"""Whether the record is whole, in words: what a reader has to know before trusting the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.report.rows import POOLED, Row
from dashboards.report.sentences import say_count

_MISSING = {
    "n_cancelled": "{} cancelled",
    "n_error": "{} ended by an error",
    "n_aborted": "{} aborted: the process died",
    "n_unknown": "{} not ended as far as is known: written on another machine",
    "n_incomplete": "{} with rounds or levels missing",
}
_LOST = {
    "n_torn_lines": "{} torn journal lines",
    "n_rejected_lines": "{} rejected journal lines (select * from rejected)",
    "n_waiting_lines": "{} ends or comparisons of something that is not in the store",
    "n_lost_records": "{} records that could not be written",
    "n_unassigned_lines": "{} unreadable lines in journals that may be another run's",
}


def say_completeness(rows: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    """Lines about the rows of `completeness`, each with whether it is a warning."""
    run = next(row for row in rows if row["arm"] == POOLED)
    warm_up = f" ({run['n_warm_up']:,} for warm-up)" if run["n_warm_up"] else ""
    steps = say_count(run["n_levels"], "level") if run["n_levels"] else say_count(run["n_rounds"], "round")
    yield f"Recorded: {say_count(run['n_generations'], 'generation')}{warm_up} with {steps}.", False
    if run["n_running"]:
        running = say_count(run["n_running"], "generation")
        yield f"Still running: {running}; the figures are those of what has ended.", False
    if run["missing_ranks"] is not None:
        of = say_count(run["n_ranks"], "rank")
        yield f"The run is incomplete: of its {of} these are not whole: {run['missing_ranks']}.", True
    if missing := _list(run, _MISSING):
        yield f"Generations left out of the figures: {missing}.", True
    if lost := _list(run, _LOST):
        yield f"Not in the record: {lost}.", True
    yield from _say_equality(run)


def _say_equality(run: Row) -> Iterator[tuple[str, bool]]:
    if run["n_sampled"]:
        drawn = say_count(run["n_sampled"], "generation")
        yield f"Outputs: {drawn} drew from the target's distribution; equality is not asked of samples.", False
    if run["n_relaxed"]:
        relaxed = say_count(run["n_relaxed"], "generation")
        yield f"Not exact: {relaxed} by a relaxed policy, whose output is not the target's and was not compared.", False
    if not run["n_compared"]:
        return
    timed = f", the {run['n_attributed']:,} of the stage timing among them," if run["n_attributed"] else ""
    equal = f"{run['n_equal']:,} of {run['n_compared']:,}{timed}"
    if run["n_levels"]:
        subject, reference, said = "Codes", "the uncached generator's", f"{equal} are the uncached generator's"
    else:
        subject, reference, said = "Outputs", "ordinary decoding's", f"{equal} are ordinary decoding's, token for token"
    if run["n_near_ties"]:
        said += f"; {run['n_near_ties']:,} differ from a near tie on, which rounding explains"
    yield f"{subject}: {said}.", False
    if run["n_divergent"]:
        yield f"{subject}: {run['n_divergent']:,} differ from {reference}, and at no near tie: a fault.", True


def _list(run: Row, phrases: dict[str, str]) -> str:
    return ", ".join(phrase.format(f"{run[name]:,}") for name, phrase in phrases.items() if run[name])
