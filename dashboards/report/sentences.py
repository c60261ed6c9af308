"""What a person would say about rows of `verdict`, `break_even` and `completeness`."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.report.rows import POOLED, Row


def say_speed(speedup: float) -> str:
    """How fast that is beside ordinary decoding."""
    if speedup >= 1:
        return f"{speedup:.2f} times as fast as ordinary decoding"
    return f"{1 / speedup:.2f} times as slow as ordinary decoding"


def say_verdict(row: Row) -> str:
    """One row of `verdict` as a clause without a subject: what the arm does, how sure that is, and what limits it."""
    verdict = row["verdict"]
    if verdict is None:
        return "has no verdict"
    said = {
        "pays": f"pays: {say_speed(row['speedup'])}",
        "loses": f"loses: {say_speed(row['speedup'])}",
        "indistinguishable": "cannot be told from ordinary decoding",
    }[verdict]
    mine, ordinary = say_duration(row["seconds_per_token"]), say_duration(row["ordinary_seconds_per_token"])
    said += (
        f" (speedup {row['speedup']:.2f}, 95 % interval {row['speedup_low']:.2f} to {row['speedup_high']:.2f}, "
        f"{say_count(row['n_prompts'], 'prompt')}), {mine} a token instead of {ordinary}"
    )
    if verdict != "pays" and row["limited_by"] not in (None, "nothing proposed"):
        said += f", limited by {row['limited_by']}"
    if row["more_prompts"] is not None:
        more = say_count(row["more_prompts"], "more prompt")
        said += f"; about {more} like these would show that it {row['would_settle']}"
    return said


def say_arm(rows: Sequence[Row]) -> str:
    """An arm's rows of `verdict` as a paragraph: over all classes first, then which classes differ from that."""
    pooled = next(row for row in rows if row["class"] == POOLED)
    sentences = [f"{pooled['arm']} {say_verdict(pooled)}."]
    sentences += [f"{pooled['note'][0].upper()}{pooled['note'][1:]}."] if pooled["note"] else []
    by_class = [row for row in rows if row["class"] != POOLED]
    groups = [
        f"{lead} {_join(names)}"
        for verdict, lead in (
            ("pays", "pays on"),
            ("loses", "loses on"),
            ("indistinguishable", "cannot be told from ordinary decoding on"),
            (None, "has no verdict on"),
        )
        if (names := [row["class"] for row in by_class if row["verdict"] == verdict])
    ]
    if any(row["verdict"] != pooled["verdict"] for row in by_class):
        sentences.append(f"It {'; '.join(groups)}.")
    return " ".join(sentences)


def say_break_even(row: Row) -> str | None:
    """One row of `break_even`; None if nothing was measured, or nothing was ever proposed."""
    if row["committed_per_round"] is None or row["committed_per_round_needed"] is None:
        return None
    if row["limited_by"] == "nothing proposed":
        return None
    said = (
        f"Break-even: it commits {row['committed_per_round']:.2f} tokens a round and needs "
        f"{row['committed_per_round_needed']:.2f}; a round takes {say_duration(row['round_seconds'])} "
        f"and may take {say_duration(row['round_seconds_dearest'])}"
    )
    if not row["draft_seconds"]:
        return f"{said}."
    if row["draft_seconds_dearest"] < 0:
        return f"{said}; drafting takes {say_duration(row['draft_seconds'])}, and not even a free draft would pay."
    return (
        f"{said}; drafting takes {say_duration(row['draft_seconds'])} "
        f"and may take {say_duration(row['draft_seconds_dearest'])}."
    )


def say_count(n: int, noun: str, plural: str | None = None) -> str:
    """`n` things by their name."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def say_duration(seconds: float) -> str:
    """A duration with three digits and the unit that suits it."""
    unit, size = ("s", 1.0) if seconds >= 1 else ("ms", 1e-3) if seconds >= 1e-3 else ("us", 1e-6)
    value = seconds / size
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"


def _join(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
