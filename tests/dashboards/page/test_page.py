"""The page holds what the queries give, names nothing outside itself, and takes no name for markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

import queries
from dashboards.page import render_page
from dashboards.page.drawing import BACKGROUNDS, INKS
from dashboards.page.speculation import make_verify_costs
from dashboards.report import recommend
from dashboards.report.rows import Row, fetch
from telemetry.errors import UsageError
from tests.dashboards.page.pages import CLASSES, fill
from tests.dashboards.page.reading import Page
from tests.queries.given import Given, spec, step
from tests.queries.simulate import Arm, Simulation, open_store
from tests.queries.simulate_ncm import NcmSimulation

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}'
TAGS = {
    *("html", "head", "meta", "link", "title", "style", "body", "header", "main", "footer", "nav", "section", "div"),
    *("h1", "h2", "p", "ul", "li", "a", "figure", "figcaption", "details", "summary"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("svg", "g", "path", "line", "text"),
}


@pytest.fixture(scope="module")
def full() -> Iterator[duckdb.DuckDBPyConnection]:
    """A store with a run that has everything a page shows."""
    with open_store() as con:
        fill(con)
        yield con


@pytest.fixture(scope="module")
def html(full: duckdb.DuckDBPyConnection) -> str:
    """Its page."""
    return render_page(full, "run-1")


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty store."""
    with open_store() as connection:
        yield connection


def two(value: Any) -> str:
    """A ratio as the page shows it."""
    return "-" if value is None else f"{value:.2f}"


def test_the_verdict_comes_first_and_every_section_follows(full: duckdb.DuckDBPyConnection, html: str) -> None:
    page = Page(html)
    assert page.headings[0] == ("h1", "roundscope, run run-1")
    assert page.paragraphs[0] == recommend(full, "run-1").sentence
    verification = ["What verification costs"] if "verify_cost" in queries.names() else []
    assert [text for tag, text in page.headings if tag == "h2"] == [
        "Does it pay?",
        "How far the drafter gets",
        *verification,
        "At what draft length it would pay",
        "What is accepted at a temperature",
        "Where the time goes",
        "Round by round",
        "Is the record whole?",
        "Where it ran",
    ]


def test_rules_of_acceptance_are_told_apart(con: duckdb.DuckDBPyConnection) -> None:
    """Couplings beside 1 - TV(p, q); a relaxed arm is named not exact, and not recommended though it pays most."""
    arms = (
        Arm(),
        Arm("prompt-lookup", 4, rate=0.5, policy="stochastic"),
        Arm("prompt-lookup", 4, rate=0.4, coupling="equality", policy="stochastic"),
        Arm("prompt-lookup", 4, rate=0.9, policy="relaxed"),
    )
    Simulation(arms=arms).fill(con)
    page = Page(render_page(con, "run-1"))
    said = " ".join(page.paragraphs)
    residual = "residual (q: the drafter's own)"
    for arm, coupling in (("prompt-lookup m=4", residual), ("prompt-lookup m=4 equality", "equality")):
        assert f"Acceptance: {arm}, coupled by {coupling}, accepted " in said
    assert said.count("prompt-lookup m=4 (not exact, relaxed)") >= 1
    assert "Not exact: its output is not the target's, and was not compared with it" in said
    assert "(not exact" not in page.paragraphs[0]
    drawn = {figure.title: figure.texts for figure in page.figures}
    assert {arms[2].name, arms[3].name} <= set(drawn["Speedup over ordinary decoding, by class"])
    assert arms[2].name in drawn["Acceptance beside 1 - TV(p, q)"]


def test_every_chart_has_a_title_and_its_figures_as_a_table(html: str) -> None:
    page = Page(html)
    drawn = [figure for figure in page.figures if figure.texts]
    assert drawn == page.figures
    assert [(figure.title, figure.table) for figure in drawn] == [(figure.caption, figure.caption) for figure in drawn]
    assert set(CLASSES) < set(page.figures[0].texts)


def test_speedups_are_the_verdicts(full: duckdb.DuckDBPyConnection, html: str) -> None:
    expected = [
        [
            row["class"],
            row["arm"],
            row["verdict"],
            *(two(row[name]) for name in ("speedup", "speedup_low", "speedup_high")),
        ]
        for row in fetch(full, "verdict", "run-1")
    ]
    found = [
        [row[name] for name in ("class", "arm", "verdict", "speedup", "from", "to")]
        for row in Page(html).rows("Speedup over ordinary decoding, by class")
    ]
    assert sorted(found) == sorted(expected)
    assert [row[0] for row in found] == [name for name in (*CLASSES, "all") for _ in range(2)]


@pytest.mark.parametrize(("class_", "caption"), [("all", "Survival over all classes"), ("copy", "Survival on copy")])
def test_survival_is_the_querys(full: duckdb.DuckDBPyConnection, html: str, class_: str, caption: str) -> None:
    expected = [
        {
            "arm": row["arm"],
            "position": str(row["position"]),
            "survival": f"{row['survival']:.1%}",
            "rounds judged": f"{row['n_judged']:,}",
            "accepted": f"{row['n_accepted']:,}",
        }
        for row in fetch(full, "survival", "run-1")
        if row["class"] == class_
    ]
    assert Page(html).rows(caption) == expected
    assert len(expected) == 8


