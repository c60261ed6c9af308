"""`roundscope view` as a process: its address, the browser it opens or leaves, and its end."""

from __future__ import annotations

import os
import signal
import sys
import webbrowser
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from runtime.cli.main import main
from tests.dashboards.view.conftest import started


def test_it_prints_its_address_serves_and_ends_at_ctrl_c(store: Path) -> None:
    with started(store) as (process, address):
        con = HTTPConnection(urlsplit(address).netloc, timeout=60)
        con.request("GET", "/runs")
        assert con.getresponse().status == 200  # and the connection is left open
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        con.close()
    assert (process.returncode, out, err) == (130, "", "\ninterrupted\n")


@pytest.mark.parametrize(
    ("options", "display", "opened"),
    [([], ":0", True), (["--no-browser"], ":0", False), ([], None, False)],
    ids=["a display", "told otherwise", "no display"],
)
def test_the_browser_is_opened_unless_told_otherwise(
    store: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    display: str | None,
    opened: bool,
) -> None:
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    monkeypatch.setattr("telemetry.sidecar.begin_following", lambda: None)
    monkeypatch.setattr("dashboards.view.Viewer.serve_forever", lambda self: None)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    if display:
        monkeypatch.setenv("DISPLAY", display)
    with pytest.raises(SystemExit) as ended:
        main(["view", "--store", str(store), *options])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out) == (0, "")
    assert [f"serving {address} (Ctrl-C ends it)\n" for address in addresses] == ([captured.err] if opened else [])


@pytest.mark.parametrize("missing", ["altair", "jinja2"])
def test_without_the_libraries_the_cure_is_named(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as ended:
        main(["view", "--store", str(store), "--no-browser"])
    assert (ended.value.code, "pip install 'roundscope[page]'" in capsys.readouterr().err) == (4, True)


def test_without_a_store_the_cure_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["view", "--store", str(tmp_path / "none"), "--no-browser"])
    assert ended.value.code == 2
    assert "run `roundscope run` first" in capsys.readouterr().err
