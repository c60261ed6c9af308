"""What spans and their attributes are called, and which field of a record is which attribute.

Everything that reads or writes spans follows from here: building them (`telemetry.spans`), bringing them back
(`telemetry.span_import`), the view `spans` and docs/spans.md. A field of a record is the attribute
`roundscope.KIND.FIELD` of its kind's span, unless the GenAI conventions have a name for it, the span's own ids and
times say it, or it is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from msgspec import Struct

from telemetry.fields import LEVEL_STAGES, STAGES
from telemetry.ncm_records import LevelRecord, NcmComparison, NcmEnd, NcmRecord
from telemetry.records import ComparisonRecord, GenerationEnd, GenerationRecord, RoundRecord
from telemetry.tables import FieldInfo, describe_fields

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""The conventions that `gen_ai.*` follows: the last numbered ones before they moved to a repository of their own, whose
releases are still of version 0."""

SCOPE = "roundscope"
OPERATION = "text_completion"
PROVIDER = "mlx"
PREFILL = "prefill"
ROUND = "round"
NCM_GENERATE = "ncm.generate"
NCM_LEVEL = "ncm.level"

ROUND_STAGES = {stage: "cache.trim" if stage == "trim" else stage for stage in STAGES}
"""Span of each stage of a round."""

NCM_STAGES = {stage: f"ncm.{stage}" for stage in LEVEL_STAGES}
"""Span of each stage of a level."""

NCM_ENDING = ("decode", "check")
"""Stages that a generation does once at its end where its levels do not: children of `ncm.generate`."""

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
RESPONSE_MODEL = "gen_ai.response.model"
ERROR_TYPE = "error.type"
STAGE_BASIS = "roundscope.stage.basis"

FORWARD_FIELDS = ("prefix_processed", "prefix_reused")
"""Fields of a level that its `ncm.forward` has too."""

Form = Literal["plain", "list", "seconds"]
"""How a field's value stands in an attribute: as it is, as a list of one, as seconds instead of nanoseconds."""


@dataclass(frozen=True)
class Attribute:
    """A field of a record as an attribute of a span."""

    field: FieldInfo
    name: str
    form: Form = "plain"


_PREFIXES: dict[type[Struct], str] = {
    GenerationRecord: "roundscope.generation.",
    GenerationEnd: "roundscope.generation.",
    ComparisonRecord: "roundscope.comparison.",
    RoundRecord: "roundscope.round.",
    NcmRecord: "roundscope.ncm.",
    NcmEnd: "roundscope.ncm.",
    NcmComparison: "roundscope.comparison.",
    LevelRecord: "roundscope.level.",
}
_CONVENTIONAL: dict[tuple[type[Struct], str], tuple[str, Form]] = {
    (GenerationRecord, "generation_id"): ("gen_ai.response.id", "plain"),
    (GenerationRecord, "model"): ("gen_ai.request.model", "plain"),
    (GenerationRecord, "max_tokens"): ("gen_ai.request.max_tokens", "plain"),
    (GenerationRecord, "prompt_tokens"): ("gen_ai.usage.input_tokens", "plain"),
    (GenerationRecord, "cached_tokens"): ("gen_ai.usage.cache_read.input_tokens", "plain"),
    (GenerationRecord, "temperature"): ("gen_ai.request.temperature", "plain"),
    (GenerationRecord, "top_k"): ("gen_ai.request.top_k", "plain"),
    (GenerationRecord, "top_p"): ("gen_ai.request.top_p", "plain"),
    (GenerationRecord, "seed"): ("gen_ai.request.seed", "plain"),
    (GenerationEnd, "n_committed"): ("gen_ai.usage.output_tokens", "plain"),
    (GenerationEnd, "finish_reason"): ("gen_ai.response.finish_reasons", "list"),
    (GenerationEnd, "ttft_ns"): ("gen_ai.response.time_to_first_chunk", "seconds"),
}
_IN_THE_SPAN: dict[type[Struct], frozenset[str]] = {
    GenerationRecord: frozenset({"started_wall_ns", "trace_id", "parent_span_id", "sampled"}),
    GenerationEnd: frozenset({"generation_id", "prefill_ns", "total_ns"}),
    ComparisonRecord: frozenset({"generation_id"}),
    RoundRecord: frozenset({"generation_id", "start_ns", "t_round_ns"}),
    NcmRecord: frozenset({"started_wall_ns", "trace_id", "parent_span_id", "sampled"}),
    NcmEnd: frozenset({"generation_id", "total_ns"}),
    NcmComparison: frozenset({"generation_id"}),
    LevelRecord: frozenset({"generation_id", "start_ns", "t_level_ns"}),
}
_STAGES: dict[type[Struct], tuple[str, ...]] = {RoundRecord: STAGES, LevelRecord: LEVEL_STAGES}
TEXT = frozenset({"prompt_ids", "proposal", "tokens", "text"})
"""Fields that never become part of a span: what a user kept with --record-text stays in the store."""


@cache
def attributes_of(kind: type[Struct]) -> tuple[Attribute, ...]:
    """The fields of a kind of record that are attributes, in their order."""
    return tuple(_list_attributes(kind))


def _list_attributes(kind: type[Struct]) -> Iterator[Attribute]:
    of_stages = {f"{stage}_{part}" for stage in _STAGES.get(kind, ()) for part in ("ns", "basis")}
    for field in describe_fields(kind):
        if field.name in _IN_THE_SPAN[kind] | of_stages | TEXT:
            continue
        default: tuple[str, Form] = (_PREFIXES[kind] + field.name, "plain")
        yield Attribute(field, *_CONVENTIONAL.get((kind, field.name), default))


def read_attributes(record: Struct) -> dict[str, Any]:
    """What `record` says, as attributes; a field that is not set is left out."""
    found: dict[str, Any] = {}
    for attribute in attributes_of(type(record)):
        value = getattr(record, _ATTRIBUTE_OF_FIELD.get(attribute.field.name, attribute.field.name))
        if value is None:
            continue
        if attribute.form == "seconds":
            value /= 1e9
        elif attribute.form == "list":
            value = [value]
        found[attribute.name] = value
    return found


_ATTRIBUTE_OF_FIELD = {"class": "class_"}
