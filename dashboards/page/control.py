"""The charts of a run with a controller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.page.drawing import color_by, data_of, draw, unique
from dashboards.page.parts import Column, Figure, make_table, milliseconds, share, whole
from dashboards.report.rows import POOLED, Row

_CHOICES = (
    Column("arm", "arm"),
    Column("class", "class"),
    Column("ms a token", "seconds_per_token", milliseconds),
    Column("ordinary", "ordinary_seconds_per_token", milliseconds),
    Column("best fixed", "best_fixed"),
    Column("its ms a token", "best_fixed_seconds_per_token", milliseconds),
    Column("regret", "regret", share),
    Column("steps", "share_of_steps", share),
    Column("probes", "n_probes", whole),
    Column("their share of time", "probing_share", share),
    Column("left out", "n_budget", whole),
)
_DECISIONS = (
    Column("arm", "arm"),
    Column("quarter", "quarter", whole),
    Column("m", "m", whole),
    Column("proposer", "proposer"),
    Column("rounds", "n_rounds", whole),
    Column("share", "share", share),
    Column("nothing proposed", "n_empty", whole),
)
_GROUPS = ("a step", "m = 1 to 2", "m = 3 to 4", "m = 5 to 8", "m from 9")
"""Lengths as the chart shows them; the table has each."""


def make_choices(choices: Sequence[Row], decisions: Sequence[Row]) -> Iterator[Figure]:
    """Rows of `controller` as a table, and of `decisions`, over all classes, as a chart for each arm."""
    if not choices:
        return
    title = "What the controller cost and chose"
    yield Figure(
        title, "Regret: time a token beyond the best fixed draft length's.", "", make_table(title, _CHOICES, choices)
    )
    pooled = [row for row in decisions if row["class"] == POOLED]
    for arm in unique(pooled, "arm"):
        rows = [row for row in pooled if row["arm"] == arm]
        title = f"Draft lengths that {arm} chose, by quarter of the output"
        yield Figure(title, "Share of the quarter's rounds.", _draw(rows, title), make_table(title, _DECISIONS, rows))


def _draw(rows: Sequence[Row], title: str) -> str:
    import altair as alt

    grouped = [{**row, "length": _name_group(row["m"]), "order": _GROUPS.index(_name_group(row["m"]))} for row in rows]
    chart = (
        alt.Chart(data_of(grouped, ("quarter", "length", "order", "share")))
        .mark_bar()
        .encode(
            y=alt.Y("quarter:O", title="quarter"),
            x=alt.X("sum(share):Q", title="share of rounds").axis(format="%", tickCount=5),
            color=color_by("length", _GROUPS),
            order="order:Q",
        )
    )
    return draw(chart, title, 96)


def _name_group(m: int) -> str:
    return _GROUPS[0 if m == 0 else 1 if m <= 2 else 2 if m <= 4 else 3 if m <= 8 else 4]
