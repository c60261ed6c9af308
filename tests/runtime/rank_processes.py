"""Real ranks of a distributed run on loopback: by MLX's launcher, or each started by hand with its variables."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tests.conftest import ROOT, child_environment
from tests.runtime.commands import CHILD

LAUNCHER = "from mlx._distributed_utils.launch import main; main()"
PATIENCE_S = 300


def find_ports(n: int) -> list[int]:
    """Free ports, one after the other as the launcher counts them."""
    while True:
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            first = server.getsockname()[1]
        try:
            for port in range(first, first + n):
                socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError):
            continue
        return list(range(first, first + n))


def launch(n: int, arguments: Sequence[str], program: str = "") -> subprocess.CompletedProcess[str]:
    """`mlx.launch -n N -- roundscope ARGUMENTS`, on a target of letters; `program` as in CHILD."""
    command = [sys.executable, "-c", LAUNCHER, "-n", str(n), "--starting-port", str(find_ports(n)[0]), "--"]
    command += [sys.executable, "-c", CHILD.format(program), *arguments]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=child_environment(),
        # Left open: the launcher reads it all the time, and at its end without ever waiting.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    try:
        process.wait(PATIENCE_S)
        out, err = process.communicate()
    finally:
        process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def start(rank: int, hostfile: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    """Python's `code` as a rank of the group that `hostfile` describes."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=child_environment({"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hostfile)}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each, once all have ended."""
    try:
        return [
            (process.returncode, out, err)
            for process in processes
            for out, err in [process.communicate(timeout=PATIENCE_S)]
        ]
    finally:
        for process in processes:
            process.kill()


def write_hostfile(folder: Path, n: int) -> Path:
    """A hostfile of `n` ranks on loopback, as the launcher writes it for the ring."""
    path = folder / "hosts.json"
    path.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in find_ports(n)]))
    return path
