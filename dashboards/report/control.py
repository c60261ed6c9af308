"""What a person would say about rows of `controller`, and of `draft_length` for lengths that were not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.report.rows import POOLED, Row
from dashboards.report.sentences import say_count, say_duration


def say_controllers(rows: Sequence[Row], lengths: Sequence[Row]) -> Iterator[str]:
    """For every controller, over all classes: what it chose, what probing took, and how far it is from the best m."""
    for row in rows:
        if row["class"] == POOLED and row["n_rounds"]:
            yield f"{row['arm']} {_say_choices(row)}.{_say_regret(row, lengths)}"


def _say_choices(row: Row) -> str:
    said = f"chose a step, or had nothing to propose, in {row['share_of_steps']:.0%} of its rounds"
    if row["mean_proposed"] is not None:
        said += f" and proposed {row['mean_proposed']:.1f} tokens in the others"
    if not row["n_probes"]:
        return f"{said}; it made no probe"
    probes = say_count(row["n_probes"], "probe")
    return f"{said}; {probes} took {row['probing_share']:.1%} of the time and lost {row['probing_lost_share']:.1%}"


def _say_regret(row: Row, lengths: Sequence[Row]) -> str:
    mine = row["seconds_per_token"]
    if mine is None:
        return ""
    told = []
    if row["regret"] is not None:
        best, name = row["best_fixed_seconds_per_token"], row["best_fixed"]
        told.append(f"{_say_more(mine, best)} {name} ({say_duration(best)})")
    cheapest = _find_cheapest(row["arm"].replace(" m=auto", ""), lengths)
    if cheapest is not None and cheapest["measured_seconds_per_token"] is None:
        best, said = cheapest["predicted_seconds_per_token"], f"m={cheapest['m']}, the best fixed one by the forecast"
        told.append(f"{_say_more(mine, best)} {said} ({say_duration(best)})")
    return f" It took {say_duration(mine)} a token, {' and '.join(told)}." if told else ""


def _find_cheapest(spec: str, lengths: Sequence[Row]) -> Row | None:
    """Of the drafter's draft lengths, over all classes, the one that is predicted to cost least."""
    told = [one for one in lengths if one["drafter"] == spec and one["class"] == POOLED]
    predicted = [one for one in told if one["predicted_seconds_per_token"]]
    return min(predicted, key=lambda one: one["predicted_seconds_per_token"], default=None)


def _say_more(mine: float, best: float) -> str:
    change = mine / best - 1
    if abs(change) < 0.0005:
        return "as much as"
    return f"{abs(change):.1%} {'more' if change > 0 else 'less'} than"
