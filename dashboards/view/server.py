"""The live page's server: on loopback, for the page it serves itself and nobody else.

Whatever a browser on this machine opens can send requests to loopback, so a request counts only if its Host is a name
of loopback (a name of somebody else's that resolves to 127.0.0.1 is refused: DNS rebinding), if its Origin, where it
has one, is that very host, and, where it asks something of the store (POST), if it has an Origin and is JSON, which no
form of another site can send. The page may load and run nothing but what this server sends (Content-Security-Policy).
"""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import SplitResult, parse_qs, urlsplit

import msgspec
from msgspec import Struct

import queries
from dashboards.page.templates import fill_in
from dashboards.view.asking import Asker
from dashboards.view.content import Content, Fragment, render_page
from telemetry.errors import RoundscopeError, UsageError
from telemetry.logs import get_logger

LOOPBACK = "127.0.0.1"
NAMES = frozenset({LOOPBACK, "localhost"})
"""What the Host of a request may be; the port is free, so that a forwarded one works."""
MOST_BYTES = 100_000
"""Of a question."""
PATIENCE_S = 60.0
"""How long a connection may stay silent."""
HTML, JSON = "text/html; charset=utf-8", "application/json"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Given: TypeAlias = dict[str, str]
_encode = msgspec.json.encode


class _Question(Struct):
    """The body of a POST to /ask."""

    sql: str
    run: str | None = None


