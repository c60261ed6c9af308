"""The chart of a coarse-to-fine run: the prefix cache, level by level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.page.drawing import color_by, data_of, draw, unique
from dashboards.page.parts import Column, Figure, make_table, milliseconds, ratio, whole
from dashboards.report.rows import POOLED, Row

_LEVELS = (
    Column("level", "level"),
    Column("ms cached", "cached_seconds", milliseconds),
    Column("ms uncached", "uncached_seconds", milliseconds),
    Column("speedup", "speedup", ratio),
    Column("positions cached", "cached_positions", whole),
    Column("positions uncached", "uncached_positions", whole),
    Column("pairs cached", "cached_computed", whole),
    Column("pairs uncached", "uncached_computed", whole),
    Column("codes equal", "n_codes_equal", whole),
    Column("of", "n_codes_compared", whole),
)
_MEASURES = {
    "time": ("seconds", "ms", 1e3, "Time of a level with and without the prefix cache"),
    "positions": ("positions", "positions of a layer and sample", 1.0, "Positions that a level processed"),
}


def make_levels(rows: Sequence[Row]) -> Iterator[Figure]:
    """Rows of `ncm_cache`: for each configuration, time and positions of each level, cached and uncached."""
    for config in unique(rows, "config"):
        of_config = [row for row in rows if row["config"] == config]
        levels = [row for row in of_config if row["level"] != POOLED]
        for field, unit, scale, said in _MEASURES.values():
            title = f"{said}: {config}"
            yield Figure(
                title,
                "From attributed generations, a barrier after each stage.",
                _draw_levels(levels, field, unit, scale, title) if levels else "",
                make_table(title, _LEVELS, of_config),
            )


def _draw_levels(rows: Sequence[Row], field: str, unit: str, scale: float, title: str) -> str:
    import altair as alt

    sides = ("cached", "uncached")
    bars = [
        {"level": row["level"], "side": side, "value": row[f"{side}_{field}"] * scale} for row in rows for side in sides
    ]
    chart = (
        alt.Chart(data_of(bars, ("level", "side", "value")))
        .mark_bar()
        .encode(
            y=alt.Y("level:N", sort=unique(rows, "level"), title="level"),
            yOffset=alt.YOffset("side:N", sort=list(sides)),
            x=alt.X("value:Q", title=unit).axis(tickCount=5),
            color=color_by("side", sides),
        )
    )
    return draw(chart, title, 32 * len(rows))