def test_draft_lengths_are_the_querys(full: duckdb.DuckDBPyConnection, html: str) -> None:
    rows = [row for row in fetch(full, "draft_length", "run-1") if row["class"] == "all"]
    found = Page(html).rows("Every draft length, over all classes")
    names = ("drafter", "m", "predicted speedup", "from", "to", "verdict")
    fields = ("predicted_speedup", "predicted_speedup_low", "predicted_speedup_high")
    assert [[row[name] for name in names] for row in found] == [
        [row["drafter"], str(row["m"]), *(two(row[name]) for name in fields), row["predicted_verdict"] or "-"]
        for row in rows
    ]
    assert len({row["drafter"] for row in rows}) == len(rows) // 9 > 0


def test_stages_are_the_querys(full: duckdb.DuckDBPyConnection, html: str) -> None:
    rows = [row for row in fetch(full, "stages", "run-1") if row["class"] == "all"]
    found = Page(html).rows("Where the time of a round goes")
    assert [(row["arm"], row["stage"], row["timed by"], row["share"]) for row in found] == [
        (row["arm"], row["stage"], row["basis"] or "-", f"{row['share']:.1%}") for row in rows
    ]


def test_what_is_no_number_is_unknown(con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    with Given(con) as given:
        given.add(None, "p0", [step(10)] * 3)
        given.add(("lookup", 3), "p0", [spec(10, 3, 1)])
    rows = [row | {"survival": float("nan")} for row in fetch(con, "survival", "run-1")]
    monkeypatch.setattr(
        "dashboards.page.document.fetch", lambda *asked: rows if asked[1] == "survival" else fetch(*asked)
    )
    page = Page(render_page(con, "run-1"))
    assert [row["survival"] for row in page.rows("Survival over all classes")] == ["-"] * 3
    assert [figure.texts for figure in page.figures if figure.caption == "Survival over all classes"] == [[]]


def test_verification_is_drawn_with_its_rows() -> None:
    rows: list[Row] = [
        {"context": context, "width": width, "verify_seconds": 0.01 * width, "relative_to_step": width * 0.75 + 0.25}
        for context in (64, 1024)
        for width in (1, 4)
    ]
    figure = make_verify_costs(rows)
    assert figure.table.rows == [
        ("64", "1", "10", "1.00"),
        ("64", "4", "40", "3.25"),
        ("1,024", "1", "10", "1.00"),
        ("1,024", "4", "40", "3.25"),
    ]
    assert "after 1,024 positions" in figure.svg
    assert make_verify_costs([{**rows[0], "relative_to_step": None}]).svg == ""


def test_nothing_outside_is_named(html: str) -> None:
    page = Page(html)
    ids = re.findall(r'<section id="([^"]*)"', html)
    assert page.links == ["data:,", *(f"#{name}" for name in ids)]
    assert re.findall(r"https?:|//|@import|url\(|xmlns", html) == []
    assert page.tags == TAGS
    assert [name for name in page.attributes if name.startswith("on")] == []
    assert '<html lang="en">' in html


def test_names_are_no_markup(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        for i in range(6):
            given.add(None, f"p{i}", [step(10 + i)] * 4, **{"class": HOSTILE})
            for timing in ("fused", "attributed"):
                given.add((HOSTILE, 2), f"p{i}", [spec(8, 2, 1, draft=1)] * 2, timing=timing, **{"class": HOSTILE})
    con.execute("update runs set model = $name, workload = $name, cpu = $name, command = $name", {"name": HOSTILE})
    html = render_page(con, "run-1")
    page = Page(html)
    assert page.tags == TAGS
    assert [name for name in page.attributes if name.startswith("on") or name in ("src", "srcset")] == []
    assert page.rows("The run")[1]["value"].startswith(f"{HOSTILE}, float32")
    assert {row["class"] for row in page.rows("Speedup over ordinary decoding, by class")} == {HOSTILE, "all"}
    assert page.figures[2].title == f"Survival on {HOSTILE}"


def test_a_strip_shows_what_became_of_every_token(con: duckdb.DuckDBPyConnection) -> None:
    rounds = [spec(10, 3, 3, draft=1), spec(20, 3, 1, draft=2), spec(10, 0, 0, requested=3), spec(30, 3, 1, cut=2)]
    with Given(con) as given:
        given.add(("lookup", 3), "p0", rounds)
    page = Page(render_page(con, "run-1"))
    caption = "Proposed tokens and the target's own, 4 rounds"
    assert [list(row.values())[1:] for row in page.rows(caption)] == [
        ["= = = -> = = = +", "3", "0", "0", "bonus", "1", "9", "10"],
        ["= x x -> = +", "1", "2", "0", "correction", "2", "18", "20"],
        ["-> +", "0", "0", "0", "step", "0", "10", "10"],
        ["= . . -> =", "1", "0", "2", "stop", "0", "30", "30"],
    ]
    [cells] = [figure for figure in page.figures if figure.caption == caption]
    assert [text for text in cells.texts if text in {*"aCBSx-"}] == [*"aaaB", *"axxC", "S", *"a--"]
    con.execute("update rounds set proposal = [5, 6, 7], tokens = [5, 6, 7, 8] where index = 0")
    assert Page(render_page(con, "run-1")).rows(caption)[0]["proposed → committed"] == "5 6 7 -> 5 6 7 8"


def test_parts_of_a_composed_drafter_are_counted(con: duckdb.DuckDBPyConnection) -> None:
    Simulation(arms=(Arm(), Arm("prompt-lookup+ar", 3, rate=0.5, offers=0.8))).fill(con)
    [counts] = [row["proposers"] for row in fetch(con, "drafters", "run-1") if row["class"] == "all"]
    assert counts.startswith("ar ")
    said = f"prompt-lookup+ar m=3: rounds in which each part proposed: {counts}."
    assert said in Page(render_page(con, "run-1")).paragraphs


def test_a_strip_says_who_proposed_and_what_a_controller_chose(con: duckdb.DuckDBPyConnection) -> None:
    rounds = [spec(10, 3, 3) | {"proposer": "ncm", "reason": "best", "expected_ns": 3_000_000}, spec(10, 0, 0)]
    with Given(con) as given:
        given.add(("lookup", 3), "p0", rounds)
    rows = Page(render_page(con, "run-1")).rows("Proposed tokens and the target's own, 2 rounds")
    assert [(row["proposed by"], row["chosen"]) for row in rows] == [
        ("ncm", "best: m=3, expected 3.00 ms a token"),
        ("-", "-"),
    ]


def test_a_long_generation_is_drawn_from_its_beginning(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        given.add(("lookup", 3), "p0", [spec(10, 3, 1)] * 61)
    rows = Page(render_page(con, "run-1")).rows("Proposed tokens and the target's own, first 60 of 61 rounds")
    assert [row["round"] for row in rows] == [str(i) for i in range(60)]


def test_a_generation_can_be_chosen(full: duckdb.DuckDBPyConnection) -> None:
    [(wanted, arm)] = full.execute(
        "select generation_id, arm from generations where warm_up and drafter is not null order by 1 limit 1"
    ).fetchall()
    page = Page(render_page(full, "run-1", wanted))
    assert any(
        text.startswith(f"generation {wanted}: {arm} of scripted, run run-1, fused, warm-up")
        for text in page.paragraphs
    )
    with Given(full, "run-2") as given:
        given.add(("lookup", 3), "p0", [spec(10, 3, 1)])
    with pytest.raises(UsageError, match="is of run run-1, not run-2"):
        render_page(full, "run-2", wanted)


def test_a_run_of_the_generator_is_shown_by_level(con: duckdb.DuckDBPyConnection) -> None:
    NcmSimulation(n_batches=8, noise=0.0).fill(con)
    page = Page(render_page(con, "run-1"))
    rows = fetch(con, "ncm_cache", "run-1")
    assert page.paragraphs[0].startswith("The prefix cache of scripted pays: ")
    assert [text for tag, text in page.headings if tag == "h2"] == [
        "The prefix cache by level",
        "Arm by arm",
        "The verified exit",
        "Is the record whole?",
        "Where it ran",
    ]
    assert [
        (row["level"], row["ms cached"], row["speedup"], row["positions uncached"])
        for row in page.rows("Time of a level with and without the prefix cache: scripted")
    ] == [
        (row["level"], f"{row['cached_seconds'] * 1e3:.3g}", two(row["speedup"]), f"{row['uncached_positions']:,.0f}")
        for row in rows
    ]
    with pytest.raises(UsageError, match="has levels and no rounds"):
        render_page(con, "run-1", "latest")


def test_a_run_without_drafters_says_so(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        given.add(None, "p1", [step(10)] * 3, finish_reason="aborted", n_rounds=None)
    page = Page(render_page(con, "run-1"))
    assert page.paragraphs[0] == (
        "No drafter was measured in this run, so there is nothing to compare ordinary decoding with."
    )
    assert "Generations left out of the figures: 1 aborted: the process died." in page.paragraphs
    assert [text for tag, text in page.headings if tag == "h2"] == [
        "What verification costs",
        "At what draft length it would pay",
        "Is the record whole?",
        "Where it ran",
    ]
    assert page.paragraphs[1:3] == [
        "What verification costs was not measured in this run; `roundscope calibrate` measures it.",
        "No draft length was forecast in this run: its drafters cannot be, or it is not that far yet.",
    ]


def luminance(color: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_inks_stand_out_from_either_background(background: str) -> None:
    def contrast(ink: str) -> float:
        low, high = sorted((luminance(ink), luminance(background)))
        return (high + 0.05) / (low + 0.05)

    assert [ink for ink in INKS if contrast(ink) < 3] == []
