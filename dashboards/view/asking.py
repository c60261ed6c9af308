"""Anybody's SQL on a store, in a process of its own: read-only, limited in time, memory and rows, without any file.

A process, because a query that cannot be interrupted, or that takes DuckDB down, must not take the page with it, and
because what a connection is forbidden holds for the whole process. It has a low priority and one thread: a run that
goes on beside it is being timed.

As a program (`python -m dashboards.view.asking`) it reads a `Question` as JSON and writes an `Answer` as JSON.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from telemetry.errors import RoundscopeError
from telemetry.plain import are_numbers, show
from telemetry.sidecar import begin_following, child_environment

if TYPE_CHECKING:
    from telemetry.store import Connected

LIMIT_S = 20.0
MOST_ROWS = 1000
MOST_CHARACTERS = 2000
"""Of a value; longer ones are cut, and end in an ellipsis."""
AT_ONCE = 2
_MOST_BYTES = 4_000_000
_MEMORY = "1GB"
_ADDRESS_SPACE = 8 << 30
_GRACE_S = 5.0
"""For starting and opening the store, which a busy machine takes its time for, and once more for letting go."""


class Question(Struct, forbid_unknown_fields=True):
    """SQL to run on a store. run_id: what the queries' variable of that name is set to; None: left alone."""

    store: str
    sql: str
    run_id: str | None
    limit_s: float
    most_rows: int


class Answer(Struct):
    """Rows as text, or an error that says what to do. numbers: which columns hold numbers; notes: what was left out."""

    columns: list[str] = []
    numbers: list[bool] = []
    rows: list[list[str]] = []
    notes: list[str] = []
    seconds: float = 0.0
    error: str | None = None


class Asker:
    """Asks a store; from any thread. limit_s: seconds that a query may take."""

    def __init__(self, store: Path, limit_s: float = LIMIT_S, most_rows: int = MOST_ROWS) -> None:
        self._store = store
        self._limit_s = limit_s
        self._most_rows = most_rows
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, sql: str, run_id: str | None) -> Answer:
        """The answer; whatever is wrong with the question or happens to its process is the answer's error."""
        if not self._places.acquire(blocking=False):
            return Answer(error=f"{AT_ONCE} queries are running already: wait for one of them")
        try:
            question = Question(str(self._store), sql, run_id, self._limit_s, self._most_rows)
            return self._run(msgspec.json.encode(question))
        finally:
            self._places.release()

    def close(self) -> None:
        """End what is running; nothing runs afterwards."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def _run(self, question: bytes) -> Answer:
        with self._start() as process:
            try:
                said, _ = process.communicate(question, timeout=self._limit_s + 2 * _GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                return Answer(error=_say_too_long(self._limit_s))
        try:
            return msgspec.json.decode(said, type=Answer)
        except msgspec.DecodeError:
            return Answer(error=_say_end(process.returncode, self._limit_s))

    @contextlib.contextmanager
    def _start(self) -> Iterator[subprocess.Popen[bytes]]:
        with self._lock:
            if self._closed:
                raise RoundscopeError("the page's server is ending")
            # A process group of its own: Ctrl-C reaches this process only, which ends it.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_environment(),
                process_group=0,
            )
            self._running.add(process)
        try:
            with process:
                yield process
        finally:
            with self._lock:
                self._running.discard(process)


def _say_too_long(limit_s: float) -> str:
    return f"the query took longer than {limit_s:g} s and was ended: ask for less, or type it after `roundscope sql`"


def _say_end(code: int, limit_s: float) -> str:
    if code == -signal.SIGALRM:
        return _say_too_long(limit_s)
    if code in (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT):
        name = signal.Signals(-code).name
        return f"the query's process was ended by {name}, most likely for lack of memory: ask for less"
    return f"the query's process ended with exit code {code} and without an answer"


def main() -> None:
    """Answer the question on standard input."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing but the answer: DuckDB shows progress there
    begin_following()
    with contextlib.suppress(ValueError, OSError):  # a lower limit may be set already
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    signal.setitimer(signal.ITIMER_REAL, question.limit_s + 2 * _GRACE_S)  # should the parent be gone
    try:
        answer = _answer(question)
    except RoundscopeError as error:
        answer = Answer(error=str(error))
    except MemoryError:
        answer = Answer(error="the query needs more memory than it may have: ask for less")
    with open(answers, "wb") as pipe:
        pipe.write(msgspec.json.encode(answer))
    os._exit(0)  # nothing is left to do, and an interrupted query may not let go


@contextlib.contextmanager
def open_restricted(question: Question) -> Iterator[Connected]:
    """The store for one question: what this process may do with it from now on is little."""
    from queries import install_views
    from telemetry.store import connect, restrict

    with connect(Path(question.store), prepare=install_views) as connected:
        con = connected.con
        if question.run_id is not None:
            con.execute("set variable run_id = $id", {"id": question.run_id})
        for setting in ("threads = 1", f"memory_limit = '{_MEMORY}'", "temp_directory = ''"):
            con.execute(f"set {setting}")
        restrict(con)
        yield connected


def _answer(question: Question) -> Answer:
    import duckdb

    from queries import ask
    from telemetry.errors import UsageError

    with open_restricted(question) as connected:
        timer = threading.Timer(question.limit_s, connected.con.interrupt)
        timer.start()
        begun = time.monotonic()
        try:
            result = ask(connected.con, question.sql, question.most_rows + 1)
        except UsageError as error:
            if isinstance(error.__cause__, duckdb.InterruptException):
                raise UsageError(_say_too_long(question.limit_s)) from error
            raise
        finally:
            timer.cancel()
        seconds = time.monotonic() - begun
    rows, notes = _write(result.rows, question.most_rows)
    numbers = [are_numbers(values) for values in zip(*result.rows, strict=True)] or [False] * len(result.columns)
    return Answer(list(result.columns), numbers, rows, [*connected.notes, *notes], seconds)


def _write(found: list[tuple[Any, ...]], most_rows: int) -> tuple[list[list[str]], list[str]]:
    """Rows as text within the limits, and what was left out."""
    rows: list[list[str]] = []
    n_bytes = 0
    for row in found[:most_rows]:
        rows.append([_cut(show(value)) for value in row])
        n_bytes += sum(map(len, rows[-1]))
        if n_bytes > _MOST_BYTES:
            break
    left_out = len(rows) < len(found)
    return rows, [f"the first {len(rows):,} rows are shown; there are more"] if left_out else []


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


if __name__ == "__main__":
    main()
