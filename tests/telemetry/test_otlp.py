"""Sending: what a real receiver decodes, and what is said of one that is down, slow, refuses, or takes only a part."""

from __future__ import annotations

from contextlib import closing

import pytest

from telemetry import otlp
from telemetry.errors import UsageError
from telemetry.otlp import Sender, Sent, complete_endpoint
from telemetry.spans import SpanData, build_spans
from tests.telemetry.receivers import receiving
from tests.telemetry.traces import every_kind

UNREACHED = "the receiver cannot be reached, or does not answer in time"


@pytest.fixture
def spans() -> list[SpanData]:
    """Spans of every kind."""
    return list(build_spans(every_kind()))


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT", "HEADERS", "TIMEOUT", "COMPRESSION"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)


def _send(endpoint: str | None, spans: list[SpanData], timeout_s: float = 5.0) -> Sent:
    with closing(Sender(endpoint, timeout_s=timeout_s)) as sender:
        return sender.send(spans)


def test_a_receiver_gets_every_span_as_it_is(spans: list[SpanData]) -> None:
    with receiving() as receiver:
        assert _send(receiver.endpoint, spans) == Sent(sent=len(spans))
    assert receiver.paths == ["/v1/traces"]
    assert [(s.trace_id.hex(), s.span_id.hex(), s.parent_span_id.hex() or None, s.name) for s in receiver.spans] == [
        (s.trace_id, s.span_id, s.parent_id, s.name) for s in spans
    ]
    assert [(s.start_time_unix_nano, s.end_time_unix_nano, s.kind, s.status.code) for s in receiver.spans] == [
        (s.start_unix_ns, s.end_unix_ns, 1, 2 if s.status == "error" else 0) for s in spans
    ]
    assert [{a.key for a in s.attributes} for s in receiver.spans] == [set(s.attributes) for s in spans]
    assert [len(s.links) for s in receiver.spans] == [len(s.links) for s in spans]
    assert not any(s.events for s in receiver.spans)
    assert receiver.resource["service.name"] == "roundscope"


def test_what_the_environment_says_holds(spans: list[SpanData], monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        assert _send(None, spans) == Sent(sent=len(spans))
    assert (receiver.headers[0]["x-key"], receiver.headers[0]["content-encoding"]) == ("secret", "gzip")
    assert (receiver.resource["service.name"], receiver.resource["deployment.environment"]) == ("mine", "test")


def test_a_receiver_that_is_down(spans: list[SpanData]) -> None:
    with receiving() as receiver:
        pass
    assert _send(receiver.endpoint, spans) == Sent(failed=len(spans), reason=UNREACHED, again=True)


def test_a_receiver_that_is_slow(spans: list[SpanData]) -> None:
    with receiving(holds=True) as receiver:
        assert _send(receiver.endpoint, spans, timeout_s=0.2) == Sent(failed=len(spans), reason=UNREACHED, again=True)


@pytest.mark.parametrize("status", [400, 401, 404, 413])
def test_a_receiver_that_refuses(spans: list[SpanData], status: int) -> None:
    with receiving(status=status) as receiver:
        assert _send(receiver.endpoint, spans) == Sent(
            refused=len(spans), reason=f"the receiver answers {status}", again=True
        )
    assert len(receiver.paths) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_receiver_in_trouble(spans: list[SpanData], status: int) -> None:
    with receiving(status=status) as receiver:
        assert _send(receiver.endpoint, spans, timeout_s=0.2) == Sent(
            failed=len(spans), reason=f"the receiver answers {status}", again=True
        )


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_receiver_that_leads_elsewhere_has_got_nothing(spans: list[SpanData], status: int) -> None:
    """The exporter takes such an answer for a success, and sends the spans nowhere else."""
    with receiving() as other, receiving(status=status, location=f"{other.endpoint}/login") as receiver:
        reason = f"the receiver answers {status} and leads to {other.endpoint}/login, where nothing is sent"
        assert _send(receiver.endpoint, spans) == Sent(failed=len(spans), reason=reason, again=True)
    assert (len(receiver.paths), other.paths) == (1, [])


@pytest.mark.parametrize("status", [300, 304])
def test_an_answer_that_is_no_success_is_none(spans: list[SpanData], status: int) -> None:
    with receiving(status=status) as receiver:
        assert _send(receiver.endpoint, spans) == Sent(
            failed=len(spans), reason=f"the receiver answers {status}", again=True
        )


def test_a_receiver_that_takes_only_a_part(spans: list[SpanData]) -> None:
    with receiving(rejects=3) as receiver:
        assert _send(receiver.endpoint, spans) == Sent(sent=len(spans) - 3, refused=3, reason="too many")


def test_batches_and_a_failure_in_the_middle(spans: list[SpanData], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "BATCH_SPANS", 10)
    with receiving(statuses=[200, 404, 500]) as receiver:
        assert _send(receiver.endpoint, spans, timeout_s=0.2) == Sent(
            sent=10, refused=10, failed=len(spans) - 20, reason="the receiver answers 500", again=True
        )
    assert len(receiver.spans) == 10


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("https://a.example/base", "https://a.example/base/v1/traces"),
        ("http://127.0.0.1:4318/v1/traces", "http://127.0.0.1:4318/v1/traces"),
        (None, "http://127.0.0.1:4318/v1/traces"),
        ("", "http://127.0.0.1:4318/v1/traces"),
    ],
)
def test_addresses(given: str | None, address: str) -> None:
    assert complete_endpoint(given) == address


def test_the_address_for_traces_is_taken_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1/other")
    assert complete_endpoint(None) == "http://127.0.0.1:1/other"


@pytest.mark.parametrize("given", ["localhost:4318", "127.0.0.1", "ftp://a.example", "http://"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="is no OTLP endpoint; it must be as in http"):
        complete_endpoint(given)


@pytest.mark.parametrize(("said", "after_s"), [("7", 7.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), (None, 0.0)])
def test_when_a_receiver_in_trouble_wants_to_be_asked_again(
    spans: list[SpanData], said: str | None, after_s: float
) -> None:
    with receiving(status=503, retry_after=said) as receiver:
        assert _send(receiver.endpoint, spans, timeout_s=0.2).after_s == after_s
