"""The page in a real Chromium, on a phone and on a desk: not too wide, no overlaps, and axe-core finds nothing.

The browser gets a copy of the page with a script that writes down what it finds; the page itself allows none.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from html import escape, unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dashboards.page import render_page
from tests.conftest import lack, require_tool
from tests.dashboards.page.pages import fill
from tests.queries.simulate import open_store

LOOK = """
const wide = (e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll");
const visible = (e) => e.getBoundingClientRect().width > 0 && getComputedStyle(e).opacity > 0;
const boxes = (svg) => [...svg.querySelectorAll("text")].filter((e) => e.textContent && e.getAttribute("opacity") != "0"
  && visible(e)).map((e) => [e.textContent, e.getBoundingClientRect()]);
const meet = (a, b) => a.left < b.right - 2 && b.left < a.right - 2 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
const pairs = (found) => found.flatMap(([s, a], i) => found.slice(i + 1)
  .filter(([, b]) => meet(a, b)).map(([t]) => [s, t]));
addEventListener("load", async () => {
  const found = {width: innerWidth, scrolls: document.documentElement.scrollWidth > innerWidth};
  found.wide = [...document.querySelectorAll("body *")].filter(wide).map((e) => e.outerHTML.slice(0, 80));
  found.overlaps = [...document.querySelectorAll("svg")].flatMap((svg) => pairs(boxes(svg)));
  document.querySelectorAll("details").forEach((e) => { e.open = true; });
  found.open = document.documentElement.scrollWidth > innerWidth;
  const checked = await axe.run();
  found.violations = checked.violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 80))]);
  found.passes = checked.passes.length;
  found.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const said = document.createElement("pre");
  said.id = "found";
  said.textContent = JSON.stringify(found);
  parent.document.body.append(said);
});
"""
FRAME = """<!doctype html><title>frame</title><body style="margin: 0">
<iframe srcdoc="{}" style="width: {}px; height: 900px; border: 0; color-scheme: {}"></iframe>"""
"""The page in a window of any width: a browser's own is never as narrow as a phone's."""


@pytest.fixture(scope="module")
def page() -> str:
    """The page about a run with every part, and a script for the browser in it."""
    place = find_spec("axe_core_python")
    if place is None or not place.submodule_search_locations:
        lack("axe-core", "make test")
    axe = (Path(place.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")
    with open_store() as con:
        fill(con)
        html = render_page(con, "run-1")
    html, n_replaced = re.subn(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", html)
    assert n_replaced == 1
    return html.replace("</body>", f"<script>{axe}</script><script>{LOOK}</script></body>")


def look(page: str, folder: Path, width: int, scheme: str) -> tuple[dict[str, Any], str]:
    """What the script found at this width of the window, and what the browser complained of."""
    chromium = require_tool("chromium", "apt-get install chromium")
    path = folder / "frame.html"
    path.write_text(FRAME.format(escape(page), width, scheme), encoding="utf-8")
    command = [chromium, "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr", "--v=0"]
    if os.geteuid() == 0:
        command.append("--no-sandbox")
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", "--virtual-time-budget=20000"]
    done = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=300, check=True
    )
    [found] = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    said: dict[str, Any] = json.loads(unescape(found))
    return said, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1440, "dark")])
def test_nothing_is_too_wide_overlaps_or_cannot_be_read(page: str, tmp_path: Path, width: int, scheme: str) -> None:
    found, complaints = look(page, tmp_path, width, scheme)
    assert found.pop("passes") > 20
    assert (found, complaints) == (
        {
            "width": width,
            "scrolls": False,
            "wide": [],
            "overlaps": [],
            "open": False,
            "violations": [],
            "dark": scheme == "dark",
        },
        "",
    )
