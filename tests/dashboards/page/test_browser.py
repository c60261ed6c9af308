"""The page in a real Chromium, on a phone, a desk and paper: nothing is too wide, overlaps or cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dashboards.page import render_page
from tests.dashboards.browser import Browser, browsing, expect_look
from tests.dashboards.page.pages import fill
from tests.queries.simulate import open_store
from tests.queries.simulate_ncm import NcmSimulation

A4 = 718
"""Pixels between the margins of a sheet."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser that has opened the page about a run with every part."""
    folder = tmp_path_factory.mktemp("browser")
    with browsing(folder) as started:
        with open_store() as con:
            fill(con)
            (folder / "page.html").write_text(render_page(con, "run-1"), encoding="utf-8")
        started.open((folder / "page.html").as_uri())
        yield started


@pytest.fixture(scope="module")
def ncm_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser that has opened the page about a run of the coarse-to-fine generator."""
    folder = tmp_path_factory.mktemp("ncm-browser")
    with browsing(folder) as started:
        with open_store() as con:
            NcmSimulation().fill(con)
            (folder / "page.html").write_text(render_page(con, "run-1"), encoding="utf-8")
        started.open((folder / "page.html").as_uri())
        yield started


def check_looks(browser: Browser, width: int, scheme: str) -> None:
    browser.resize(width, scheme)
    assert (browser.look(), browser.complaints) == (expect_look(width, scheme), [])


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1440, "dark")])
def test_nothing_is_too_wide_overlaps_or_cannot_be_read(browser: Browser, width: int, scheme: str) -> None:
    check_looks(browser, width, scheme)


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_nor_on_the_page_of_a_coarse_to_fine_run(ncm_browser: Browser, width: int, scheme: str) -> None:
    check_looks(ncm_browser, width, scheme)


def test_everything_is_reached_by_keyboard_and_shows_its_focus(browser: Browser) -> None:
    browser.resize(1440)
    usable, reached, unseen = browser.walk()
    assert (reached, unseen) == (usable, [])
    assert len(usable) > 15


def test_on_paper_every_table_is_whole_and_nothing_to_click_is_left(browser: Browser) -> None:
    browser.resize(A4, "dark", "print")
    found = browser.evaluate("""(() => {
      const shown = [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().width > 0);
      const cut = (e) => e.scrollWidth > e.clientWidth + 1;
      return {
        wide: shown.filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML),
        cut: shown.filter((e) => e.matches(".scroll") && cut(e)).map((e) => e.getAttribute("aria-label")),
        tables: shown.filter((e) => e.matches("table")).length,
        all: document.querySelectorAll("table").length,
        clickable: shown.filter((e) => e.matches("a, summary, nav")).length,
        paper: getComputedStyle(document.body).backgroundColor,
      };
    })()""")
    assert found.pop("all") == found.pop("tables") > 10
    assert found == {"wide": [], "cut": [], "clickable": 0, "paper": "rgb(255, 255, 255)"}
    assert browser.print().startswith(b"%PDF-")
