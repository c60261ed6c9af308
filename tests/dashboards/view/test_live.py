"""The live page in a real Chromium: a run that goes on appears and is followed, a query is edited and run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dashboards.view import Viewer, content
from telemetry.journal import Journal
from telemetry.records import GenerationEnd, GenerationRecord, RoundRecord, RunEnd, RunRecord
from tests.dashboards.browser import Browser, browsing, expect_look
from tests.dashboards.view.conftest import Serve, started
from tests.queries.simulate import Simulation

CONTROL = 2
ROWS = "[...document.querySelectorAll('#answer tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
STATES = """[...document.querySelectorAll("#runs tbody tr")].map((row) =>
  [row.cells[0].textContent, row.cells[4].textContent])"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests here."""
    with browsing(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """That browser; at the end nothing must be on its console."""
    chromium.complaints.clear()
    chromium.resize(1440)
    yield chromium
    chromium.evaluate("sessionStorage.clear()")  # what was typed
    chromium.open("about:blank")
    assert chromium.complaints == []


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages ask often whether anything is new."""
    monkeypatch.setattr(content, "POLL_S", 0.05)
    monkeypatch.setattr(content, "RESTRAINT", 0)


def write(journal: Journal, generations: Any) -> None:
    """Record generations that are over."""
    for generation, rounds in generations:
        journal.write(msgspec.convert(generation, GenerationRecord))
        for one in rounds:
            journal.write(msgspec.convert(one, RoundRecord))
        journal.write(msgspec.convert(generation, GenerationEnd))


def set_sql(browser: Browser, sql: str) -> None:
    """Replace the query's text as a person would."""
    browser.evaluate("document.getElementById('sql').focus(), document.getElementById('sql').select()")
    browser.type(sql)


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1440, "dark")])
def test_nothing_is_too_wide_overlaps_or_cannot_be_read(
    browser: Browser, viewer: Viewer, width: int, scheme: str
) -> None:
    browser.resize(width, scheme)
    browser.open(f"{viewer.address}?run=20240101-a")
    browser.evaluate("document.getElementById('run').click()")
    browser.wait_for("document.querySelector('#answer td, #answer .warning')")
    assert browser.evaluate(ROWS)
    assert browser.look() == expect_look(width, scheme)


def test_everything_is_reached_by_keyboard_and_shows_its_focus(browser: Browser, viewer: Viewer) -> None:
    browser.open(viewer.address)
    usable, reached, unseen = browser.walk()
    assert (reached, unseen) == (usable, [])
    assert len(usable) > 20


def test_a_run_that_goes_on_appears_and_is_followed(
    browser: Browser, serve: Serve, tmp_path: Path, quick: None
) -> None:
    simulation = Simulation(run_id="20240105-going", classes=("copy", "write"), n_prompts=2)
    generations = list(simulation.generations())
    browser.open(serve(tmp_path).address)
    assert "roundscope run --quick" in browser.evaluate("document.querySelector('main').innerText")
    with Journal(tmp_path) as journal:
        journal.write(msgspec.convert(simulation.run_row(), RunRecord))
        write(journal, generations[:6])
        browser.wait_for("document.querySelector('#report figure') && document.querySelector('#runs tbody tr')")
        assert browser.evaluate(STATES) == [["20240105-going", "going on"]]
        assert browser.evaluate("document.title") == "roundscope: 20240105-going"
        assert browser.evaluate("document.querySelector('#report .going-on').checkVisibility()")
        # What a reader has opened, chosen, typed or scrolled to stays as it is while figures change.
        browser.evaluate("""(() => {
          window.stays = document.querySelector("#report figure");
          stays.querySelector("details").open = true;
          stays.querySelector("summary").focus();
          scrollTo(0, stays.getBoundingClientRect().top + scrollY);
          document.getElementById("sql").value = "mine";
        })()""")
        position = browser.evaluate("stays.getBoundingClientRect().top")
        before = browser.evaluate("[stays.innerText, document.querySelectorAll('#generation option').length]")
        write(journal, generations[6:])
        browser.wait_for(f"document.querySelectorAll('#generation option').length > {before[1]}")
        assert browser.evaluate("stays.innerText") != before[0]
        assert browser.evaluate("""[stays.isConnected, stays.querySelector("details").open,
          document.activeElement === stays.querySelector("summary"), document.getElementById("sql").value]""") == [
            True,
            True,
            True,
            "mine",
        ]
        assert browser.evaluate("stays.getBoundingClientRect().top") == position
        journal.write(msgspec.convert(simulation.run_row(), RunEnd))
        browser.wait_for(f"{STATES}[0][1] === 'complete'")
    browser.wait_for("!document.querySelector('#report .going-on')")
    assert browser.evaluate("document.getElementById('status').textContent") == ""


def test_a_run_whose_process_died_is_broken_off(browser: Browser, serve: Serve, tmp_path: Path, quick: None) -> None:
    simulation = Simulation(run_id="20240105-dying", classes=("copy",), n_prompts=1)
    with Journal(tmp_path) as journal:
        journal.write(msgspec.convert(simulation.run_row(), RunRecord))
        write(journal, simulation.generations())
        browser.open(serve(tmp_path).address)
        assert browser.evaluate(STATES) == [["20240105-dying", "going on"]]
    browser.wait_for(f"{STATES}[0][1] === 'broken off'")
    browser.wait_for("!document.querySelector('#report .going-on')")


