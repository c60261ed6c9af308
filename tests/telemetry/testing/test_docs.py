"""docs/trace-assertions.md is true: its blocks run, its failure says what stands there, its tables name everything."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import telemetry.testing
from queries.testing import assert_pays
from telemetry.testing import Spans
from tests.conftest import ROOT

pytest_plugins = ["pytester"]

PAGE = (ROOT / "docs" / "trace-assertions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", PAGE, re.MULTILINE | re.DOTALL)


def summarize(function: Callable[..., object]) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((function.__doc__ or "").split("\n\n")[0].split())


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_its_blocks_are_tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Each in a process of its own, as MLX cannot be imported twice into one."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code, failure = BLOCKS[number]
    pytester.makeini("[pytest]\nstrict = true\nfilterwarnings = error\naddopts = -p telemetry.pytest_plugin\n")
    pytester.makepyfile(code)
    result = pytester.runpytest_subprocess("--tb=short")
    result.assert_outcomes(**({"failed": 1} if failure else {"passed": code.count("def test_")}))
    said = "\n".join(line.removeprefix("E   ") for line in result.outlines if line.startswith("E   "))
    assert said.partition(": ")[2] == failure.rstrip("\n")


def test_it_names_every_assertion_with_what_it_asserts() -> None:
    methods = [method for name, method in vars(Spans).items() if name.startswith("assert_")]
    named = [getattr(telemetry.testing, name) for name in telemetry.testing.__all__ if name.startswith("assert_")]
    rows = re.findall(r"^\| `(assert_\w+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert rows == [(each.__name__, summarize(each)) for each in (*methods, *named, assert_pays)]
