"""One generation round by round: what became of every proposed token, and how long drafting and verifying took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.page.drawing import CURRENT, color_by, data_of, draw, unique
from dashboards.page.parts import Column, Figure, make_table, milliseconds
from dashboards.report.generations import Recorded
from dashboards.report.rounds import name_positions, say_choice, show_tokens
from dashboards.report.rows import Row
from dashboards.report.sentences import say_count
from telemetry.fields import COMMITS_ONE_MORE

N_ROUNDS = 60
"""Rounds drawn, from the first on: more make a strip that nobody reads."""
KINDS = {"accepted": "a", "correction": "C", "bonus": "B", "step": "S", "rejected": "x", "cut": "-"}
"""What a cell can be, and its letter."""
_ROUNDS = (
    Column("round", "index"),
    Column("proposed → committed", "shown"),
    Column("accepted", "accepted"),
    Column("rejected", "rejected"),
    Column("cut", "cut"),
    Column("ended by", "outcome"),
    Column("draft ms", "draft", milliseconds),
    Column("verify ms", "verify", milliseconds),
    Column("round ms", "round", milliseconds),
)
_OF_SOME = (Column("proposed by", "proposer"), Column("chosen", "choice"))
"""Columns that only rounds of a composed drafter, or of a controller, have something in."""
_TIMES = {"draft": ("draft_ns",), "verify": ("verify_ns", "synchronize_ns"), "trim, rewind": ("trim_ns", "rewind_ns")}


def make_strip(recorded: Recorded) -> Iterator[Figure]:
    """Two figures of a generation's first rounds; nothing for one without rounds."""
    rows = recorded.steps[:N_ROUNDS]
    if not rows:
        return
    some = (
        f"first {N_ROUNDS} of {len(recorded.steps):,} rounds"
        if len(rows) < len(recorded.steps)
        else (say_count(len(rows), "round"))
    )
    described = [_describe(row) for row in rows]
    columns = (*_ROUNDS, *(column for column in _OF_SOME if any(row[column.field] for row in described)))
    tokens = f"Proposed tokens and the target's own, {some}"
    yield Figure(
        tokens,
        "A line a round: a accepted, x rejected, - never judged; then the target's own token: C a correction, B a "
        "bonus, S a step without a proposal.",
        _draw_cells(rows, tokens),
        make_table(tokens, columns, described),
    )
    times = f"Time of each round, {some}"
    parts = (Column("round", "index"), *(Column(f"{name} ms", name, milliseconds) for name in _TIMES))
    yield Figure(
        times,
        f"Timing: {recorded.row['timing']}. Verify is the forward and reading its tokens.",
        _draw_times(rows, times),
        make_table(times, parts, [_time(row) for row in rows]),
    )


def _describe(row: Row) -> Row:
    return {
        "index": row["index"],
        "shown": show_tokens(row),
        "accepted": row["accepted"],
        "rejected": row["proposed"] - row["accepted"] - row["cut"],
        "cut": row["cut"],
        "outcome": row["outcome"] + (f" ({row['stop_kind']})" if row["stop_kind"] else ""),
        "draft": row["draft_ns"] / 1e9,
        "verify": (row["verify_ns"] + row["synchronize_ns"]) / 1e9,
        "round": row["t_round_ns"] / 1e9,
        "proposer": row["proposer"],
        "choice": say_choice(row),
    }


def _time(row: Row) -> Row:
    return {"index": row["index"], **{name: sum(row[one] for one in fields) / 1e9 for name, fields in _TIMES.items()}}


def _draw_cells(rows: Sequence[Row], title: str) -> str:
    import altair as alt

    cells = []
    for row in rows:
        kinds = [*name_positions(row), *([row["outcome"]] if row["outcome"] in COMMITS_ONE_MORE else [])]
        cells += [
            {"round": row["index"], "position": i, "kind": kind, "letter": KINDS[kind]}
            for i, kind in enumerate(kinds, 1)
        ]
    if not cells:
        return ""
    base = alt.Chart(data_of(cells, ("round", "position", "kind", "letter"))).encode(
        y=alt.Y("round:O", title="round"),
        x=alt.X("position:O", title="position").axis(labelAngle=0),
    )
    boxes = base.mark_rect(fillOpacity=0.45, stroke=CURRENT, strokeOpacity=0.3).encode(
        color=color_by("kind", list(KINDS))
    )
    letters = base.mark_text(fontSize=11, color=CURRENT).encode(text="letter:N")
    return draw(alt.layer(boxes, letters), title, 16 * len(rows))


def _draw_times(rows: Sequence[Row], title: str) -> str:
    import altair as alt

    parts = [
        {"round": row["index"], "part": name, "ms": seconds * 1e3, "order": order}
        for row in rows
        for order, (name, seconds) in enumerate((key, value) for key, value in _time(row).items() if key != "index")
    ]
    chart = (
        alt.Chart(data_of(parts, ("round", "part", "ms", "order")))
        .mark_bar()
        .encode(
            y=alt.Y("round:O", title="round"),
            x=alt.X("sum(ms):Q", title="ms").axis(tickCount=5),
            color=color_by("part", unique(parts, "part")),
            order="order:Q",
        )
    )
    return draw(chart, title, 16 * len(rows))
