"""Which arm to switch on, if any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from dashboards.report.rows import POOLED, Row, fetch
from dashboards.report.sentences import say_draft_length, say_speed

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

REFERENCES = frozenset({"none", "oracle", "wrong"})
"""Drafters that show what is possible or what the loop costs; nobody can use them."""


@dataclass(frozen=True)
class PaysOn:
    """A class of prompts on which an arm pays."""

    class_name: str
    arm: str
    speedup: float


@dataclass(frozen=True)
class Recommendation:
    """The arm to switch on (None: leave speculation off), what to say about it, and classes where another choice pays.

    The arm is the one that pays over all classes with the best lower end of its interval. If none does, `pays_on` names
    the classes on which one pays all the same, each with the best arm for it.
    """

    arm: str | None
    drafter: str | None
    draft_length: int | None
    sentence: str
    pays_on: tuple[PaysOn, ...] = ()


def recommend(con: DuckDBPyConnection, run_id: str) -> Recommendation:
    """The recommendation that follows from a run's verdicts."""
    return choose(fetch(con, "verdict", run_id))


def choose(verdicts: Sequence[Row]) -> Recommendation:
    """The same from the rows of `verdict`. An arm that is not exact gives another output, and is never recommended."""
    faulty = {row["arm"] for row in verdicts if row["n_divergent"]}
    usable = [row for row in verdicts if is_usable(row) and row["arm"] not in faulty]
    if faulty and not usable:
        return Recommendation(None, None, None, f"Leave it off: {', '.join(sorted(faulty))} gives another output.")
    paying = [row for row in usable if row["verdict"] == "pays" and row["limited_by"] != "nothing proposed"]
    if best := _find_best([row for row in paying if row["class"] == POOLED]):
        sentence = f"Switch on {best['arm']}: {say_speed(best['speedup'])}, at least {best['speedup_low']:.2f} times."
        return Recommendation(best["arm"], best["drafter"], best["draft_length"], sentence)
    classes = sorted({row["class"] for row in paying})
    winners = [row for name in classes if (row := _find_best([row for row in paying if row["class"] == name]))]
    pays_on = tuple(PaysOn(row["class"], row["arm"], row["speedup"]) for row in winners)
    return Recommendation(None, None, None, _say_off(usable, pays_on), pays_on)


def is_usable(row: Row) -> bool:
    """Whether somebody can use the arm of a row of `verdict` in place of ordinary decoding, for the same output."""
    return row["drafter"] not in REFERENCES and bool(row["is_exact"])


def say_draft_lengths(rows: Sequence[Row]) -> Iterator[str]:
    """Rows of `draft_length`: for each drafter that somebody can use, at what length it would pay best."""
    pooled = [row for row in rows if row["class"] == POOLED and row["drafter"] not in REFERENCES]
    for _, group in groupby(pooled, key=lambda row: row["drafter"]):
        if said := say_draft_length(list(group)):
            yield said


def _find_best(rows: Sequence[Row]) -> Row | None:
    return max(rows, key=lambda row: row["speedup_low"], default=None)


def _say_off(usable: Sequence[Row], pays_on: Sequence[PaysOn]) -> str:
    if not usable:
        return "Nothing to switch on: no arm that is exact and can be used was measured."
    if not any(row["verdict"] for row in usable):
        return "No advice yet: a verdict takes 5 prompts that ordinary decoding and the arm both completed."
    if not pays_on:
        return "Leave it off: nothing that was measured pays."
    told = "; ".join(f"{one.class_name} with {one.arm} ({one.speedup:.2f} times as fast)" for one in pays_on)
    return f"Leave it off for such a mixture: nothing pays over all classes. It does pay on {told}."
