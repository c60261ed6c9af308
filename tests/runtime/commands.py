"""`roundscope run` and `roundscope generate` in a test: on a target of letters, whose forwards alone take time.

A forward takes the same time however wide it is, on a fake clock, so whatever is accepted pays, on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from runtime.cli.main import main
from telemetry.journal import FOLDER
from telemetry.store import DATABASE
from telemetry.testing import FakeClock
from tests.runtime.experiment.letters import VOCABULARY, LetterTarget, say_cycle

STEP_NS = 2_000_000
DIFFERING = [letter + "abzabzabzab" for letter in "defghijk"]
"""Prompts after whose a and b the target says another letter than they do."""
CHILD = """
from pytest import MonkeyPatch
from runtime.cli.main import main
from tests.runtime.commands import stand_in
target = stand_in(MonkeyPatch())
{}
main()
"""
"""A program that runs its arguments as `roundscope` does, with `target` for the model."""


def stand_in(
    monkeypatch: pytest.MonkeyPatch, next_token: Callable[[Sequence[int]], int] = say_cycle, **options: Any
) -> Any:
    """Let every model that is loaded be one target of letters, which is returned, and every clock its own."""
    clock = FakeClock()
    target = LetterTarget(next_token, vocab_size=VOCABULARY, cost_ns=STEP_NS, clock=clock, **options)
    monkeypatch.setattr("runtime.targets.load_target", lambda *_, **__: target)
    monkeypatch.setattr("telemetry.recorder.SystemClock", lambda: clock)
    return target


def refuse_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loading a model fail the test: what is wrong with a command line has to be said before."""

    def load(*_: Any, **__: Any) -> Any:
        pytest.fail("a model was loaded")

    monkeypatch.setattr("runtime.targets.load_target", load)


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `roundscope`."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


def run(capsys: pytest.CaptureFixture[str], prompts: Path, *more: str | Path) -> tuple[int, str, str]:
    """`roundscope run` of 24 tokens a prompt, with its store beside the prompts."""
    return call(capsys, "run", "--prompts", prompts, "--store", prompts.parent / "s", "--max-tokens", "24", *more)


def write_prompts(folder: Path, texts: Sequence[str], classes: Sequence[str] = ("x",)) -> Path:
    """A file of prompts p0, p1, ..., their classes in turn."""
    path = folder / "mine.jsonl"
    lines = [{"id": f"p{i}", "class": classes[i % len(classes)], "text": text} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read_lines(store: Path) -> list[dict[str, Any]]:
    """What the journals of a store hold."""
    paths = sorted((store / FOLDER).glob("*"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def query(store: Path, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a store's database as it is, by DuckDB alone."""
    with duckdb.connect(store / DATABASE, read_only=True) as con:
        return con.execute(sql).fetchall()