def test_a_query_is_edited_and_run(browser: Browser, viewer: Viewer) -> None:
    browser.open(f"{viewer.address}?run=20240101-a")
    assert browser.evaluate("document.getElementById('sql').value").startswith("-- name: verdict\n")
    browser.evaluate("""(() => { const query = document.getElementById("query");
      query.value = "survival"; query.dispatchEvent(new Event("change", {bubbles: true})); })()""")
    browser.wait_for("document.getElementById('sql').value.startsWith('-- name: survival')")
    set_sql(browser, "select kind, '<b>' || model as model from runs where run_id = getvariable('run_id')")
    browser.press("Enter", 13, modifiers=CONTROL)
    browser.wait_for("document.querySelector('#answer td')")
    assert browser.evaluate(ROWS) == [["speculation", "<b>scripted"]]
    assert browser.evaluate("[...document.querySelectorAll('#answer th')].map((e) => e.textContent)") == [
        "kind",
        "model",
    ]
    assert browser.evaluate("document.querySelector('#answer caption').textContent").startswith("1 row in ")
    # What was typed is there after another run was chosen; the query as it was is one button away.
    browser.open(f"{viewer.address}?run=20240103-c")
    browser.evaluate("""(() => { const query = document.getElementById("query");
      query.value = "survival"; query.dispatchEvent(new Event("change", {bubbles: true})); })()""")
    browser.wait_for("document.getElementById('sql').value.startsWith('select kind')")
    browser.evaluate("document.getElementById('original').click()")
    assert browser.evaluate("document.getElementById('sql').value").startswith("-- name: survival\n")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("selec 1", "DuckDB says: Parser Error"),
        ("delete from runs", "DELETE is no question, and the store can only be read"),
        ("from read_text('/etc/hostname')", "DuckDB says: Permission Error"),
        ("select count(*) from range(1000000000000) where range % 7 = 3", "the query took longer than 5 s"),
        ("x" * 100_001, "a question has 100,000 bytes at most"),
    ],
)
def test_what_is_wrong_with_a_query_is_said_in_the_page(browser: Browser, viewer: Viewer, sql: str, said: str) -> None:
    browser.open(viewer.address)
    set_sql(browser, sql)
    browser.evaluate("document.getElementById('run').click()")
    browser.wait_for("document.querySelector('#answer .warning')")
    assert browser.evaluate("document.querySelector('#answer .warning').textContent").startswith(said)
    if "bytes at most" in said:  # a browser puts refused requests on its console
        assert ["413" in complaint for complaint in browser.complaints] == [True]
        browser.complaints.clear()


def test_a_generation_is_chosen_and_its_timeline_offered(browser: Browser, viewer: Viewer) -> None:
    browser.open(f"{viewer.address}?run=20240101-a")
    chosen = browser.evaluate("""(() => { const choice = document.getElementById("generation");
      choice.value = [...choice.options].find((e) => e.text.includes("prompt-lookup")).value;
      choice.focus(); choice.dispatchEvent(new Event("change", {bubbles: true})); return choice.value; })()""")
    browser.wait_for(f"document.getElementById('rounds').innerText.includes('generation {chosen}')")
    links = browser.evaluate("[...document.querySelectorAll('#timeline a')].map((e) => e.getAttribute('href'))")
    assert links == ["/timeline?run=20240101-a", f"/timeline?run=20240101-a&generation={chosen}"]
    assert browser.evaluate("[document.activeElement.id, document.activeElement.value]") == ["generation", chosen]
    assert browser.evaluate("new URL(location).searchParams.get('generation')") == chosen


def test_when_the_server_has_ended_the_page_says_so(browser: Browser, store: Path) -> None:
    with started(store) as (_, address):
        browser.open(address)
        figures = browser.evaluate("document.querySelectorAll('figure').length")
    browser.wait_for("document.getElementById('status').textContent.startsWith('The server does not answer')")
    assert browser.evaluate("document.querySelectorAll('figure').length") == figures > 0
    assert {"net::ERR_" in complaint for complaint in browser.complaints} == {True}
    browser.complaints.clear()


def test_on_paper_the_report_is_left_without_what_is_to_click(browser: Browser, viewer: Viewer) -> None:
    browser.open(f"{viewer.address}?run=20240101-a")
    browser.evaluate("document.getElementById('run').click()")
    browser.wait_for("document.querySelector('#answer td')")
    browser.resize(718, "light", "print")
    shown = "[...document.querySelectorAll('{}')].filter((e) => e.checkVisibility()).length"
    assert browser.evaluate(shown.format("#runs, #status, #question, #timeline, button, select, textarea, a")) == 0
    assert browser.evaluate(shown.format("#report figure")) > 3
    assert browser.evaluate(
        "[...document.querySelectorAll('.scroll')].every((e) => e.scrollWidth <= e.clientWidth + 1)"
    )
    assert browser.print().startswith(b"%PDF-")
