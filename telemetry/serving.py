"""Serves metrics: an HTTP endpoint for Prometheus that follows journals, whoever writes them and however they end.

Every scrape first counts what is new. What was counted is put into STORE/metrics.json before anybody sees it, so
counters never go back: not when this process is killed and started again, not when journals were archived in between.
Without that file everything is counted anew from the journals that are there.

As a program (`python -m telemetry.serving STORE JOURNAL HOST PORT`) it is the process behind `roundscope run
--metrics-port`: one journal, for the time of the run, and nothing kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from telemetry.errors import RoundscopeError, UsageError
from telemetry.export_losses import ExportLosses, Position
from telemetry.following import Follower
from telemetry.journal import FOLDER
from telemetry.logs import get_logger
from telemetry.metrics import Metrics, MetricsState
from telemetry.sidecar import Sidecar, begin_following, is_over, start, tell

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.core import Metric as Family

STATE = "metrics.json"
LOCK = "metrics.lock"
LOOPBACK = "127.0.0.1"
POLL_S = 5.0
"""How often journals are read when nobody scrapes: one that is archived must have been read before."""


class State(Struct):
    """What STORE/metrics.json holds."""

    metrics: MetricsState
    journals: dict[str, Any]
    exports: dict[str, Position]


class Counting:
    """Metrics that are up to date whenever they are collected. state: where they are kept; None: nowhere."""

    def __init__(self, follower: Follower, losses: ExportLosses | None = None, state: Path | None = None) -> None:
        self.metrics = Metrics()
        self._follower = follower
        self._losses = losses
        self._path = state
        self._lock = threading.Lock()
        self._kept: bytes | None = None
        self._warned = False

    def restore(self, state: State) -> None:
        """Go on from `state`; the follower and the losses are there already."""
        self.metrics.restore(state.metrics)

    def collect(self) -> Iterator[Family]:
        """Count what is new, then give the families of prometheus-client."""
        with self._lock:
            self._catch_up()
            families = list(self.metrics.collect())
        return iter(families)

    def catch_up(self) -> None:
        """Count what is new."""
        with self._lock:
            self._catch_up()

    def _catch_up(self) -> None:
        while lines := self._follower.poll():
            self.metrics.count_lines(lines)
            self._keep()
        writers = self._follower.writers
        self.metrics.end_journals(name for name, writer in writers.items() if writer == "ended")
        self.metrics.set_journals(writers.values())
        if self._losses is not None:
            self._losses.count(self.metrics)
        self._keep()

    def _keep(self) -> None:
        if self._path is None:
            return
        exports = {} if self._losses is None else self._losses.state
        state = msgspec.json.encode(State(self.metrics.state(), self._follower.state, exports))
        if state == self._kept:
            return
        try:
            partial = self._path.with_suffix(".partial")
            with partial.open("wb") as file:
                file.write(state)
                file.flush()
                os.fsync(file.fileno())  # else a file of that name may be empty after a crash of the machine
            partial.replace(self._path)
            self._kept = state
        except OSError as error:
            if not self._warned:
                _warn_of_state(self._path, error.strerror or str(error))
            self._warned = True


def open_counting(store: Path) -> Counting:
    """The metrics of a store, going on from where they were left. The caller must hold its lock."""
    path = store / STATE
    state = _read_state(path)
    counting = Counting(
        Follower(store / FOLDER, None if state is None else state.journals),
        ExportLosses(store, None if state is None else state.exports),
        path,
    )
    if state is not None:
        counting.restore(state)
    return counting


def find_uncounted(store: Path, journals: Collection[str], patience_s: float = 2 * POLL_S) -> set[str]:
    """Those of these journals, whose writers have ended, that the counters of the store do not have yet.

    They are counted now if no endpoint serves them; else it is given `patience_s` seconds to do so. Where no counters
    are kept, none can go back: empty.
    """
    if not (store / STATE).exists():
        return set()
    with contextlib.suppress(RoundscopeError), lock(store):
        open_counting(store).catch_up()
    end = time.monotonic() + patience_s
    while True:
        state = _read_state(store / STATE)
        read = {} if state is None else {name: row.get("bytes_read", 0) for name, row in state.journals.items()}
        uncounted = {name for name in journals if read.get(name, 0) < (store / FOLDER / name).stat().st_size}
        if not uncounted or state is None or time.monotonic() >= end:
            return uncounted
        time.sleep(0.1)


def _read_state(path: Path) -> State | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        get_logger().warning(
            "metrics.state_unreadable",
            file=str(path),
            reason=str(error),
            effect="everything is counted anew from the journals; counters start again without what was archived",
        )
        return None


def _warn_of_state(path: Path, reason: str) -> None:
    get_logger().warning(
        "metrics.state_not_kept",
        file=str(path),
        reason=reason,
        effect="after a restart, everything is counted anew from the journals that are there",
    )


@contextlib.contextmanager
def lock(store: Path) -> Iterator[None]:
    """Be the only one who keeps this store's metrics. RoundscopeError: somebody else does; UsageError: no store."""
    if not store.is_dir():
        raise UsageError(f"no store at {store}: run `roundscope run` first, or name another with --store DIR")
    with contextlib.ExitStack() as held:
        try:
            file = held.enter_context(open(store / LOCK, "ab"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RoundscopeError(
                f"the metrics of {store} are being served already: scrape that endpoint, or end it"
            ) from error
        except OSError:
            pass  # where this cannot be written nothing can be kept, which is said then
        yield


def listen(counting: Counting, host: str, port: int) -> tuple[WSGIServer, str]:
    """Answer scrapes in a thread; the server, and its address. port 0: any free one. Raises RoundscopeError."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    counting.catch_up()
    try:
        registry.register(counting)
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    shown = f"[{host}]" if ":" in host else host
    return server, f"http://{shown}:{server.server_port}/metrics"


def check_port(host: str, port: int) -> None:
    """Raise RoundscopeError if nobody could listen there now."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: OSError) -> RoundscopeError:
    reason = error.strerror or error
    return RoundscopeError(f"cannot serve metrics at {host}:{port}: {reason}. Choose another port or host.")


def serve(store: Path, host: str, port: int) -> None:
    """Serve a store's metrics until the process is ended. The store is made if it is not there yet.

    RoundscopeError: it cannot be made, it is served already, or nobody can listen there.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RoundscopeError(
            f"cannot serve the metrics of {store}: {error.strerror}; choose another place with --store DIR"
        ) from error
    with lock(store):
        counting = open_counting(store)
        server, address = listen(counting, host, port)
        get_logger().info("metrics.serving", address=address, store=str(store))
        try:
            while True:
                time.sleep(POLL_S)
                counting.catch_up()
        finally:
            server.shutdown()


def follow(store: Path, journal: Path, host: str, port: int) -> Sidecar:
    """Serve the metrics of one journal in a process of its own. Raises RoundscopeError if that cannot begin."""
    return start("the metrics endpoint", __name__, [str(store), journal.name, host, str(port)])


def main(arguments: list[str]) -> None:
    """Serve a journal until the parent ends it; arguments: store, name of the journal, host, port."""
    store, journal, host, port = Path(arguments[0]), arguments[1], arguments[2], int(arguments[3])
    counting = Counting(Follower(store / FOLDER, journals=[journal]), ExportLosses(store, from_now=True))
    try:
        _, address = listen(counting, host, port)
    except RoundscopeError as error:
        tell(error=str(error))
        return
    begin_following()
    tell(address=address)
    while not is_over(POLL_S):
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
