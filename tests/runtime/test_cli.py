"""The command line as a shell sees it: what starts, what it prints where, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from runtime.cli import ncm
from runtime.cli.main import SUMMARIES, main, roundscope
from tests.conftest import ROOT, child_environment, run_python
from tests.telemetry.stores import whole_run, write_lines

COMMANDS = list(SUMMARIES)
NCM_COMMANDS = list(ncm.SUMMARIES)
MAIN = "from runtime.cli.main import main\nmain()\n"
FAIL = """
import sys, types, click
from runtime.cli.main import main
from telemetry import errors
@click.command
def command():
    {}
sys.modules["runtime.cli.doctor"] = types.SimpleNamespace(command=command)
main(["doctor"])
"""


def outcome(code: str, *arguments: str) -> tuple[int, str, str]:
    child = run_python(code, *arguments)
    return child.returncode, child.stdout, child.stderr


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_loads_no_model_library(arguments: list[str]) -> None:
    """What makes a start slow is importing mlx-lm (1 to 2 s), MLX and numpy: help must not."""
    code = f"""
import sys
from runtime.cli.main import main
try: main({arguments})
except SystemExit as end: assert not end.code
heavy = {{"mlx", "mlx_lm", "transformers", "numpy", "duckdb", "rich.table", "opentelemetry", "prometheus_client"}}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    code, out, err = outcome(code)
    assert (code, err) == (0, "[]\n")
    assert out.startswith("Usage: roundscope ")


@pytest.mark.parametrize("package", ["runtime", "telemetry", "queries", "dashboards"])
def test_packages_import_no_model_library(package: str) -> None:
    heavy = {"mlx", "mlx_lm", "transformers", "numpy", "opentelemetry", "prometheus_client"}
    code = f"import {package}, sys\nprint(sorted({heavy} & set(sys.modules)))"
    assert outcome(code) == (0, "[]\n", "")


def test_the_public_names_are_found_lazily() -> None:
    code = "import runtime\nprint([getattr(runtime, name).__name__ for name in runtime.__all__])"
    assert outcome(code) == (0, "['Recorder', 'decode', 'load_target', 'speculate']\n", "")


def test_an_unknown_name_is_an_attribute_error() -> None:
    code = "import runtime\ntry: runtime.nothing\nexcept AttributeError as error: print(error)"
    assert outcome(code) == (0, "module 'runtime' has no attribute 'nothing'\n", "")


def test_the_list_of_commands_is_complete() -> None:
    """Each module of runtime.cli that has a `command` is listed, those of `ncm` by that group."""
    stems = {path.stem for path in (ROOT / "runtime" / "cli").glob("*.py")} - {"__init__"}
    listed = [*COMMANDS, *(f"ncm-{name}" for name in NCM_COMMANDS)]
    modules = {stem for stem in stems if hasattr(import_module(f"runtime.cli.{stem}"), "command")}
    assert sorted(stem.rstrip("_").replace("_", "-") for stem in modules) == sorted(listed)


@pytest.mark.parametrize("name", NCM_COMMANDS)
def test_every_help_of_the_group_ncm_ends_with_an_example(name: str) -> None:
    code, out, err = outcome(MAIN, "ncm", name, "--help")
    assert (code, err) == (0, "")
    assert out.rstrip().splitlines()[-1].strip().startswith(f"roundscope ncm {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_ends_with_an_example(name: str) -> None:
    context = click.Context(roundscope, info_name="roundscope")
    command = roundscope.get_command(context, name)
    assert command is not None
    last = command.get_help(click.Context(command, info_name=name, parent=context)).rstrip().splitlines()[-1]
    assert last.strip().startswith(f"roundscope {name}")


def test_the_groups_help_names_commands_and_exit_codes_and_ends_with_an_example() -> None:
    code, out, err = outcome(MAIN, "--help")
    assert (code, err) == (0, "")
    for name, summary in SUMMARIES.items():
        assert f"  {name:<{max(map(len, COMMANDS))}}  {summary}\n" in out
    for line in (
        "0    ok",
        "1    failed",
        "3    a check did not hold",
        "4    refused: not supported",
        "130  interrupted",
    ):
        assert f"    {line}" in out
    assert out.endswith("Example:\n    roundscope run --quick\n")


def test_version() -> None:
    code, out, err = outcome(MAIN, "--version")
    assert (code, out.split()[0], len(out.split()), err) == (0, "roundscope", 2, "")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise errors.RoundscopeError('disk full:\\n  free some')", (1, "", "error: disk full: free some\n")),
        ("raise errors.UsageError('no prompts')", (2, "", "error: no prompts\n")),
        ("raise errors.CheckFailed('differs')", (3, "", "error: differs\n")),
        ("raise KeyboardInterrupt", (130, "", "interrupted\n")),
        ("raise click.Abort", (130, "", "interrupted\n")),
        ("click.get_current_context().exit(3)", (3, "", "")),
        ("print('data')", (0, "data\n", "")),
    ],
)
def test_how_a_command_ends_is_how_the_process_ends(body: str, expected: tuple[int, str, str]) -> None:
    code, out, err = outcome(FAIL.format(body))
    assert (code, out, err.lstrip("\n")) == expected


