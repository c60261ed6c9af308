"""Processes that follow a journal while another process generates: started, told apart and ended in one place.

A follower is a process of its own, because exporting in a thread of the generating one delays its rounds. It lives on a
pipe: when its parent closes the pipe or dies, however it dies, the follower reads the end of its standard input, does
what is left to do and ends. What it has to say to its parent is a JSON object a line on its standard output: first that
it is ready, last what it did, or in between an `error`. Its standard error is the parent's.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from telemetry.errors import RoundscopeError
from telemetry.logs import get_logger

START_S = 30.0
END_S = 10.0
_NICENESS = 19


@dataclass
class Sidecar:
    """A follower that is ready. ready: what it said of itself; summary: what it said last, once it has ended."""

    name: str
    process: subprocess.Popen[bytes]
    ready: dict[str, Any]
    summary: dict[str, Any] = field(default_factory=dict)

    def end(self, patience_s: float = END_S) -> dict[str, Any]:
        """Let it finish within `patience_s` seconds, else end it by its process id; what it said last, or nothing."""
        process = self.process
        try:
            said, _ = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
        lines = said.splitlines()
        with contextlib.suppress(ValueError):
            self.summary = _read(lines[-1]) if lines else {}
        if process.returncode:
            get_logger().warning(
                "sidecar.failed",
                sidecar=self.name,
                exit_code=process.returncode,
                reason=self.summary.get("error", "it ended before its time, or did not end in time"),
                effect="the recording is complete all the same",
            )
        return self.summary


def start(name: str, module: str, arguments: Sequence[str], *, patience_s: float = START_S) -> Sidecar:
    """Run `python -m module arguments` as a follower until it is ready. Raises RoundscopeError with its reason.

    It gets a process group of its own, so that Ctrl-C reaches the parent only, and a lower priority than the rounds.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,  # so that nothing said is held back where `communicate` does not see it
        env=child_environment(),
        process_group=0,
    )
    sidecar = Sidecar(name, process, {})
    try:
        sidecar.ready = _await_ready(process, patience_s)
    except BaseException as error:
        process.kill()
        process.communicate()
        if isinstance(error, (ValueError, TimeoutError)):
            raise RoundscopeError(f"cannot start {name}: {error}") from error
        raise
    return sidecar


@contextlib.contextmanager
def running(*sidecars: Sidecar, patience_s: float = END_S) -> Iterator[None]:
    """End these followers when the block is left, however it is left."""
    try:
        yield
    finally:
        for sidecar in sidecars:
            sidecar.end(patience_s)


def child_environment() -> dict[str, str]:
    """The environment of a process that runs one of these modules with `python -P -m`."""
    # The parent may have found these packages in its working folder, which -P keeps out.
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _await_ready(process: subprocess.Popen[bytes], patience_s: float) -> dict[str, Any]:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], patience_s)[0]:
        raise TimeoutError(f"it was not ready within {patience_s:g} s")
    said = process.stdout.readline()
    if not said:
        raise ValueError(f"it ended with exit code {process.wait()}; its own words are above")
    answer = _read(said)
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer


def _read(line: bytes) -> dict[str, Any]:
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError(f"it said {line.decode(errors='replace').strip()!r}")
    return answer


def begin_following() -> None:
    """In the follower, before it says that it is ready: step back behind whoever computes.

    Not sooner, because the parent waits until then: on a busy machine, the last in the queue takes minutes to start.
    """
    os.nice(_NICENESS)


def tell(**facts: Any) -> None:
    """In the follower: say something to the parent. A parent that has gone is told nothing."""
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(facts), flush=True)


def is_over(wait_s: float) -> bool:
    """In the follower: whether the parent has let go or died, known within `wait_s` seconds, at once if it has."""
    return bool(select.select([sys.stdin], [], [], wait_s)[0]) and not os.read(sys.stdin.fileno(), 4096)
