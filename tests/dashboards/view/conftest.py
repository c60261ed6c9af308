"""A store as runs leave it, and the live page's server on loopback, in a thread of this process."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from dashboards.view import Viewer
from tests.conftest import ROOT, child_environment, lack
from tests.dashboards.test_command import record, record_ncm
from tests.queries.simulate import Simulation
from tests.queries.simulate_ncm import NcmSimulation

MAIN = "from runtime.cli.main import main\nmain()\n"
Serve = Callable[[Path], Viewer]


@contextmanager
def serving(store: Path, limit_s: float | None = None) -> Iterator[Viewer]:
    """The server, answering."""
    with Viewer(store, limit_s=limit_s) as viewer:
        thread = threading.Thread(target=viewer.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield viewer
        finally:
            viewer.shutdown()
            thread.join()


@contextmanager
def started(store: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`roundscope view` as a process, with the address that it prints; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "view", "--store", str(store), "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=child_environment(),
    ) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            found = re.fullmatch(r"serving (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", said)
            assert found, said + process.stderr.read()
            yield process, found[1]
        finally:
            process.kill()


@pytest.fixture(autouse=True, scope="session")
def _libraries() -> None:
    """Altair and vl-convert."""
    missing = [name for name in ("altair", "vl_convert") if find_spec(name) is None]
    if missing:
        lack(" and ".join(missing), "pip install --editable '.[test]'")


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two runs that speculate, and one of the coarse-to-fine generator."""
    folder = tmp_path_factory.mktemp("store")
    record(folder, Simulation(run_id="20240101-a", classes=("copy", "write")))
    record_ncm(folder, NcmSimulation(run_id="20240102-b"))
    record(folder, Simulation(run_id="20240103-c", classes=("copy",), seed=1))
    return folder


@pytest.fixture(scope="session")
def viewer(store: Path) -> Iterator[Viewer]:
    """The server on it."""
    with serving(store, limit_s=5.0) as running:
        yield running


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves stores of the test's own."""
    with ExitStack() as stack:
        yield lambda store: stack.enter_context(serving(store))
