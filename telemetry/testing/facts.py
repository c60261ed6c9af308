"""Our generations and rounds, read back from spans: the fields of their records by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from msgspec import Struct

from telemetry.ncm_records import LevelRecord, NcmRecord
from telemetry.records import ComparisonRecord, GenerationEnd, GenerationRecord, RoundRecord
from telemetry.span_names import SCOPE, attributes_of
from telemetry.testing.tree import Span

PREFIX = f"{SCOPE}."
_MARKS: dict[type[Struct], str] = {
    GenerationRecord: "draft_length",
    RoundRecord: "index",
    NcmRecord: "config",
    LevelRecord: "level",
}
_GENERATION = (GenerationRecord, GenerationEnd, ComparisonRecord)


@dataclass(frozen=True)
class Facts:
    """A span of ours with its record's fields; one that is not set is None."""

    span: Span
    fields: dict[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]

    def find_unset(self, *fields: str) -> list[str]:
        """Of these fields, those that the span does not have."""
        return [field for field in fields if self.fields[field] is None]


def read_generation(span: Span) -> Facts:
    """A generation's span as its records have it."""
    return Facts(span, {field: value for kind in _GENERATION for field, value in _read(span, kind)})


def read_round(span: Span) -> Facts:
    """A round's span as its record has it."""
    return Facts(span, dict(_read(span, RoundRecord)))


def is_kind(span: Span, kind: type[Struct]) -> bool:
    """Whether the span is made of this kind of record: by an attribute that no other kind, and nobody else, has."""
    return attribute(kind, _MARKS[kind]) in span.attributes


def is_generation(span: Span) -> bool:
    """Whether the span is a generation of ours."""
    return is_kind(span, GenerationRecord)


def is_round(span: Span) -> bool:
    """Whether the span is a round of ours."""
    return is_kind(span, RoundRecord)


def is_ours(span: Span) -> bool:
    """Whether the span is any of ours: each has an attribute under our name."""
    return any(name.startswith(PREFIX) for name in span.attributes)


def attribute(kind: type[Struct], field: str) -> str:
    """What a record's field is called on a span."""
    return _names(kind)[field]


def _read(span: Span, kind: type[Struct]) -> Iterator[tuple[str, Any]]:
    for each in attributes_of(kind):
        value = span.attributes.get(each.name)
        yield each.field.name, value[0] if each.form == "list" and isinstance(value, tuple) and value else value


@cache
def _names(kind: type[Struct]) -> dict[str, str]:
    return {each.field.name: each.name for each in attributes_of(kind)}
