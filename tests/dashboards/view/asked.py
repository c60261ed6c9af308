"""Requests to the live page's server as they stand, right or wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection
from typing import Any

from dashboards.view import LOOPBACK, Viewer


@dataclass(frozen=True)
class Got:
    """What came back."""

    status: int
    headers: Message
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def error(self) -> str:
        """The sentence of a refusal."""
        said = json.loads(self.body)
        assert list(said) == ["error"]
        return str(said["error"])


def request(viewer: Viewer, method: str, path: str, body: bytes | None = None, **headers: str | None) -> Got:
    """Send a request with the headers that a browser's would have, changed by `headers` (None: left out)."""
    host = f"{LOOPBACK}:{viewer.server_port}"
    fields: dict[str, str | None] = {"Host": host}
    if method == "POST":
        fields |= {"Origin": f"http://{host}", "Content-Type": "application/json"}
        fields |= {"Content-Length": str(len(body or b""))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    con = HTTPConnection(LOOPBACK, viewer.server_port, timeout=60)
    try:
        con.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in fields.items():
            if value is not None:
                con.putheader(name, value)
        con.endheaders()
        if body is not None:
            con.send(body)
        answer = con.getresponse()
        return Got(answer.status, answer.headers, answer.read())
    finally:
        con.close()


def get(viewer: Viewer, path: str, **headers: str | None) -> Got:
    """GET `path`."""
    return request(viewer, "GET", path, **headers)


def ask(viewer: Viewer, sql: str, run: str | None = None) -> dict[str, Any]:
    """What the page gets for a question."""
    got = request(viewer, "POST", "/ask", json.dumps({"sql": sql, "run": run}).encode())
    assert got.status == 200, got.text
    answer: dict[str, Any] = json.loads(got.body)
    return answer
