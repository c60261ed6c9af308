"""The charts of a run that speculates, each made of the rows of one query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dashboards.page.drawing import CURRENT, color_by, data_of, draw, name_arms, shape_by, unique
from dashboards.page.parts import N_SHOWN, Column, Figure, make_table, milliseconds, ratio, share, whole
from dashboards.report.rows import POOLED, Row

_INTERVALS = (
    Column("class", "class"),
    Column("arm", "arm"),
    Column("prompts", "n_prompts", whole),
    Column("verdict", "verdict"),
    Column("speedup", "speedup", ratio),
    Column("from", "speedup_low", ratio),
    Column("to", "speedup_high", ratio),
    Column("ms a token", "seconds_per_token", milliseconds),
    Column("ordinary", "ordinary_seconds_per_token", milliseconds),
    Column("accepted a round", "accepted_per_round", ratio),
    Column("limited by", "limited_by"),
)
_SURVIVAL = (
    Column("arm", "arm"),
    Column("position", "position"),
    Column("survival", "survival", share),
    Column("rounds judged", "n_judged", whole),
    Column("accepted", "n_accepted", whole),
)
_VERIFY = (
    Column("after positions", "context", whole),
    Column("width", "width", whole),
    Column("ms", "verify_seconds", milliseconds),
    Column("steps", "relative_to_step", ratio),
)
_LENGTHS = (
    Column("drafter", "drafter"),
    Column("m", "m"),
    Column("predicted ms a token", "predicted_seconds_per_token", milliseconds),
    Column("measured", "measured_seconds_per_token", milliseconds),
    Column("ordinary", "ordinary_seconds_per_token", milliseconds),
    Column("predicted speedup", "predicted_speedup", ratio),
    Column("from", "predicted_speedup_low", ratio),
    Column("to", "predicted_speedup_high", ratio),
    Column("verdict", "predicted_verdict"),
)
_OVERLAPS = (
    Column("arm", "arm"),
    Column("class", "class"),
    Column("coupling", "coupling"),
    Column("q", "q_source"),
    Column("judged, attributed", "n_judged", whole),
    Column("1 - TV(p, q)", "overlap", share),
    Column("accepted", "accepted_share", share),
    Column("judged, fused", "n_judged_fused", whole),
    Column("accepted, fused", "accepted_share_fused", share),
)
_STAGES = (
    Column("arm", "arm"),
    Column("stage", "stage"),
    Column("timed by", "basis"),
    Column("ms a round", "seconds_per_round", milliseconds),
    Column("share", "share", share),
    Column("rounds", "n_rounds", whole),
    Column("attributed over fused", "observer_effect", ratio),
)


def make_speedups(rows: Sequence[Row]) -> Figure:
    """Rows of `verdict`: the speedup of every class and arm with its interval, beside 1."""
    title = "Speedup over ordinary decoding, by class"
    drawn = [row for row in rows if row["speedup"] is not None]
    svg = _draw_speedups(drawn, title) if drawn else ""
    ordered = sorted(rows, key=lambda row: (row["class"] == POOLED, row["class"]))
    return Figure(
        title,
        "Right of the line at 1 an arm is faster than ordinary decoding. Bars are 95 % intervals over prompts; one "
        "that crosses the line cannot be told from it.",
        svg,
        make_table(title, _INTERVALS, ordered),
    )


def _draw_speedups(rows: Sequence[Row], title: str) -> str:
    import altair as alt

    arms = unique(rows, "arm")
    classes = sorted(unique(rows, "class"), key=lambda name: (name == POOLED, name))
    data = data_of(rows, ("class", "arm", "speedup", "speedup_low", "speedup_high"))
    scale = alt.Scale(type="log", nice=False, padding=12)
    base = alt.Chart(data).encode(
        y=alt.Y("class:N", sort=classes, title=None),
        yOffset=alt.YOffset("arm:N", sort=arms),
        color=color_by("arm", arms),
    )
    intervals = base.transform_filter("datum.speedup_low != null").mark_rule(strokeWidth=2)
    x = alt.X("speedup:Q", scale=scale, title="times as fast (logarithmic)").axis(tickCount=5)
    points = base.mark_point(filled=True, size=60, opacity=1).encode(x=x, shape=shape_by("arm", arms))
    even = alt.Chart(data_of([{"one": 1}], ("one",))).mark_rule(color=CURRENT, strokeDash=[4, 3]).encode(x="one:Q")
    layers = alt.layer(even, intervals.encode(x=alt.X("speedup_low:Q", title=""), x2="speedup_high:Q"), points)
    return draw(layers, title, 14 * len(arms) * len(classes) + 12 * len(classes))


def make_survivals(rows: Sequence[Row]) -> Iterator[Figure]:
    """Rows of `survival`: a figure over all classes, then one a class."""
    arms = unique(rows, "arm")
    classes = sorted(unique(rows, "class"), key=lambda name: (name != POOLED, name))
    for name in classes:
        of_class = [row for row in rows if row["class"] == name]
        title = "Survival over all classes" if name == POOLED else f"Survival on {name}"
        drawn = [row for row in of_class if row["survival"] is not None]
        wanted = drawn and name in classes[: N_SHOWN + 1]
        yield Figure(
            title,
            "How often the first j proposed tokens were all accepted.",
            _draw_survival(drawn, arms, title) if wanted else "",
            make_table(title, _SURVIVAL, of_class),
        )


def _draw_survival(rows: Sequence[Row], arms: Sequence[str], title: str) -> str:
    import altair as alt

    chart = (
        alt.Chart(data_of(rows, ("arm", "position", "survival")))
        .mark_line(point={"filled": True, "size": 40, "opacity": 1})
        .encode(
            x=alt.X("position:Q", title="position j in the proposal", axis=_count_axis(rows, "position")),
            y=alt.Y("survival:Q", title="Pr(A ≥ j)", scale=alt.Scale(domain=[0, 1])).axis(format="%"),
            color=color_by("arm", arms),
            shape=shape_by("arm", arms),
        )
    )
    return draw(chart, title, 150)


def _count_axis(rows: Sequence[Row], field: str) -> Any:
    import altair as alt

    return alt.Axis(format="d", tickMinStep=1, tickCount=min(max(row[field] for row in rows), 8))


def make_verify_costs(rows: Sequence[Row]) -> Figure:
    """Rows of `verify_cost`: what a wider forward costs, in steps, at every context that was measured."""
    title = "Cost of verification by width"
    drawn = [row for row in rows if row["relative_to_step"] is not None]
    return Figure(
        title,
        "In forwards of one position. A round that proposes m tokens verifies m + 1 positions and commits at most "
        "m + 1 tokens: above the dashed line it cannot pay even if everything is accepted.",
        _draw_verify_costs(drawn, title) if drawn else "",
        make_table(title, _VERIFY, rows),
    )


def _draw_verify_costs(rows: Sequence[Row], title: str) -> str:
    import altair as alt

    named = [{**row, "after": f"after {row['context']:,} positions", "most": row["width"]} for row in rows]
    contexts = unique(named, "after")
    data = data_of(named, ("after", "width", "relative_to_step", "most"))
    x = alt.X("width:Q", title="positions in the forward", axis=_count_axis(rows, "width"))
    cost = alt.Y("relative_to_step:Q", title="steps")
    curves = (
        alt.Chart(data)
        .mark_line(point={"filled": True, "size": 40, "opacity": 1})
        .encode(x=x, y=cost, color=color_by("after", contexts), shape=shape_by("after", contexts))
    )
    most = alt.Chart(data).mark_line(color=CURRENT, strokeDash=[4, 3]).encode(x=x, y="most:Q")
    return draw(alt.layer(most, curves), title, 180)


def make_draft_lengths(rows: Sequence[Row]) -> Iterator[Figure]:
    """Rows of `draft_length`: a figure over all classes, then one a class."""
    drafters = unique(rows, "drafter")
    classes = sorted(unique(rows, "class"), key=lambda name: (name != POOLED, name))
    for name in classes:
        of_class = [row for row in rows if row["class"] == name]
        title = "Every draft length, over all classes" if name == POOLED else f"Every draft length, on {name}"
        drawn = [row for row in of_class if row["ordinary_seconds_per_token"] is not None]
        wanted = drawn and name in classes[: N_SHOWN + 1]
        yield Figure(
            title,
            "Lines are predicted from one forecast of each output and measured prices; marks were measured. The dashed "
            "line is ordinary decoding.",
            _draw_lengths(drawn, drafters, title) if wanted else "",
            make_table(title, _LENGTHS, of_class),
        )


def _draw_lengths(rows: Sequence[Row], drafters: Sequence[str], title: str) -> str:
    import altair as alt

    scaled = [
        {
            "drafter": row["drafter"],
            "m": row["m"],
            "predicted": _scale(row["predicted_seconds_per_token"]),
            "measured": _scale(row["measured_seconds_per_token"]) if row["m"] else None,
            "ordinary": _scale(row["ordinary_seconds_per_token"]),
        }
        for row in rows
    ]
    data = data_of(scaled, ("drafter", "m", "predicted", "measured"))
    x = alt.X("m:Q", title="draft length m", axis=_count_axis(rows, "m"))
    y = alt.Y("predicted:Q", title="ms a committed token", scale=alt.Scale(zero=False))
    base = alt.Chart(data).encode(x=x, color=color_by("drafter", drafters))
    marks = base.transform_filter("datum.measured != null").mark_point(filled=True, size=70, opacity=1)
    even = alt.Chart(data_of(scaled[:1], ("ordinary",))).mark_rule(color=CURRENT, strokeDash=[4, 3])
    layers = alt.layer(
        even.encode(y="ordinary:Q"),
        base.transform_filter("datum.predicted != null").mark_line().encode(y=y),
        marks.encode(y="measured:Q", shape=shape_by("drafter", drafters)),
    )
    return draw(layers, title, 180)


def _scale(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def make_overlaps(rows: Sequence[Row]) -> Figure:
    """Rows of `overlap`: what each coupling accepts over all classes, beside 1 - TV(p, q)."""
    title = "Acceptance beside 1 - TV(p, q)"
    drawn = [row for row in rows if row["class"] == POOLED and row["overlap"] is not None]
    return Figure(
        title,
        "Bars: the share of judged tokens that was accepted, in attributed rounds. Marks: 1 - TV(p, q) of the same "
        "tokens, which p/q with the residual accepts on average and equality does not reach unless q is a point mass.",
        _draw_overlaps(drawn, title) if drawn else "",
        make_table(title, _OVERLAPS, rows),
    )


def _draw_overlaps(rows: Sequence[Row], title: str) -> str:
    import altair as alt

    arms = unique(rows, "arm")
    data = data_of(rows, ("arm", "accepted_share", "overlap"))
    base = alt.Chart(data).encode(y=name_arms(arms))
    scale = alt.Scale(domain=[0, 1])
    # Fifths leave no room beside the last label, which ends with the axis.
    axis = alt.Axis(format="%", values=[0, 0.25, 0.5, 0.75, 1])
    x = alt.X("accepted_share:Q", title="share of judged tokens", scale=scale, axis=axis)
    bars = base.mark_bar(opacity=0.7).encode(x=x, color=color_by("arm", arms))
    marks = base.mark_tick(color=CURRENT, thickness=3).encode(x="overlap:Q")
    return draw(alt.layer(bars, marks), title, 24 * len(arms))


def make_stages(rows: Sequence[Row]) -> Figure:
    """Rows of `stages`, over all classes: where the time of a round goes, arm by arm."""
    title = "Where the time of a round goes"
    pooled = [row for row in rows if row["class"] == POOLED]
    drawn = [row for row in pooled if row["seconds_per_round"] is not None]
    return Figure(
        title,
        "From the pass with a barrier after each stage, whose times enter no speedup; what that does to them is the "
        "column attributed over fused.",
        _draw_stages(drawn, title) if drawn else "",
        make_table(title, _STAGES, pooled),
    )


def _draw_stages(rows: Sequence[Row], title: str) -> str:
    import altair as alt

    arms, stages = unique(rows, "arm"), unique(rows, "stage")
    scaled = [{**row, "ms": row["seconds_per_round"] * 1e3, "order": stages.index(row["stage"])} for row in rows]
    chart = (
        alt.Chart(data_of(scaled, ("arm", "stage", "ms", "order")))
        .mark_bar()
        .encode(
            y=name_arms(arms),
            x=alt.X("sum(ms):Q", title="ms a round").axis(tickCount=5),
            color=color_by("stage", stages),
            order="order:Q",
        )
    )
    return draw(chart, title, 24 * len(arms))
