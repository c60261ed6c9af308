"""What `python -m benchmarks telemetry_cost` measures: a block's followers have that block alone to follow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks import receiver, telemetry_cost
from telemetry.journal import Journal
from telemetry.recorder import MemorySink


def test_a_block_follows_a_journal_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[tuple[Path, Path]] = []

    @contextmanager
    def following(store: Path, journal: Journal, receiver: object) -> Iterator[None]:
        followed.append((store, journal.path))
        yield

    monkeypatch.setattr(telemetry_cost, "_following", following)
    written: list[Path] = []
    for arm in ("off", "all", "journal", "all", "naive"):
        with telemetry_cost._recording(arm, None, []) as sink:  # type: ignore[arg-type]
            if isinstance(sink, MemorySink):
                assert arm in ("off", "naive")
            else:
                assert isinstance(sink, Journal)
                assert list(sink.path.parent.iterdir()) == [sink.path]
                written.append(sink.path)
    assert len(set(written)) == 3
    assert followed == [(written[n].parent.parent, written[n]) for n in (0, 2)]


def test_a_bare_write_is_all_that_its_arm_does() -> None:
    times: list[float] = []
    with telemetry_cost._recording("bare", None, times) as sink:  # type: ignore[arg-type]
        for _ in range(3):
            sink.write(None)  # type: ignore[arg-type]
    assert len(times) == 3
    assert min(times) > 0


def test_an_address_is_scraped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only after a second: a block is hardly longer."""
    monkeypatch.setattr(receiver, "SCRAPE_S", 3600.0)
    scraped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            scraped.set()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        wanted: receiver.Queue[str] = receiver.Queue()
        for target, arguments in ((server.serve_forever, (0.05,)), (receiver._scrape, (wanted,))):
            threading.Thread(target=target, args=arguments, daemon=True).start()
        wanted.put(f"http://127.0.0.1:{server.server_port}/metrics")
        assert scraped.wait(30.0)
        wanted.put("")
        server.shutdown()
