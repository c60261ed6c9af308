"""Sends spans by OTLP over HTTP/protobuf, with OpenTelemetry's own exporter, and writes them as OTLP-JSON.

`OTEL_EXPORTER_OTLP_*` (headers, timeout, compression, certificates, the endpoint where none is given),
OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES mean what they always do. The exporter does not look into what the
receiver answers, so a partial success would pass for a whole one: the answers are read here.
"""

from __future__ import annotations

import json
import logging
import os
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from telemetry import roundscope_version
from telemetry.errors import UsageError
from telemetry.otlp_json import KINDS
from telemetry.span_data import IS_REMOTE, SpanData
from telemetry.span_names import SCHEMA_URL, SCOPE

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext
    from requests import Response, Session

PATH = "/v1/traces"
DEFAULT_ENDPOINT = "http://127.0.0.1:4318"
SERVICE = "roundscope"
BATCH_SPANS = 2000
"""Spans in a request: about 1 MB."""

_WORTH_REPEATING = (408, 429)
_TAKEN = range(200, 300)
"""Answers that mean it. The exporter, which follows no redirection, takes one for a success."""


@dataclass
class Sent:
    """What became of spans: taken by the receiver; refused by it; or not delivered, and why.

    again: the same request may be taken later, as when it lacked a header. after_s: no sooner than that, if the
    receiver said so.
    """

    sent: int = 0
    refused: int = 0
    failed: int = 0
    reason: str | None = None
    again: bool = False
    after_s: float = 0.0

    def add(self, other: Sent) -> None:
        """Count `other` in; the latest reason stays."""
        self.sent += other.sent
        self.refused += other.refused
        self.failed += other.failed
        self.reason = other.reason or self.reason
        self.again = self.again or other.again
        self.after_s = max(self.after_s, other.after_s)


class Sender:
    """A connection to a receiver.

    endpoint: its address, to which /v1/traces is added unless it ends so; None: OTEL_EXPORTER_OTLP_(TRACES_)ENDPOINT,
    else this machine's port 4318. timeout_s: for a request with its repetitions; None: OTEL_EXPORTER_OTLP_TIMEOUT, else
    10 s. Raises UsageError for what is no address.
    """

    def __init__(self, endpoint: str | None = None, *, timeout_s: float | None = None) -> None:
        import requests

        self._status: int | None = None
        self._answer = b""
        self._elsewhere = ""
        self._after_s = 0.0
        session = requests.Session()
        session.hooks["response"].append(self._look)
        self.endpoint = complete_endpoint(endpoint)
        self._exporter = _make_exporter(self.endpoint, session, timeout_s)
        self._resource = make_resource()

    def send(self, spans: Sequence[SpanData]) -> Sent:
        """Send spans in batches; stops at the first that cannot be delivered and counts the rest as failed too."""
        import requests
        from opentelemetry.sdk.trace.export import SpanExportResult

        total = Sent()
        for start in range(0, len(spans), BATCH_SPANS):
            batch = spans[start : start + BATCH_SPANS]
            self._status, self._answer, self._elsewhere, self._after_s = None, b"", "", 0.0
            try:
                result = self._exporter.export([_make_readable(span, self._resource) for span in batch])
            except requests.RequestException:  # older exporters let it through
                result = SpanExportResult.FAILURE
            total.add(self._judge(len(batch), delivered=result is SpanExportResult.SUCCESS))
            if total.failed:
                total.failed = len(spans) - total.sent - total.refused
                break
        return total

    def _judge(self, n: int, *, delivered: bool) -> Sent:
        if delivered and self._status in _TAKEN:
            refused, reason = _read_partial_success(self._answer)
            refused = min(refused, n)
            return Sent(sent=n - refused, refused=refused, reason=reason)
        if self._status is None:
            return Sent(failed=n, reason="the receiver cannot be reached, or does not answer in time", again=True)
        reason = f"the receiver answers {self._status}{self._elsewhere}"
        if 400 <= self._status < 500 and self._status not in _WORTH_REPEATING:
            return Sent(refused=n, reason=reason, again=True)
        return Sent(failed=n, reason=reason, again=True, after_s=self._after_s)

    def _look(self, response: Response, *_: Any, **__: Any) -> None:
        self._status, self._answer = response.status_code, response.content
        place = response.headers.get("Location")
        self._elsewhere = f" and leads to {place}, where nothing is sent" if place and response.is_redirect else ""
        said = response.headers.get("Retry-After", "")
        self._after_s = float(said) if said.isdecimal() else 0.0  # a date would be by the receiver's clock

    def close(self) -> None:
        """Let go of the connection."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def complete_endpoint(endpoint: str | None) -> str:
    """The address that requests go to. Raises UsageError for what is none."""
    if not endpoint and (traces := os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        return traces  # the standard takes it as it stands
    parts = urlsplit(endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or DEFAULT_ENDPOINT)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{parts.geturl()!r} is no OTLP endpoint; it must be as in {DEFAULT_ENDPOINT}")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(PATH) else path + PATH).geturl()


def _make_exporter(endpoint: str, session: Session, timeout_s: float | None) -> OTLPSpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # What it says of failures is in the counts, and in the reason.
    logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL + 1)
    return OTLPSpanExporter(endpoint=endpoint, session=session, timeout=timeout_s)


def _read_partial_success(answer: bytes) -> tuple[int, str | None]:
    """Spans that the receiver rejected, and what it says, if anything."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return 0, None
    return max(partial.rejected_spans, 0), partial.error_message or None


