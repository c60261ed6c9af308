"""A distributed run's ranks, in words: who took part, who is missing, and whose clock is off by more than a round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.report.rows import Row
from dashboards.report.sentences import say_count, say_duration

_BECAME = {
    "complete": "some of its records are missing",
    "interrupted": "it was interrupted",
    "error": "it ended by an error",
    "aborted": "its process died (aborted)",
    "running": "it still goes on, or stopped recording",
    "unknown": "it has not ended as far as is known here: it runs on another machine",
    "absent": "it left no record in this store",
}


def say_ranks(rows: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    """Lines about the rows of `ranks`, each with whether it is a warning; none if the run was not distributed."""
    if not rows:
        return
    hosts = list(dict.fromkeys(row["host"] for row in rows if row["host"] is not None))
    whole = sum(row["is_whole"] for row in rows)
    yield (
        f"Distributed: {whole} of {len(rows)} ranks complete, on {say_count(len(hosts), 'host')} ({', '.join(hosts)}).",
        False,
    )
    for row in rows:
        if not row["is_whole"]:
            yield f"R{_say_rank(row)[1:]}.", True
        if row["skew_exceeds_round"]:
            yield _say_skew(row), True


def say_missing(rows: Sequence[Row]) -> str:
    """The ranks that are not whole, and what became of each; nothing if all are."""
    return "; ".join(_say_rank(row) for row in rows if not row["is_whole"])


def _say_rank(row: Row) -> str:
    said = f"rank {row['rank']}"
    if row["host"] is None:
        return f"{said}: {_BECAME[row['finish']]}"
    done = f"{row['n_prompts_done']} of its {say_count(row['n_prompts'], 'prompt')} done"
    return f"{said} on {row['host']}: {_BECAME[row['finish']]}, {done}"


def _say_skew(row: Row) -> str:
    ahead = "ahead of" if row["offset_seconds"] > 0 else "behind"
    return (
        f"The clock of rank {row['rank']} on {row['host']} is {say_duration(abs(row['offset_seconds']))} {ahead} rank "
        f"0's (give or take {say_duration(row['uncertainty_seconds'])}), more than its median round of "
        f"{say_duration(row['median_round_seconds'])}: durations are right, but moments of different ranks cannot be "
        "put in order as they stand."
    )
