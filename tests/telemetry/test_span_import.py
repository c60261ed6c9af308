"""Import: records from spans are the records that the spans were made of; whatever contradicts itself is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from random import Random

import pytest

from telemetry.grouping import group
from telemetry.span_import import rebuild, records_of
from telemetry.spans import SpanData, build_spans
from tests.telemetry.stores import generation, generation_end, rounds
from tests.telemetry.traces import IDS, every_kind

A = IDS[0]


def _key(record: object) -> str:
    return repr(record)


def _change(spans: list[SpanData], which: str, /, **changes: object) -> list[SpanData]:
    index = next(index for index, span in enumerate(spans) if span.name == which)
    return [*spans[:index], replace(spans[index], **changes), *spans[index + 1 :]]  # type: ignore[arg-type]


def test_records_come_back_as_they_were() -> None:
    records = every_kind()
    spans = list(build_spans(records))
    Random(0).shuffle(spans)
    imported = rebuild(spans)
    assert imported.refused == Counter()
    back = list(chain.from_iterable(records_of(each) for each in imported.generations))
    expected = list(chain.from_iterable(records_of(each) for each in group(records)))
    assert sorted(back, key=_key) == sorted(expected, key=_key)


def test_spans_that_come_twice_are_taken_once() -> None:
    spans = list(build_spans(every_kind()))
    imported = rebuild([*spans, *spans])
    assert (len(imported.generations), imported.refused) == (12, Counter())


SPANS = list(build_spans([generation(A, run_id=None), *rounds(A, 2), generation_end(A)]))
ROUND = next(span for span in SPANS if span.name == "round")


@pytest.mark.parametrize(
    ("mutate", "reason", "n"),
    [
        (lambda s: _change(s, "round", name="GET /"), "not a span of roundscope", 1),
        (lambda s: _change(s, "draft", attributes={}), "not a span of roundscope", 1),
        (lambda s: [*s, replace(s[3], start_unix_ns=1)], "another span has the same id", 1),
        (lambda s: s[1:], "the generation that it belongs to is missing", len(SPANS) - 1),
        (lambda s: _change(s, "round", span_id="f" * 16), "the generation that it belongs to is missing", 4),
        (lambda s: _change(s, "draft", start_unix_ns=ROUND.start_unix_ns + 7), "contradict each other", len(SPANS)),
        (lambda s: _change(s, "verify", name="ncm.sample"), "malformed: ncm.sample is missing", len(SPANS)),
        (lambda s: _change(s, "prefill", end_unix_ns=None), "malformed: prefill has no end", len(SPANS)),
        (lambda s: _change(s, "text_completion scripted", name="text_completion other"), "contradict", len(SPANS)),
        (
            lambda s: _change(s, "round", attributes={**ROUND.attributes, "roundscope.round.accepted": "two"}),
            "malformed: Expected `int`, got `str`",
            len(SPANS),
        ),
        (
            lambda s: _change(s, "round", attributes={**ROUND.attributes, "roundscope.round.mine": 1}),
            "contradict each other",
            len(SPANS),
        ),
    ],
    ids=[
        "foreign",
        "a stage without its attributes",
        "one id twice",
        "no root",
        "a round moved away",
        "a stage moved",
        "a stage of another tree",
        "no end",
        "another name",
        "a word for a number",
        "an attribute too many",
    ],
)
def test_what_does_not_fit_is_refused(mutate: Callable[[list[SpanData]], list[SpanData]], reason: str, n: int) -> None:
    refused = rebuild(mutate(list(SPANS))).refused
    assert {count for told, count in refused.items() if reason in told} == {n}


def test_one_bad_generation_does_not_keep_the_others_out() -> None:
    spans = list(build_spans(every_kind()))
    imported = rebuild(_change(spans, "ncm.level", end_unix_ns=None))
    assert len(imported.generations) == 11
    assert sum(imported.refused.values()) == 11
