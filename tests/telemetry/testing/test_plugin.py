"""The pytest plugin: found by its entry point, idle until a fixture is asked for, and clear when an assertion fails."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint

import pytest

from tests.conftest import ROOT

pytest_plugins = ["pytester"]

SETUP = """
import pytest
from runtime import decode
from runtime.testing import ScriptedTarget

def generate():
    target = ScriptedTarget(lambda history: history[-1] + 1, vocab_size=20)
    return decode(target, [1, 2], max_tokens=3).drain()
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's project, whose only plugin is this one."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\nstrict = true\nfilterwarnings = error\naddopts = -p telemetry.pytest_plugin\n")
    return pytester


def test_the_entry_point_names_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [(name, value)] = project["entry-points"]["pytest11"].items()
    plugin = EntryPoint(name, value, "pytest11").load()
    assert {"roundscope_trace", "roundscope_clock"} <= set(vars(plugin))


def test_it_loads_nothing_before_a_fixture_is_asked_for(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import sys
        HEAVY = {"opentelemetry", "mlx", "numpy", "duckdb", "prometheus_client"}
        FOUND = (HEAVY | {"msgspec", "telemetry.testing", "runtime"}) & set(sys.modules)

        def test_start_up():
            assert FOUND == set()

        def test_a_trace_of_nothing(roundscope_trace):
            assert len(roundscope_trace.spans) == 0
            assert HEAVY & set(sys.modules) == set()
        """
    )
    project.runpytest_subprocess("-q").assert_outcomes(passed=2)


def test_every_test_has_its_own_trace_with_the_same_ids(project: pytest.Pytester) -> None:
    project.makepyfile(
        SETUP
        + """
@pytest.mark.parametrize("n", [1, 2])
def test_ids(roundscope_trace, n):
    assert [generate().id for _ in range(n)] == [f"{k + 1:032x}" for k in range(n)]
    roundscope_trace.spans.find("round").assert_exactly(3 * n)

def test_clock(roundscope_clock, roundscope_trace):
    generate()
    [start] = roundscope_trace.spans.roots()
    assert start.start_unix_ns == 1_700_000_000_000_000_000
    roundscope_trace.spans.find("round").assert_durations_within(2_000, 4_000)

def test_true_time(roundscope_trace):
    generate()
    assert roundscope_trace.spans[0].start_unix_ns > 1_700_000_000_000_000_000
"""
    )
    project.runpytest_subprocess("-q").assert_outcomes(passed=4)


def test_a_failure_shows_the_line_of_the_test_and_the_tree(project: pytest.Pytester) -> None:
    project.makepyfile(
        SETUP
        + """
def test_fails(roundscope_trace, roundscope_clock):
    generate()
    roundscope_trace.spans.find("round").assert_exactly(4)
"""
    )
    result = project.runpytest_subprocess("-q")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            '>       roundscope_trace.spans.find("round").assert_exactly(4)',
            "E       *TraceAssertionError: expected exactly 4 spans named 'round'",
            "E       found 3",
            "E           text_completion scripted  * at 0 ns",
            "E             round  * at *   <-- 1 of 3",
        ]
    )
    result.stdout.no_fnmatch_line("*checks.py*")
