"""An OTLP receiver on this machine for tests, which decodes what it gets with OpenTelemetry's own definitions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

HELD_S = 60.0


@dataclass
class Receiver:
    """What it got, and how it answers. status: of every answer, or of the first ones in `statuses`.

    rejects: spans that a partial success names. holds: it does not answer before the block is left. retry_after,
    location: the headers of that name, if any.
    """

    endpoint: str = ""
    status: int = 200
    statuses: list[int] = field(default_factory=list)
    rejects: int = 0
    holds: bool = False
    retry_after: str | None = None
    location: str | None = None
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    @property
    def spans(self) -> list[Any]:
        """Every span of the requests that were answered well, as protobuf has it."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, str]:
        """Attributes of the resource of the first request."""
        return {each.key: each.value.string_value for each in self.requests[0].resource_spans[0].resource.attributes}


@contextmanager
def receiving(**settings: Any) -> Iterator[Receiver]:
    """A receiver that listens while the block runs."""
    receiver, over = Receiver(**settings), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if receiver.holds:
                over.wait(HELD_S)
            receiver.paths.append(self.path)
            receiver.headers.append({key.lower(): value for key, value in self.headers.items()})
            status = receiver.statuses.pop(0) if receiver.statuses else receiver.status
            if self.headers.get("Content-Encoding") == "gzip":
                body = decompress(body)
            if status == 200:
                receiver.requests.append(ExportTraceServiceRequest.FromString(body))
            response = ExportTraceServiceResponse()
            if receiver.rejects:
                response.partial_success.rejected_spans = receiver.rejects
                response.partial_success.error_message = "too many"
            answer = response.SerializeToString() if status == 200 else b""
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                for name, value in (("Retry-After", receiver.retry_after), ("Location", receiver.location)):
                    if value is not None:
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)
            except ConnectionError:
                pass  # the sender did not wait

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        receiver.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            over.set()
            server.shutdown()
            thread.join()
