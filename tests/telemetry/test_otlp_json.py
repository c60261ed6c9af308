"""OTLP-JSON: what is written is read back as it was, foreign files are read too, and what is malformed is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from telemetry.errors import UsageError
from telemetry.otlp import write_otlp_json
from telemetry.otlp_json import read_otlp_json
from telemetry.spans import SpanData, SpanLink, build_spans
from tests.telemetry.stores import generation
from tests.telemetry.traces import every_kind

FOREIGN = {
    "traceId": "A" * 32,
    "spanId": "b" * 16,
    "parentSpanId": "",
    "name": "GET /",
    "kind": 2,
    "startTimeUnixNano": 5,
    "endTimeUnixNano": "9",
    "attributes": [
        {"key": "n", "value": {"intValue": 3}},
        {"key": "x", "value": {"doubleValue": 0.5}},
        {"key": "on", "value": {"boolValue": True}},
        {"key": "nothing", "value": {}},
        {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "a"}]}}},
        {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"intValue": "1"}}]}}},
    ],
    "links": [{"traceId": "c" * 32, "spanId": "d" * 16}],
    "status": {"code": 2, "message": "no"},
    "unknownField": 1,
}


def _document(*spans: dict[str, Any]) -> str:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}, indent=2)


def test_what_is_written_is_read_back() -> None:
    spans = list(build_spans(every_kind()))
    assert list(read_otlp_json(write_otlp_json(spans))) == spans


def test_one_document_a_line() -> None:
    spans = list(build_spans(every_kind()))
    text = "\n".join(write_otlp_json([span]) for span in spans) + "\n"
    assert list(read_otlp_json(text)) == spans


@pytest.mark.parametrize("end", ["\u2028", "\u0085", "\x0b", "\x1c", "\r"])
def test_a_line_end_of_unicode_ends_no_line(end: str) -> None:
    spans = list(build_spans([*every_kind(), generation("a" * 32, prompt_id=f"a{end}b")]))
    text = "\n".join(write_otlp_json([span]) for span in spans) + "\n"
    assert list(read_otlp_json(text)) == spans


def test_as_the_standard_wants_it() -> None:
    root = next(build_spans(every_kind()))
    document = json.loads(write_otlp_json([root]))
    [resource] = document["resourceSpans"]
    [scope] = resource["scopeSpans"]
    [span] = scope["spans"]
    assert scope["schemaUrl"] == "https://opentelemetry.io/schemas/1.41.0"
    assert scope["scope"]["name"] == "roundscope"
    assert {key: span[key] for key in ("traceId", "spanId", "kind", "startTimeUnixNano", "endTimeUnixNano")} == {
        "traceId": root.trace_id,
        "spanId": root.span_id,
        "kind": 1,
        "startTimeUnixNano": str(root.start_unix_ns),
        "endTimeUnixNano": str(root.end_unix_ns),
    }
    assert {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "5"}} in span["attributes"]


def test_a_foreign_span() -> None:
    assert list(read_otlp_json(_document(FOREIGN))) == [
        SpanData(
            trace_id="a" * 32,
            span_id="b" * 16,
            parent_id=None,
            name="GET /",
            start_unix_ns=5,
            end_unix_ns=9,
            attributes={"n": 3, "x": 0.5, "on": True, "nothing": None, "list": ["a"], "map": {"k": 1}},
            links=(SpanLink("c" * 32, "d" * 16),),
            kind="server",
            status="error",
            error_type="_OTHER",
            flags=0,
        )
    ]


def test_an_open_span_has_no_end() -> None:
    [span] = read_otlp_json(_document({**FOREIGN, "endTimeUnixNano": "0"}))
    assert (span.end_unix_ns, span.duration_ns) == (None, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"traceId": "0" * 32}, "is no id"),
        ({"spanId": "xyz"}, "'xyz' is no id"),
        ({"spanId": 5}, "expected string"),
        ({"startTimeUnixNano": "soon"}, "soon"),
        ({"attributes": [{"key": "a"}]}, "value is missing"),
        ({"attributes": [{"key": "a", "value": {"dateValue": 1}}]}, "'dateValue' is no kind of value"),
        ({"attributes": [{"key": "a", "value": 0}]}, "has no attribute 'items'"),
        ({"attributes": [{"key": 1, "value": {"intValue": "1"}}]}, "1 is no string"),
        ({"attributes": [{"key": "a", "value": {"stringValue": 1}}]}, "1 is no string"),
        ({"attributes": [{"key": "a", "value": {"stringValue": "\ud800"}}]}, "surrogates not allowed"),
        ({"attributes": [{"key": "a", "value": {"boolValue": "true"}}]}, "'true' none of that kind"),
        ({"attributes": [{"key": "a", "value": {"doubleValue": True}}]}, "True none of that kind"),
        ({"attributes": [{"key": "a", "value": {"intValue": 1.5}}]}, "1.5 is no integer"),
        ({"attributes": [{"key": "a", "value": {"intValue": True}}]}, "True is no integer"),
        ({"attributes": [{"key": "a", "value": {"intValue": "1_0"}}]}, "'1_0' is no integer"),
        ({"attributes": [{"key": "a", "value": {"intValue": str(10**25)}}]}, "has more than 64 bits"),
        ({"attributes": [{"key": "a", "value": {"intValue": "9" * 5000}}]}, "5000 digits"),
        ({"name": None}, "None is no string"),
        ({"endTimeUnixNano": float("inf")}, "inf is no integer"),
        ({"startTimeUnixNano": -1}, "-1 is below 0"),
        ({"status": {"code": -1}}, "-1 is below 0"),
        ({"kind": -1}, "-1 is below 0"),
        ({"kind": 9}, "index out of range"),
    ],
)
def test_a_malformed_span_is_named_and_the_others_are_read(changes: dict[str, Any], reason: str) -> None:
    text = _document({**FOREIGN, **changes}, FOREIGN)
    refused: list[str] = []
    assert len(list(read_otlp_json(text, refused.append))) == 1
    [told] = refused
    assert told.startswith("document: a malformed span: ")
    assert reason in told
    with pytest.raises(UsageError, match="not OTLP-JSON: document: a malformed span"):
        list(read_otlp_json(text))


def test_what_is_no_document_is_named() -> None:
    refused: list[str] = []
    good = _document(FOREIGN).replace("\n", "")
    assert len(list(read_otlp_json(f'{good}\n{{"a": 1}}\n{{broken}}\n[1]\n', refused.append))) == 1
    assert list(read_otlp_json("no json", refused.append)) == []
    assert list(read_otlp_json("[" * 100_000, refused.append)) == []
    assert len(list(read_otlp_json(f"{good}\n{'[' * 100_000}\n", refused.append))) == 1
    assert [reason.partition(":")[0] for reason in refused] == [
        *("line 2", "line 3", "line 4"),
        *("no JSON", "no JSON"),
        "line 2",
    ]
    assert refused[5].startswith("line 2: no JSON: maximum recursion depth")


def test_a_file_without_documents_has_no_spans() -> None:
    assert list(read_otlp_json("\n")) == []


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    value = '{"arrayValue":{"values":[' * 2000 + "{}" + "]}}" * 2000
    text = _document({**FOREIGN, "attributes": [{"key": "deep", "value": "VALUE"}]}).replace('"VALUE"', value)
    refused: list[str] = []
    assert list(read_otlp_json(text, refused.append)) == []
    assert len(refused) == 1
