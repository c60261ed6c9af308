"""What a person would say about rows of queries: verdicts, break-even, draft lengths, verification and acceptance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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


SOURCES = {"point": "a point mass", "drafter": "the drafter's own"}
"""What q was, by `q_source`."""


def say_overlap(row: Row) -> str:
    """One row of `overlap`: what was accepted beside 1 - TV(p, q)."""
    source = f" (q: {SOURCES[row['q_source']]})" if row["q_source"] else ""
    said = f"Acceptance: {row['arm']}, coupled by {row['coupling']}{source},"
    if not row["n_judged"]:
        share, n = row["accepted_share_fused"], say_count(row["n_judged_fused"], "judged token")
        return f"{said} accepted {share:.1%} of {n}; 1 - TV(p, q) was not measured, as no rounds were attributed."
    return (
        f"{said} accepted {row['accepted_share']:.1%} of {say_count(row['n_judged'], 'judged token')}; "
        f"1 - TV(p, q), what p/q with the residual accepts on average, was {row['overlap']:.1%} there."
    )


def say_proposers(rows: Sequence[Row]) -> Iterator[str]:
    """Rows of `drafters`: of composed drafters, over all classes, in how many rounds each part proposed."""
    for row in rows:
        if row["class"] == POOLED and row["proposers"] is not None:
            yield f"{row['arm']}: rounds in which each part proposed: {row['proposers']}."


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


def say_draft_length(rows: Sequence[Row]) -> str | None:
    """A drafter's rows of `draft_length` over all classes: at what length it would pay best; None under 5 prompts."""
    drafter = rows[0]["drafter"]
    if rows[0]["note"] is not None:
        return f"Draft length: {drafter} was {rows[0]['note']}."
    best = next((row for row in rows if row["is_best"]), None)
    # Without a single round of the drafter there is no price, and the speedup is no number.
    lengths = [row for row in rows if row["m"] > 0 and 0 < (row["predicted_speedup"] or 0) < math.inf]
    if best is None or not lengths:
        return None
    if best["m"] > 0:
        said = f"Draft length: {drafter} would pay best at m={best['m']}: {_say_prediction(best)}"
    else:
        nearest = min(lengths, key=lambda row: row["predicted_seconds_per_token"])
        said = (
            f"Draft length: {drafter} would pay for sure at none from 1 to {lengths[-1]['m']}; "
            f"it comes nearest at m={nearest['m']}: {_say_prediction(nearest)}"
        )
    measured = [_say_measured(row) for row in lengths if row["measured_seconds_per_token"] is not None]
    return f"{said}; measured {_join(measured)}." if measured else f"{said}."


def _say_measured(row: Row) -> str:
    """What was measured, beside what was predicted from other lengths: from its own rounds it would be no check."""
    said = f"m={row['m']} {say_duration(row['measured_seconds_per_token'])}"
    own = row["priced_on"] != "other lengths"
    return said if own else f"{said} (predicted from the others {say_duration(row['predicted_seconds_per_token'])})"


def _say_prediction(row: Row) -> str:
    return (
        f"predicted {say_duration(row['predicted_seconds_per_token'])} a token, speedup "
        f"{row['predicted_speedup']:.2f}, 95 % interval {row['predicted_speedup_low']:.2f} to "
        f"{row['predicted_speedup_high']:.2f}"
    )


def say_verify_cost(rows: Sequence[Row]) -> str:
    """A measurement's rows of `verify_cost`: what the widest forward at each context costs, and what that asks."""
    widest: dict[int, Row] = {}
    for row in rows:
        widest[row["context"]] = max(widest.get(row["context"], row), row, key=lambda one: int(one["width"]))
    return " ".join(_say_width(row) for row in widest.values())


def _say_width(row: Row) -> str:
    said = f"After {say_count(row['context'], 'position')}, {say_count(row['width'], 'position')} in one forward take "
    said += say_duration(row["verify_seconds"])
    if row["relative_to_step"] is None or row["accepted_share_needed"] is None:
        return f"{said}."
    said += f", {row['relative_to_step']:.1f} steps"
    share = row["accepted_share_needed"]
    proposed = say_count(row["width"] - 1, "proposed token")
    if share > 1:
        return f"{said}: no drafter can pay with {proposed}."
    if share <= 0:
        return f"{said}: {proposed} are verified for nothing."
    return f"{said}: of {proposed}, {share:.0%} have to be accepted even if drafting were free."


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
