"""`roundscope report --html`: the file, and what is said when it cannot be made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from telemetry.ledger import Ledger
from tests.dashboards.page.reading import Page
from tests.dashboards.test_command import call, record
from tests.queries.simulate import Simulation
from tests.runtime.commands import query


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two runs."""
    record(tmp_path, Simulation(run_id="run-1", classes=("copy",)))
    record(tmp_path, Simulation(run_id="run-2", classes=("copy",), seed=1))
    return tmp_path


def test_the_page_is_a_file(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = store / "a page.html"
    assert call(capsys, "--html", str(file), "--store", str(store)) == (0, "", f"wrote {file}\n")
    assert Page(file.read_text(encoding="utf-8")).headings[0] == ("h1", "roundscope, run run-2")
    options = ["--run", "run-1", "--generation", "latest", "--store", str(store)]
    assert call(capsys, "--html", str(file), *options)[0] == 0
    assert Page(file.read_text(encoding="utf-8")).headings[0] == ("h1", "roundscope, run run-1")
    assert sorted(path.name for path in store.iterdir()) == ["a page.html", "journal", "roundscope.duckdb"]


def test_spans_that_did_not_arrive_are_told(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, place = store / "page.html", "http://127.0.0.1:4318/v1/traces"
    with Ledger(store, place) as ledger:
        ledger.note_failed(1)
    assert call(capsys, "--html", str(file), "--run", "run-1", "--store", str(store))[0] == 0
    told = [text for text in Page(file.read_text(encoding="utf-8")).paragraphs if place in text]
    export = f"roundscope export --otlp {place} --run run-1 --store {store}"
    [(n,)] = query(store, "select count(*) from generations where run_id = 'run-1'")
    assert told == [f"Spans of {n} generations are not at {place}; `{export}` sends them."]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["verdict", "--html", "x"], "--html is about the whole run: leave NAME, --json and --csv out"),
        (["--json", "--html", "x"], "--html is about the whole run: leave NAME, --json and --csv out"),
        (["--generation", "a"], "--generation goes with --html FILE; in the terminal: roundscope show ID"),
        (["--generation", "zz", "--html", "x"], "there is no generation 'zz'; latest shows the last one"),
    ],
    ids=["query", "json", "generation alone", "unknown generation"],
)
def test_what_makes_no_sense_is_refused(
    store: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    assert call(capsys, *options, "--store", str(store)) == (2, "", f"error: {reason}\n")


def test_a_file_that_cannot_be_written(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = store / "none" / "page.html"
    reason = f"error: cannot write {file}: No such file or directory; name another file\n"
    assert call(capsys, "--html", str(file), "--store", str(store)) == (1, "", reason)


@pytest.mark.parametrize("missing", ["altair", "vl_convert", "jinja2"])
def test_without_the_libraries_the_cure_is_named(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    code, out, err = call(capsys, "--html", str(store / "page.html"), "--store", str(store))
    assert (code, out) == (4, "")
    assert err.splitlines()[-1] == (
        f"error: the page needs {missing} to draw its charts; install it: pip install 'roundscope[page]' "
        "(in a clone: pip install --editable '.[page]')"
    )
