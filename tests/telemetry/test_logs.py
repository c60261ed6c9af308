"""Log events: where they go, what they carry, which there are, and that the documentation lists them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider

from runtime.generate import decode
from runtime.testing import ScriptedTarget
from telemetry import logs
from telemetry.journal import Journal
from telemetry.recorder import Recorder
from telemetry.span_data import derive_span_id, derive_trace_id
from telemetry.spans import build_spans
from tests.conftest import ROOT, run_python
from tests.runtime.commands import CHILD, call, read_lines, write_prompts
from tests.telemetry import stores

PACKAGES = ("telemetry", "runtime", "queries", "dashboards")
GENERATION = "0123456789abcdef" * 2
EMIT = """
import sys
from telemetry.logs import get_logger
for level in ("debug", "info", "warning", "error"):
    getattr(get_logger(), level)(f"test.{level}", n=1)
"""
SECRET = "abzabzabzab"
SPOIL = """
import runtime.experiment.comparison as comparison
import runtime.speculative.rules as rules
rules.count_accepted = lambda drafted, predicted: len(drafted)
comparison.NEAR_TIE_TOLERANCE = dict.fromkeys(comparison.NEAR_TIE_TOLERANCE, {tolerance})
"""
"""Verification that accepts everything, so that outputs differ."""


def find_events() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Every event in the code: name, level, and the names of its fields as they are written there."""
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if is_event(node):
                [name] = node.args
                assert isinstance(name, ast.Constant), f"{path}: an event's name must be a constant"
                yield name.value, node.func.attr, tuple(keyword.arg for keyword in node.keywords if keyword.arg)


def is_event(node: ast.AST) -> Any:
    """Whether a piece of code is `get_logger().LEVEL(...)`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    made = node.func.value
    return isinstance(made, ast.Call) and ast.unparse(made.func).rpartition(".")[2] == "get_logger"


def read_events(text: str) -> list[dict[str, Any]]:
    """The events among the lines of a stderr that is no terminal."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_every_event_is_documented_with_its_level_and_fields() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (\w+) \| .* \| (.*) \|$", (ROOT / "docs/logs.md").read_text(), re.MULTILINE)
    documented = {(name, level): set(re.findall(r"`(\w+)`", fields)) for name, level, fields in rows}
    assert len(rows) == len(documented)
    found: dict[tuple[str, str], set[str]] = {}
    for name, level, fields in find_events():
        assert re.fullmatch(r"[a-z_]+\.[a-z\d_]+", name)
        found.setdefault((name, level), set()).update(fields)
    assert set(documented) == set(found)
    assert {key: missing for key, fields in found.items() if (missing := fields - documented[key])} == {}


def test_events_are_made_by_our_logger_only() -> None:
    """Neither by `warnings` nor by another logger: one place decides where an event goes."""
    others = re.compile(r"\bwarnings\.warn\(|\bstructlog\.get_logger\(|\bgetLogger\([^)]*\)(?!\.setLevel)")
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in paths if others.search(path.read_text(encoding="utf-8"))}
    assert found == {"telemetry/logs.py"}


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (None, ["info", "warning", "error"]),
        ("debug", ["debug", "info", "warning", "error"]),
        ("WARNING", ["warning", "error"]),
        ("error", ["error"]),
        ("loud", ["info", "warning", "error"]),
    ],
)
def test_the_environment_sets_the_level_and_stdout_stays_empty(level: str | None, shown: list[str]) -> None:
    child = run_python(EMIT, env={logs.VARIABLE: level})
    assert (child.returncode, child.stdout) == (0, "")
    events = read_events(child.stderr)
    assert [(event["event"], event["level"], event["n"]) for event in events] == [(f"test.{x}", x, 1) for x in shown]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", event["timestamp"]) for event in events)
    assert len(child.stderr.splitlines()) == len(events)


def test_the_flag_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag, environment, shown in (("error", "debug", 0), ("debug", "error", 1), (None, "error", 0), (None, None, 1)):
        if environment is None:
            monkeypatch.delenv(logs.VARIABLE)
        else:
            monkeypatch.setenv(logs.VARIABLE, environment)
        call(capsys, *([] if flag is None else ["--log-level", flag]), "sql", "select 1", "--store", "/nonexistent")
        logs.get_logger().info("test.info")
        assert len(read_events(capsys.readouterr().err)) == shown
    monkeypatch.setenv(logs.VARIABLE, "loud")
    code, out, err = call(capsys, "sql", "select 1")
    assert (code, out) == (2, "")
    assert "'loud' is not one of" in err


