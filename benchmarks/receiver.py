"""A receiver of spans on loopback and a scraper of metrics, in a process of their own.

It says its endpoint on standard output. A line on standard input is the address that is scraped at once and every
second from then on, an empty one ends that; the end of standard input ends the process. Bodies are read and thrown
away.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Queue

SCRAPE_S = 1.0


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Receiver:
    """The process, as who starts it sees it."""

    def __init__(self, process: subprocess.Popen[str], endpoint: str) -> None:
        self.endpoint = endpoint
        self._process = process

    def scrape(self, address: str = "") -> None:
        """Scrape this address at once and every second; without one, none."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{address}\n")
        self._process.stdin.flush()


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver while the block runs."""
    command = [sys.executable, "-m", "benchmarks.receiver"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Receiver(process, process.stdout.readline().strip())
        process.stdin.close()


def main() -> None:
    """Receive and scrape until standard input ends."""
    os.nice(5)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}/v1/traces", flush=True)
    wanted: Queue[str] = Queue()
    threading.Thread(target=_scrape, args=(wanted,), daemon=True).start()
    for line in sys.stdin:
        wanted.put(line.strip())


def _scrape(wanted: Queue[str]) -> None:
    address = ""
    while True:
        with suppress(Empty):
            address = wanted.get(timeout=SCRAPE_S if address else None)
        if address:
            with suppress(OSError), urllib.request.urlopen(address, timeout=10) as answer:
                answer.read()


if __name__ == "__main__":
    main()