def make_resource() -> Resource:
    """Who sends: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, or else `roundscope`."""
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource

    found = Resource.create()
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: SERVICE, SERVICE_VERSION: roundscope_version()}))

    class Hashed(Resource):
        # The encoder hashes the resource of every span, and Resource writes itself as JSON for that.
        __hash__ = object.__hash__

    return Hashed(dict(found.attributes), found.schema_url)


def encode_request(spans: Sequence[SpanData], resource: Resource | None = None) -> ExportTraceServiceRequest:
    """The request that carries these spans."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    resource = resource or make_resource()
    request = encode_spans([_make_readable(span, resource) for span in spans])
    encoded = (each for part in request.resource_spans for scope in part.scope_spans for each in scope.spans)
    for span, each in zip(spans, encoded, strict=True):
        each.flags = span.flags  # the encoder leaves W3C's out
    return request


def _make_readable(span: SpanData, resource: Resource) -> ReadableSpan:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

    return ReadableSpan(
        span.name,
        context=_make_context(span.trace_id, span.span_id, span.flags),
        parent=None if span.parent_id is None else _make_context(span.trace_id, span.parent_id, span.flags),
        resource=resource,
        attributes=span.attributes,
        links=[Link(_make_context(link.trace_id, link.span_id, span.flags)) for link in span.links],
        kind=SpanKind(KINDS.index(span.kind)),
        status=Status({"unset": StatusCode.UNSET, "ok": StatusCode.OK, "error": StatusCode.ERROR}[span.status]),
        start_time=span.start_unix_ns,
        end_time=span.end_unix_ns,
        instrumentation_scope=_make_scope(),
    )


@cache
def _make_scope() -> InstrumentationScope:
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    return InstrumentationScope(SCOPE, roundscope_version(), SCHEMA_URL)


def _make_context(trace_id: str, span_id: str, flags: int) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    remote = bool(flags & IS_REMOTE)
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=remote, trace_flags=TraceFlags(flags & 0xFF))


def write_otlp_json(spans: Sequence[SpanData]) -> str:
    """These spans as one line of OTLP-JSON."""
    from google.protobuf.json_format import MessageToDict

    document = MessageToDict(encode_request(spans), use_integers_for_enums=True)
    for span in _walk(document):
        for place in (span, *span.get("links", ())):
            for name in ("traceId", "spanId", "parentSpanId"):
                if name in place:  # OTLP's JSON has ids in hexadecimal, protobuf's has all bytes in base64
                    place[name] = b64decode(place[name]).hex()
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _walk(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in document.get("resourceSpans", ()):
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]
