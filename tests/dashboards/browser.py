"""A real Chromium, spoken to over its debugging pipe, and what a page in it has to be.

The pipe carries the Chrome DevTools Protocol: JSON messages that end in a null byte. Scripts that are evaluated that
way are not bound by a page's Content-Security-Policy, so a page is looked at as it is.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.conftest import lack, require_tool

PATIENCE_S = 120.0
LOOK = """
(async () => {
  const shown = (e) => e.getBoundingClientRect().width > 0 && getComputedStyle(e).opacity > 0;
  const wide = (e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll") && shown(e);
  const boxes = (svg) => [...svg.querySelectorAll("text")].filter((e) => e.textContent
    && e.getAttribute("opacity") != "0" && shown(e)).map((e) => [e.textContent, e.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right - 2 && b.left < a.right - 2 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  const pairs = (found) => found.flatMap(([s, a], i) => found.slice(i + 1)
    .filter(([, b]) => meet(a, b)).map(([t]) => [s, t]));
  const parts = "h1, h2, p, nav, figure, button, select, textarea, label, .scroll, a, footer";
  const blocks = [...document.querySelectorAll(parts)].filter(shown);
  const apart = blocks.flatMap((a, i) => blocks.slice(i + 1).filter((b) => !a.contains(b) && !b.contains(a)
    && !a.closest(".scroll") && !b.closest(".scroll") && meet(a.getBoundingClientRect(), b.getBoundingClientRect()))
    .map((b) => [a.outerHTML.slice(0, 60), b.outerHTML.slice(0, 60)]));
  const found = {width: innerWidth, scrolls: document.documentElement.scrollWidth > innerWidth};
  found.wide = [...document.querySelectorAll("body *")].filter(wide).map((e) => e.outerHTML.slice(0, 80));
  found.overlaps = [...[...document.querySelectorAll("svg")].flatMap((svg) => pairs(boxes(svg))), ...apart];
  const closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach((e) => { e.open = true; });
  found.open = document.documentElement.scrollWidth > innerWidth;
  const checked = await axe.run();
  closed.forEach((e) => { e.open = false; });
  found.violations = checked.violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 80))]);
  found.enough = checked.passes.length > 20;
  found.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  return found;
})()
"""
USABLE = """
(() => { window.usable = [...document.querySelectorAll("a[href], button, select, textarea, summary, [tabindex='0']")]
  .filter((e) => e.checkVisibility() && !e.closest("details:not([open]) > :not(summary)"));
  document.activeElement.blur(); getSelection().removeAllRanges(); scrollTo(0, 0);
  return usable.map((e, i) => `${i} ${e.outerHTML.slice(0, 80)}`); })()
"""
FOCUSED = """
(() => { const e = document.activeElement, s = getComputedStyle(e), b = e.getBoundingClientRect();
  return e === document.body ? null : [`${usable.indexOf(e)} ${e.outerHTML.slice(0, 80)}`, s.outlineStyle !== "none"
    && parseFloat(s.outlineWidth) >= 1 && b.right > 0 && b.bottom > 0 && b.width > 0]; })()
"""


class Browser:
    """A headless browser with one page. `complaints`: what it wrote on its console since it was started."""

    def __init__(self, pid: int, reads: int, writes: int) -> None:
        self.complaints: list[str] = []
        self._pid = pid
        self._reads, self._writes = reads, writes
        self._buffer = b""
        self._n = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to a command of its protocol."""
        self._n += 1
        message: dict[str, Any] = {"id": self._n, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._n:
            self._take_down(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, address: str) -> None:
        """Go there, and wait until everything has been loaded."""
        answer = self.call("Page.navigate", url=address)
        assert "errorText" not in answer, answer
        self.wait_for(f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until a JavaScript expression is true; AssertionError if it never is."""
        end = time.monotonic() + PATIENCE_S
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end, (
                condition,
                self.complaints,
                self.evaluate("document.body.innerText.slice(-500)"),
            )
            time.sleep(0.03)

    def resize(self, width: int, scheme: str = "light", media: str = "") -> None:
        """Make the page so many pixels wide, light or dark, on a screen or (media="print") on paper."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def press(self, key: str, code: int, **more: Any) -> None:
        """Press a key and let it go."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def look(self) -> dict[str, Any]:
        """What is too wide, overlaps or is refused by axe-core."""
        place = find_spec("axe_core_python")
        if place is None or not place.submodule_search_locations:
            lack("axe-core", "make test")
        axe = Path(place.submodule_search_locations[0]) / "axe.min.js"
        self.evaluate(axe.read_text(encoding="utf-8") + "\n;0")
        found: dict[str, Any] = self.evaluate(LOOK)
        return found

    def walk(self) -> tuple[list[str], list[str], list[str]]:
        """What can be used, what the Tab key reaches, in its order, and what of that shows no focus."""
        usable: list[str] = self.evaluate(USABLE)
        reached: list[str] = []
        unseen: list[str] = []
        while True:
            self.press("Tab", 9)
            focused = self.evaluate(FOCUSED)
            if focused is None or focused[0] in reached:
                return usable, reached, unseen
            reached.append(focused[0])
            unseen += [] if focused[1] else [focused[0]]

    def print(self) -> bytes:
        """The page as a PDF of A4 sheets."""
        return base64.b64decode(self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])

    def picture(self) -> bytes:
        """The whole page as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._reads], [], [], PATIENCE_S)[0], "the browser does not answer"
            read = os.read(self._reads, 1 << 20)
            assert read, "the browser has gone"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _take_down(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(f"{told['type']}: {json.dumps(told['args'])}")
        elif event.get("method") == "Log.entryAdded":
            self.complaints.append(f"{told['entry']['level']}: {told['entry']['text']}")


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own below `folder`; the test is skipped where there is no Chromium."""
    chromium = require_tool("chromium", "apt-get install chromium")
    options = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run"]
    options += [f"--user-data-dir={folder / 'profile'}", "--hide-scrollbars", "--disable-background-networking"]
    if os.geteuid() == 0:
        options.append("--no-sandbox")
    theirs_in, writes = os.pipe()
    reads, theirs_out = os.pipe()
    # Above the numbers that the browser expects, so that neither overwrites the other.
    given = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs_in, theirs_out)]
    actions = [
        (os.POSIX_SPAWN_DUP2, given[0], 3),
        (os.POSIX_SPAWN_DUP2, given[1], 4),
        (os.POSIX_SPAWN_OPEN, 2, str(folder / "stderr"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
    ]
    pid = os.posix_spawn(chromium, [chromium, *options], os.environ, file_actions=actions, setpgroup=0)
    for fd in (theirs_in, theirs_out, *given):
        os.close(fd)
    try:
        yield Browser(pid, reads, writes)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # its own group: it and its children
        os.waitpid(pid, 0)
        os.close(reads)
        os.close(writes)


def expect_look(width: int, scheme: str) -> dict[str, object]:
    """What `look` finds where nothing is wrong."""
    return {
        "width": width,
        "scrolls": False,
        "wide": [],
        "overlaps": [],
        "open": False,
        "violations": [],
        "enough": True,
        "dark": scheme == "dark",
    }