def test_on_a_terminal_lines_are_for_people(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    logs.get_logger().warning("test.warning", n=1)
    captured = capsys.readouterr()
    plain = re.sub(r"\x1b\[[\d;]*m", "", captured.err)
    assert re.fullmatch(r"\[warning +\] test\.warning +n=1\n", plain)
    assert captured.out == ""


def test_an_application_that_configured_structlog_gets_the_events(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        with structlog.testing.capture_logs() as captured:  # configures structlog
            logs.get_logger().warning("test.warning", n=1)
    finally:
        structlog.reset_defaults()
    assert captured == [{"event": "test.warning", "log_level": "warning", "n": 1}]
    assert capsys.readouterr().err == ""


def test_an_event_about_a_generation_points_to_its_span(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def emit(**facts: Any) -> dict[str, Any]:
        logs.get_logger().warning("test.warning", **facts)
        [event] = read_events(capsys.readouterr().err)
        return {name: event[name] for name in ("trace_id", "span_id", "run_id", "generation_id") if name in event}

    own = {"trace_id": derive_trace_id(GENERATION), "span_id": derive_span_id(GENERATION), "generation_id": GENERATION}
    assert emit() == emit(generation_id=None) == {}
    assert emit(generation_id=GENERATION) == own
    with logs.bound(run_id="run-1"):
        assert emit() == {"run_id": "run-1"}
    assert emit() == {}
    with TracerProvider().get_tracer("test").start_as_current_span("caller") as span:
        context = span.get_span_context()
        caller = {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
        assert emit() == caller
        assert emit(generation_id=GENERATION) == {**own, "trace_id": caller["trace_id"]}
        assert emit(generation_id=GENERATION, rank=1) == own
    monkeypatch.setenv("TRACEPARENT", f"00-{'a' * 32}-{'b' * 16}-01")
    assert emit() == {"trace_id": "a" * 32, "span_id": "b" * 16}


def test_an_event_stays_in_the_trace_of_its_generation_whatever_is_active(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = f"00-{'a' * 32}-{'b' * 16}-01"
    target = ScriptedTarget(lambda _: 1, vocab_size=5)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    recorder = Recorder()
    with tracer.start_as_current_span("caller"):
        asked = [decode(target, [1], max_tokens=1, recorder=recorder, traceparent=each) for each in (given, None)]
    own = decode(target, [1], max_tokens=1, recorder=recorder)
    with tracer.start_as_current_span("another"):
        for generation in (*asked, own):
            generation.drain()
            logs.get_logger().warning("test.warning", generation_id=generation.id)
    found = [(event["trace_id"], event["span_id"]) for event in read_events(capsys.readouterr().err)]
    roots = [span for span in build_spans(recorder.records) if span.name.startswith("text_completion")]
    assert found == [(root.trace_id, root.span_id) for root in roots]
    assert len({trace_id for trace_id, _ in found}) == 3


def test_a_loss_names_the_generation_it_befell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(tmp_path) as journal:
        monkeypatch.setattr("os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        journal.write(stores.generation(GENERATION))
        monkeypatch.undo()
    [event] = read_events(capsys.readouterr().err)
    assert (event["event"], event["span_id"]) == ("journal.write_failed", derive_span_id(GENERATION))


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_store_lacks_is_an_event_and_on_a_terminal_a_line_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    path = stores.write_lines(tmp_path, stores.whole_run())
    with path.open("ab") as file:
        file.write(b"{}\n{")
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    err = call(capsys, "sql", "select 1", "--store", tmp_path)[2]
    said = (
        "new in the journals: 1 torn lines, 1 rejected ones (see the table `rejected`), 0 records that could not be "
        "written"
    )
    assert [line for line in err.splitlines() if not line.startswith("{")] == [f"note: {said}"]
    events = [(event["event"], event["level"], event["note"]) for event in read_events(err)]
    assert events == ([] if terminal else [("store.noted", "warning", said)])


@pytest.mark.parametrize(("tolerance", "name", "code"), [("1e-3", "divergent", 3), ("1e9", "near_tie", 0)])
def test_outputs_that_differ_are_events_of_their_run_and_generation(
    tmp_path: Path, tolerance: str, name: str, code: int
) -> None:
    """And neither they nor anything else on stderr tells what the prompts were."""
    prompts = write_prompts(tmp_path, [letter + SECRET for letter in "defghi"])
    store = tmp_path / "s"
    arguments = ("run", "--prompts", str(prompts), "--store", str(store), "--max-tokens", "24")
    child = run_python(CHILD.format(SPOIL.format(tolerance=tolerance)), "--log-level", "debug", *arguments)
    assert child.returncode == code, child.stderr
    events = [event for event in read_events(child.stderr) if event["event"].startswith("output.")]
    compared = [line for line in read_lines(store) if line["type"] == "comparison" and not line["equal"]]
    [run] = [line for line in read_lines(store) if line["type"] == "run"]
    expected = [
        (f"output.{name}", run["run_id"], line["generation_id"], derive_trace_id(line["generation_id"]))
        for line in compared
    ]
    assert expected
    found = [(event["event"], event["run_id"], event["generation_id"], event["trace_id"]) for event in events]
    assert found == expected
    assert SECRET not in child.stderr
    assert f"output.{name}" not in child.stdout
