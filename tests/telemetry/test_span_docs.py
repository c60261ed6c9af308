"""docs/spans.md is what the code says, and what the code says is what OpenTelemetry's conventions know."""

from __future__ import annotations

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.schemas import Schemas

from telemetry.span_docs import render
from telemetry.span_names import SCHEMA_URL, STAGE_BASIS
from telemetry.spans import build_spans
from tests.conftest import ROOT
from tests.telemetry.traces import every_kind


def test_the_documentation_is_up_to_date() -> None:
    assert (ROOT / "docs" / "spans.md").read_text() == render() + "\n"


def test_every_name_of_every_span_is_documented() -> None:
    text = render()
    used = {key for span in build_spans(every_kind()) for key in span.attributes}
    assert [key for key in sorted(used) if f"`{key}`" not in text] == []
    assert STAGE_BASIS in used


def test_names_outside_our_own_are_the_conventions() -> None:
    used = {key for span in build_spans(every_kind()) for key in span.attributes}
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    assert {key for key in used if not key.startswith("roundscope.")} <= known | {"error.type"}
    assert {each.value for each in Schemas} >= {SCHEMA_URL}