class _Refused(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: HTTPStatus, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class Viewer(ThreadingHTTPServer):
    """Serves the live page of a store. port 0: any free one. Raises RoundscopeError if it cannot listen there.

    limit_s: seconds that a query of the page may take; None: the usual ones.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, store: Path, port: int = 0, limit_s: float | None = None) -> None:
        self.content = Content(store)
        self.asker = Asker(store) if limit_s is None else Asker(store, limit_s)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise RoundscopeError(
                f"cannot listen at {LOOPBACK}:{port}: {error.strerror or error}. Choose another port with --port."
            ) from error

    @property
    def address(self) -> str:
        """The page's address."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def server_bind(self) -> None:
        """Bind without looking this machine's name up, which takes seconds where nothing answers."""
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    def server_close(self) -> None:
        """Stop listening, and end the queries that are running."""
        super().server_close()
        self.asker.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is nothing to speak of; anything else is a fault of ours."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            get_logger().error("view.failed", error=repr(error))


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Viewer
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_S

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _refuse_method(self) -> None:
        self._answer(self._forbid)

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse_method

    def version_string(self) -> str:
        """Who serves, and nothing of what Python it runs on."""
        return "roundscope"

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses (no HTTP, a method nobody knows) is said as everything else is."""
        self.close_connection = True
        with suppress(ValueError):
            self._say(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def _answer(self, route: Callable[[], None]) -> None:
        self._asked_to_close = self.close_connection
        if any(name in self.headers for name in ("Content-Length", "Transfer-Encoding")):
            self.close_connection = True  # until a body is read
        try:
            self._check_sender()
            route()
        except _Refused as refusal:
            self._say(refusal.status, str(refusal), refusal.headers)
        except UsageError as error:
            self._say(HTTPStatus.NOT_FOUND, str(error))
        except RoundscopeError as error:
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            get_logger().error("view.failed", error=repr(error))
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, f"a fault of roundscope's: {error!r}")

    def _check_sender(self) -> None:
        hosts = self.headers.get_all("Host") or []
        name = _split(f"//{hosts[0]}").hostname if len(hosts) == 1 else None
        if name not in NAMES:
            raise _Refused(
                HTTPStatus.FORBIDDEN, f"this page is for this machine alone: open http://{LOOPBACK}:{self._port}/"
            )
        origins = self.headers.get_all("Origin") or []
        if any(origin.lower() != f"http://{hosts[0]}".lower() for origin in origins):
            raise _Refused(HTTPStatus.FORBIDDEN, "a page of another site asked; only this server's own may")
        site = self.headers.get("Sec-Fetch-Site", "none")
        if site not in ("none", "same-origin") and _split(self.path).path != "/":
            raise _Refused(HTTPStatus.FORBIDDEN, "a page of another site may lead to / and ask for nothing else")

    @property
    def _port(self) -> int:
        return self.server.server_port

    def _get(self) -> None:
        parts = _split(self.path)
        page = self._pages.get(parts.path)
        if page is None:
            if parts.path == "/ask":
                raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "/ask takes POST only", Allow="POST")
            raise _Refused(HTTPStatus.NOT_FOUND, f"there is no page {parts.path!r} here; begin at /")
        try:
            given = parse_qs(parts.query, errors="strict", max_num_fields=8)
        except ValueError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"what follows the ? cannot be read: {error}") from error
        page({name: values[-1] for name, values in given.items()})

    @cached_property
    def _pages(self) -> dict[str, Callable[[Given], None]]:
        return {
            "/": self._send_page,
            "/style.css": self._send_style,
            "/view.js": self._send_script,
            "/changes": self._send_changes,
            "/runs": self._send_runs,
            "/report": self._send_report,
            "/query": self._send_query,
            "/timeline": self._send_timeline,
        }

    def _forbid(self) -> None:
        path = _split(self.path).path
        allowed = "POST" if path == "/ask" else "GET, HEAD"
        raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"{path!r} takes {allowed} only", Allow=allowed)

    def _post(self) -> None:
        if _split(self.path).path != "/ask":
            self._forbid()
        if not self.headers.get("Origin"):
            raise _Refused(HTTPStatus.FORBIDDEN, "a question has to name its Origin, as every browser does")
        if self.headers.get_content_type() != JSON:
            raise _Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a question is {JSON}")
        body = self._read_body()
        self.close_connection = self._asked_to_close
        try:
            question = msgspec.json.decode(body, type=_Question)
        except msgspec.DecodeError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"that is no question: {error}") from error
        # What is wrong with the SQL is an answer, not a failure of the request: browsers put those on their console.
        self._send(JSON, _encode(self.server.asker.ask(question.sql, question.run)))

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length")
        if length is None or "Transfer-Encoding" in self.headers:
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "a question has to say how long it is (Content-Length)")
        if not (length.isascii() and length.isdigit()):
            raise _Refused(HTTPStatus.BAD_REQUEST, "the Content-Length is no number")
        if int(length) > MOST_BYTES:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a question has {MOST_BYTES:,} bytes at most")
        return self.rfile.read(int(length))

    def _send_page(self, given: Given) -> None:
        is_found, html = render_page(self.server.content, given.get("run"), given.get("generation"))
        self._send(HTML, html.encode("utf-8", "replace"), HTTPStatus.OK if is_found else HTTPStatus.NOT_FOUND)

    def _send_style(self, _: Given) -> None:
        style = fill_in("page/style.css") + _read("view.css")
        self._send("text/css; charset=utf-8", style.encode())

    def _send_script(self, _: Given) -> None:
        self._send("text/javascript; charset=utf-8", _read("view.js").encode())

    def _send_changes(self, given: Given) -> None:
        changes = self.server.content.changes(given.get("run"), given.get("report"))
        self._send(JSON, _encode(changes))

    def _send_runs(self, given: Given) -> None:
        self._send_fragment(self.server.content.runs(given.get("run")))

    def _send_report(self, given: Given) -> None:
        self._send_fragment(self.server.content.report(given.get("run"), given.get("generation")))

    def _send_fragment(self, fragment: Fragment) -> None:
        self._send(HTML, fragment.html.encode("utf-8", "replace"), headers={"ETag": fragment.version})

    def _send_query(self, given: Given) -> None:
        query = queries.find(given.get("name", ""))
        self._send(JSON, _encode({"name": query.name, "question": query.question, "sql": query.sql}))

    def _send_timeline(self, given: Given) -> None:
        run_id, generation = given.get("run"), given.get("generation")
        name = "".join(letter for letter in generation or run_id or "latest" if letter.isalnum() or letter in "-_")
        headers = {"Content-Disposition": f'attachment; filename="timeline-{name}.json"'}
        with self.server.content.timeline(run_id, generation) as file:
            self._send(JSON, file, headers=headers)

    def _say(self, status: HTTPStatus, reason: str, headers: dict[str, str] | None = None) -> None:
        self._send(JSON, _encode({"error": reason}), status, headers)

    def _send(
        self,
        kind: str,
        body: bytes | IO[bytes],
        status: HTTPStatus = HTTPStatus.OK,
        headers: dict[str, str] | None = None,
    ) -> None:
        length = len(body) if isinstance(body, bytes) else Path(body.name).stat().st_size
        self.send_response(status)
        fields = {"Content-Type": kind, "Content-Length": str(length), **HEADERS, **(headers or {})}
        if self.close_connection:
            fields["Connection"] = "close"
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if isinstance(body, bytes):
            self.wfile.write(body)
        else:
            shutil.copyfileobj(body, self.wfile)


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"{address!r} cannot be read: {error}") from error


def _read(name: str) -> str:
    return files("dashboards.view").joinpath(name).read_text(encoding="utf-8")