def test_a_refusal_is_an_event_too() -> None:
    code, out, err = outcome(FAIL.format("raise errors.Unsupported('window')"))
    event, told = err.lstrip("\n").splitlines()
    named = {name: value for name, value in json.loads(event).items() if name != "timestamp"}
    assert (code, out, told) == (4, "", "error: window")
    assert named == {"event": "command.refused", "level": "warning", "reason": "window", "exit_code": 4}


def test_an_unknown_command_is_a_usage_error() -> None:
    code, out, err = outcome(MAIN, "nothing")
    assert (code, out) == (2, "")
    assert err.endswith("Error: No such command 'nothing'.\n")


def test_no_arguments_show_the_help_as_a_usage_error() -> None:
    code, out, err = outcome(MAIN)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: roundscope ")


@pytest.mark.parametrize("rows", [1, 100_000])
def test_a_reader_that_goes_away_is_no_traceback(rows: int) -> None:
    """`roundscope report | head -1`: one row is still in the buffer when the command returns, many are not."""
    with subprocess.Popen(
        [sys.executable, "-c", FAIL.format(f"sys.stdin.read()\n    for _ in range({rows}): print('row')")],
        cwd=ROOT,
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.close()
        child.stdout = None
        assert child.communicate() == (None, b"")
        assert child.returncode == 1


CALL = "from runtime.cli.main import main; main()"


@pytest.mark.parametrize("command", [["report"], ["sql", "select 1", "--csv"], ["--help"]])
def test_a_full_disk_behind_stdout_is_one_clear_line(command: list[str], tmp_path: Path) -> None:
    """What reads a store is asked of an empty one."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    store = [] if command == ["--help"] else ["--store", str(tmp_path)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", CALL, *command, *store],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=child_environment(),
            check=False,
        )
    assert "Traceback" not in done.stderr
    assert done.returncode == (2 if command == ["report"] else 1)
    if command != ["report"]:
        assert done.stderr.endswith("error: standard output: No space left on device\n")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CALL, "sql", "-", "--store", str(tmp_path)],
        input=b"select '\xff'",
        capture_output=True,
        cwd=ROOT,
        env=child_environment({"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8:surrogateescape"}),
        check=False,
    )
    assert done.returncode == 2
    assert b"error: standard input is no text from character 9 on: give UTF-8" in done.stderr


def test_a_closed_stdout_is_no_traceback(tmp_path: Path) -> None:
    code = "import sys; sys.stdout = None; from runtime.cli.main import main; "
    code += "main(['sql', 'select 1', '--store', sys.argv[1]])"
    child = run_python(code, str(tmp_path))
    assert (child.returncode, "Traceback" in child.stderr) == (0, False)


@pytest.mark.parametrize("place", ["before", "after", "both", "group"])
def test_the_log_level_may_stand_before_and_after_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("ROUNDSCOPE_LOG_LEVEL", "warning")
    level = ["--log-level", "error"]
    nothing = ["--store", str(tmp_path / "none")]
    arguments = {
        "before": [*level, "show", *nothing],
        "after": ["show", *level, *nothing],
        "both": ["--log-level", "debug", "show", *level, *nothing],
        "group": ["ncm", "run", *level, "--json", "--dry-run"],
    }
    with pytest.raises(SystemExit) as ended:
        main(arguments[place])
    assert (ended.value.code, os.environ["ROUNDSCOPE_LOG_LEVEL"]) == (2, "error")


@pytest.mark.parametrize(
    "command", [["report"], ["doctor"], ["run", "--quick"], ["view"], ["serve-metrics", "--port", "0"]]
)
def test_a_file_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(SystemExit) as ended:
        main([*command, "--store", str(path)])
    assert ended.value.code == 2
    assert f"Invalid value for '--store': Directory '{path}' is a file." in capsys.readouterr().err


def test_a_day_is_asked_for_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("2026-13-01", "1.10.2026", "yesterday", ""):
        with pytest.raises(SystemExit) as ended:
            main(["archive", "--before", text, "--store", str(tmp_path)])
        assert ended.value.code == 2
        assert f"{text!r} is no day: write it as YYYY-MM-DD, for instance 2026-10-01" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["asked to end", "interrupted"]
)
@pytest.mark.parametrize("command", [["view", "--no-browser"], ["serve-metrics", "--port", "0"]])
def test_what_serves_ends_in_good_order(tmp_path: Path, command: list[str], number: signal.Signals, code: int) -> None:
    write_lines(tmp_path, whole_run())
    child = subprocess.Popen(
        [sys.executable, "-c", MAIN, "--log-level", "info", *command, "--store", str(tmp_path)],
        env=child_environment() | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stderr is not None
        assert "serving" in child.stderr.readline()
        child.send_signal(number)
        rest = child.stderr.read()
        assert (child.wait(timeout=60), "Traceback" in rest) == (code, False)
