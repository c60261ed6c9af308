"""What a person would say about rows of `ncm_cache` and `ncm_exit`."""

from __future__ import annotations

from dashboards.report.rows import Row
from dashboards.report.sentences import say_duration

MEGA = 1e6


def say_cache(row: Row) -> str:
    """The row of `ncm_cache` for the whole generation: whether the prefix cache pays and how sure that is."""
    said = f"The prefix cache of {row['config']} {_say_verdict(row, 'uncached')}"
    if row["speedup"] is not None:
        cached, uncached = say_duration(row["cached_seconds"]), say_duration(row["uncached_seconds"])
        said += f", {cached} a generation instead of {uncached}"
    said = _end(said, row)
    if row["n_codes_compared"] and row["n_codes_equal"] == row["n_codes_compared"]:
        said += f" All {row['n_codes_compared']} pairs have the same codes."
    return said


def say_work(row: Row) -> str:
    """What ran, beside what the formulas say."""
    return (
        f"In each layer and for a sample it processed {_compare(row, 'positions')} positions and allowed "
        f"{_compare(row, 'allowed')} pairs a head; the shapes computed {row['cached_computed']:,.0f} instead of "
        f"{row['uncached_computed']:,.0f}."
    )


def _compare(row: Row, name: str) -> str:
    mine, other = row[f"cached_{name}"], row[f"uncached_{name}"]
    formulas = (row[f"cached_{name}_formula"], row[f"uncached_{name}_formula"])
    said = f"{mine:,.0f} instead of {other:,.0f}"
    return said if (mine, other) == formulas else f"{said} (by the formula {formulas[0]:,.0f} and {formulas[1]:,.0f})"


def say_memory(row: Row) -> str:
    """The cache's size and both peaks."""
    return (
        f"The cache held {row['kv_bytes'] / MEGA:.2f} MB of the prefix (by the formula "
        f"{row['kv_bytes_formula'] / MEGA:.2f} MB), beside the room for a level; "
        f"peak memory {row['cached_peak_bytes'] / MEGA:.1f} MB instead of {row['uncached_peak_bytes'] / MEGA:.1f} MB."
    )


def say_alone(row: Row) -> str:
    """A row of `ncm_exit` about an arm by itself: how many it solved, and what that took."""
    if not row["n_generations"]:
        return _end(f"{row['arm']} has no figures", row)
    said = "was not checked" if row["n_solved"] is None else f"solved {row['n_solved']:,} of {row['n_samples']:,}"
    if row["solved_share"] is not None:
        said += f" ({row['solved_share']:.1%})"
    said += f", {say_duration(row['generation_seconds'])} a generation"
    if row["solved_seconds"] is not None:
        said += f", {say_duration(row['solved_seconds'])} a solved sample"
    return f"{row['arm']} {said}."


def say_exit(row: Row) -> str:
    """A row of `ncm_exit` about two arms: whether the exit pays per solved sample, and what it does to quality."""
    said = f"{row['arm']} {_say_verdict(row, row['against'])}"
    if row["speedup"] is not None:
        mine, other = say_duration(row["solved_seconds"]), say_duration(row["against_solved_seconds"])
        said += f", {mine} a solved sample instead of {other}"
    if row["solved_share"] is not None:
        said += (
            f"; solved {row['solved_share']:.1%} instead of {row['against_solved_share']:.1%}, with "
            f"{row['levels_used']:.1f} levels a sample instead of {row['against_levels_used']:.1f}"
        )
    return f"{_end(said, row)} Mind that {row['selection']}."


def _say_verdict(row: Row, other: str) -> str:
    if row["verdict"] is None:
        return f"has no verdict against {other}"
    speedup = row["speedup"]
    fast = f"{speedup:.2f} times as fast as" if speedup >= 1 else f"{1 / speedup:.2f} times as slow as"
    said = {
        "pays": f"pays: {fast} {other}",
        "loses": f"loses: {fast} {other}",
        "indistinguishable": f"cannot be told from {other}",
    }[row["verdict"]]
    said += (
        f" (speedup {speedup:.2f}, 95 % interval {row['speedup_low']:.2f} to {row['speedup_high']:.2f}, "
        f"{row['n_batches']} batches)"
    )
    return said


def _end(said: str, row: Row) -> str:
    if row["more_batches"] is not None:
        said += f"; about {row['more_batches']} more batches like these would show that it {row['would_settle']}"
    return f"{said}." + (f" {row['note'][0].upper()}{row['note'][1:]}." if row["note"] else "")
