"""Followers as processes: ready, failing, ended by their parent, and gone when their parent is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from telemetry import sidecar
from telemetry.errors import RoundscopeError
from tests.conftest import child_environment

GOOD = """
import sys
from telemetry.sidecar import begin_following, is_over, tell
begin_following()
tell(words=sys.argv[1:])
while not is_over(0.01): pass
tell(done=True)
"""
PARENT = """
import sys, time
from telemetry.sidecar import start
print(start("it", "good").process.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of followers to be started by name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "good.py").write_text(GOOD)
    return tmp_path


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout


def test_it_says_that_it_is_ready_and_at_its_end_what_it_did() -> None:
    started = sidecar.start("it", "good", ["a", "b c"])
    assert started.ready == {"words": ["a", "b c"]}
    with sidecar.running(started):
        assert is_alive(started.process.pid)
    assert (started.summary, started.process.returncode) == ({"done": True}, 0)


def test_it_is_ended_when_the_block_fails() -> None:
    started = sidecar.start("it", "good", [])
    with pytest.raises(KeyboardInterrupt), sidecar.running(started):
        raise KeyboardInterrupt
    assert started.process.returncode == 0


def test_ctrl_c_in_a_terminal_does_not_reach_it() -> None:
    started = sidecar.start("it", "good", [])
    with sidecar.running(started):
        assert os.getpgid(started.process.pid) == started.process.pid != os.getpgid(0)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("from telemetry.sidecar import tell; tell(error='the port is taken')", "cannot start it: the port is taken"),
        ("import sys; sys.exit(3)", "cannot start it: it ended with exit code 3; its own words are above"),
        ("print('hello', flush=True)", "cannot start it: Expecting value: line 1 column 1 (char 0)"),
        ("print('[1]', flush=True)", "cannot start it: it said '[1]'"),
        ("import time; time.sleep(60)", "cannot start it: it was not ready within 0.5 s"),
    ],
)
def test_one_that_cannot_begin_is_an_error_with_its_reason(modules: Path, code: str, reason: str) -> None:
    (modules / "bad.py").write_text(code)
    patience_s = 0.5 if "sleep" in code else 30
    with pytest.raises(RoundscopeError) as caught:
        sidecar.start("it", "bad", [], patience_s=patience_s)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("code", "exit_code"), [("import time; time.sleep(60)", -signal.SIGKILL), ("import os; os._exit(5)", 5)]
)
def test_one_that_does_not_end_or_dies_is_warned_about_and_no_more(
    modules: Path, code: str, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (modules / "bad.py").write_text(f"from telemetry.sidecar import tell; tell(ready=1)\n{code}")
    started = sidecar.start("it", "bad", [])
    assert started.end(patience_s=0.5) == {}
    assert started.process.returncode == exit_code
    assert capsys.readouterr().err.count("sidecar.failed") == 1


def test_it_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = PARENT.replace('"good"', '"good", []')
    environment = child_environment({"PYTHONPATH": f"{Path(sidecar.__file__).parent.parent}:{tmp_path}"})
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    end = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < end
        time.sleep(0.02)
