"""What the tests share: child processes, tools that a machine may lack, and how hypothesis searches.

`ROUNDSCOPE_REQUIRE_TOOLS=1` (set by `.ci/run`) turns a missing tool from a skip with its reason into a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

# Committed ids are compared with mlx-lm's, equal to the last bit only where every width goes through the same matrix
# product: MLX's own. Set before anything loads mlx; child processes have an environment of their own.
os.environ.setdefault("ROUNDSCOPE_BLAS", "stock")

# A shell's `pytest &` ignores Ctrl-C for us, and what we start would inherit that: tests interrupt it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent

# The same examples on every machine, however slow it is; a failure prints what brings it back.
settings.register_profile("roundscope", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("roundscope")


def run_python(
    code: str,
    *arguments: str,
    env: Mapping[str, str | None] | None = None,
    cwd: Path = ROOT,
    options: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter and return what it printed and its exit code.

    The child sees this process's environment less every ROUNDSCOPE_ variable, changed by `env` (None: unset).
    `options` go to the interpreter. Where `cwd` is the repository (default), its packages can be imported.
    """
    command = [sys.executable, *options, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=child_environment(env), capture_output=True, text=True, check=False, timeout=600
    )


def child_environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment less every ROUNDSCOPE_ variable, with `changes` (None: unset)."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDSCOPE_")}
    for name, value in (changes or {}).items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return environment


def require_tool(name: str, cure: str) -> str:
    """The path of the program `name`; without it the test is skipped, or fails where tools are required."""
    path = shutil.which(name)
    return path if path is not None else lack(f"the program {name}", cure)


def lack(what: str, cure: str) -> NoReturn:
    """End the test because this machine lacks `what`: skipped, or failed where tools are required."""
    reason = f"needs {what}: {cure}"
    if os.environ.get("ROUNDSCOPE_REQUIRE_TOOLS"):
        pytest.fail(f"{reason} (ROUNDSCOPE_REQUIRE_TOOLS is set)")
    pytest.skip(reason)
