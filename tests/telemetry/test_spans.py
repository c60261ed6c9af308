"""Spans: whole trees from records, ids that follow from them, usage once, times that the wall clock cannot spoil."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.generate import decode, speculate
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.recorder import Recorder
from telemetry.records import ComparisonRecord, Record, RoundRecord
from telemetry.span_names import attributes_of
from telemetry.spans import SpanData, SpanLink, build_spans, derive_span_id, derive_trace_id
from telemetry.testing import FakeClock
from tests.runtime.scripted import always, counting
from tests.telemetry.stores import (
    comparison,
    generation,
    generation_end,
    header,
    rounds,
    run,
    run_end,
    whole_generation,
)

A, B = "a" * 32, "b" * 32
PROMPT = list(range(7, 13))


def _tree(spans: list[SpanData]) -> list[tuple[int, str, int, int | None]]:
    """Depth, name, start after the first span, and duration of every span."""
    depths: dict[str | None, int] = {}
    found = []
    for span in spans:
        depths[span.span_id] = depths.get(span.parent_id, -1) + 1
        found.append((depths[span.span_id], span.name, span.start_unix_ns - spans[0].start_unix_ns, span.duration_ns))
    return found


def _speculate(recorder: Recorder, clock: FakeClock, **options: Any) -> str:
    target = ScriptedTarget(counting(20), vocab_size=20, cost_ns=100, clock=clock)
    drafter = ScriptedDrafter(always([13, 19]), cost_ns=7, clock=clock)
    return speculate(target, drafter, PROMPT, draft_length=2, max_tokens=4, recorder=recorder, **options).drain().id


def test_a_generation_is_this_tree() -> None:
    clock = FakeClock(wall_ns=5_000)
    recorder = Recorder(clock=clock)
    _speculate(recorder, clock)
    spans = list(build_spans(recorder.records))
    stages = [(2, "draft", 100, 7), (2, "verify", 107, 100), (2, "synchronize", 207, 0)]
    assert _tree(spans)[:8] == [
        (0, "text_completion scripted", 0, spans[0].duration_ns),
        (1, "prefill", 0, 100),
        (1, "round", 100, 107),
        *stages,
        (2, "cache.trim", 207, 0),
        (2, "rewind", 207, 0),
    ]
    assert {span.trace_id for span in spans} == {recorder.records[0].generation_id}
    assert len({span.span_id for span in spans}) == len(spans)
    assert {span.status for span in spans} == {"unset"}
    assert spans[0].start_unix_ns == 5_000


def test_a_root_says_what_was_asked_for_used_and_answered() -> None:
    [root] = [span for span in build_spans(whole_generation(A)) if span.parent_id is None]
    assert root == SpanData(
        trace_id=A,
        span_id=derive_span_id(A),
        parent_id=None,
        name="text_completion scripted",
        start_unix_ns=1_700_000_000_123_456_789,
        end_unix_ns=1_700_000_000_123_457_139,
        attributes={
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "mlx",
            "gen_ai.request.model": "scripted",
            "gen_ai.request.max_tokens": 16,
            "gen_ai.response.model": "scripted",
            "gen_ai.response.id": A,
            "gen_ai.response.finish_reasons": ["length"],
            "gen_ai.response.time_to_first_chunk": 1.4e-7,
            "gen_ai.usage.input_tokens": 5,
            "gen_ai.usage.cache_read.input_tokens": 0,
            "gen_ai.usage.output_tokens": 6,
            "roundscope.generation.run_id": "run-1",
            "roundscope.generation.arm": "prompt-lookup-8",
            "roundscope.generation.drafter": "prompt-lookup",
            "roundscope.generation.draft_length": 8,
            "roundscope.generation.pipelined": False,
            "roundscope.generation.timing": "fused",
            "roundscope.generation.prompt_id": "copy-1",
            "roundscope.generation.class": "copy",
            "roundscope.generation.repeat": 0,
            "roundscope.generation.sequence": 0,
            "roundscope.generation.warm_up": False,
            "roundscope.generation.n_processors": 0,
            "roundscope.generation.started_monotonic_ns": 12,
            "roundscope.generation.n_rounds": 3,
            "roundscope.generation.decode_ns": 300,
            "roundscope.generation.unaccounted_ns": 30,
            "roundscope.generation.consumer_ns": 0,
            "roundscope.generation.peak_memory_bytes": 1000,
            "roundscope.generation.cache_bytes": 100,
            "roundscope.generation.snapshot_bytes": 0,
            "roundscope.comparison.pair_id": "ordinary-1",
            "roundscope.comparison.equal": True,
        },
        links=(SpanLink(derive_trace_id("ordinary-1"), derive_span_id("ordinary-1")),),
    )


def test_every_stage_says_what_it_was_timed_by() -> None:
    stages = [span for span in build_spans(whole_generation(A, 1)) if "roundscope.stage.basis" in span.attributes]
    assert [(span.name, span.attributes["roundscope.stage.basis"]) for span in stages] == [
        ("prefill", "barrier"),
        ("draft", "host"),
        ("verify", "host_launch"),
        ("synchronize", "host_wait"),
        ("cache.trim", "host"),
    ]


def test_usage_is_on_roots_only_and_sums_to_the_output() -> None:
    recorder, clock = Recorder(clock=FakeClock()), FakeClock()
    _speculate(recorder, clock)
    output = decode(ScriptedTarget(counting(20), vocab_size=20), PROMPT, max_tokens=3, recorder=recorder).drain().tokens
    spans = list(build_spans(recorder.records))
    assert sum(span.attributes.get("gen_ai.usage.output_tokens", 0) for span in spans) == 4 + len(output)
    assert {span.parent_id for span in spans if any(key.startswith("gen_ai.usage.") for key in span.attributes)} == {
        None
    }


def test_the_same_records_give_the_same_spans_in_whatever_journal_they_are() -> None:
    one, other = whole_generation(A), whole_generation(B)
    alone = [*build_spans(one), *build_spans(other)]
    assert alone == [*build_spans([header(), run(), *one, *other, run_end()])]
    mixed = [record for pair in zip(one, other, strict=True) for record in pair]
    assert sorted(build_spans(mixed), key=repr) == sorted(alone, key=repr)


def test_a_speculative_generation_waits_for_its_comparison_and_links_to_its_pair() -> None:
    records: list[Record] = [generation(A), generation_end(A), generation(B, drafter=None), generation_end(B)]
    names = [
        span.trace_id for span in build_spans([*records, comparison(A, pair_id=B), run_end()]) if not span.parent_id
    ]
    assert names == [B, A]
    roots = [span for span in build_spans([*records, comparison(A, pair_id=B)]) if not span.parent_id]
    assert [root.links for root in roots] == [(), (SpanLink(B, derive_span_id(B)),)]


def test_where_no_comparison_comes_the_end_of_the_run_is_the_end_of_waiting() -> None:
    records = [generation(A), generation_end(A), run_end(), generation(B, run_id=None), generation_end(B)]
    assert [span.trace_id for span in build_spans(records) if not span.parent_id] == [A, B]


def test_without_an_end_a_generation_is_an_aborted_one_with_its_closed_rounds() -> None:
    spans = list(build_spans([generation(A), *rounds(A, 2)]))
    assert _tree(spans)[:2] == [(0, "text_completion scripted", 0, 190), (1, "round", 0, 90)]
    assert (spans[0].status, spans[0].error_type, spans[0].attributes["error.type"]) == ("error", "aborted", "aborted")
    assert [span.name for span in spans].count("round") == 2
    assert "prefill" not in [span.name for span in spans]


@pytest.mark.parametrize(
    ("reason", "error_type", "expected"),
    [
        ("error", "ValueError", ("error", "ValueError")),
        ("error", None, ("error", "_OTHER")),
        ("cancelled", "KeyboardInterrupt", ("unset", None)),
        ("stop", None, ("unset", None)),
    ],
)
def test_only_what_failed_has_an_error(reason: str, error_type: str | None, expected: tuple[str, str | None]) -> None:
    end = generation_end(A, finish_reason=reason, error_type=error_type)
    spans = list(build_spans([generation(A), *rounds(A, 1), end]))
    assert [(span.status, span.error_type) for span in spans] == [expected, *[("unset", None)] * 6]


def test_a_round_that_failed_says_so() -> None:
    failed = rounds(A, 1, outcome="error", committed=0, accepted=0, cut=4)
    end = generation_end(A, finish_reason="error", error_type="DrafterError")
    errors = {span.name: span.error_type for span in build_spans([generation(A), *failed, end]) if span.error_type}
    assert errors == {"text_completion scripted": "DrafterError", "round": "DrafterError"}


def test_a_callers_trace_is_the_generations_too() -> None:
    records = [generation(A, trace_id=B, parent_span_id="c" * 16, sampled=True), generation_end(A)]
    root, prefill = build_spans(records)
    assert (root.trace_id, root.parent_id, root.flags) == (B, "c" * 16, 0x301)
    assert (prefill.trace_id, prefill.parent_id, prefill.flags) == (B, root.span_id, 0x101)


def test_an_unsampled_trace_is_marked_and_complete() -> None:
    records = [generation(A, trace_id=B, parent_span_id="c" * 16, sampled=False), *rounds(A, 2), generation_end(A)]
    spans = list(build_spans(records))
    assert (len(spans), {span.sampled for span in spans}) == (12, {False})


def test_in_a_distributed_run_a_generation_is_a_trace_of_its_own_with_a_link() -> None:
    records = [generation(A, trace_id=B, parent_span_id="c" * 16, sampled=True, rank=1), generation_end(A)]
    root = next(build_spans(records))
    assert (root.trace_id, root.parent_id, root.links) == (A, None, (SpanLink(B, "c" * 16),))


def test_a_wall_clock_that_steps_back_spoils_no_duration() -> None:
    clock = FakeClock(wall_ns=10**18)
    recorder = Recorder(clock=clock)
    target = ScriptedTarget(counting(20), vocab_size=20, cost_ns=100, clock=clock)
    for closed in decode(target, PROMPT, max_tokens=5, pipelined=False, recorder=recorder):
        clock.set_wall(10**18 - 10**12 * closed.index)
    spans = list(build_spans(recorder.records))
    durations = {span.name: span.duration_ns for span in spans}
    assert (durations["text_completion scripted"], durations["prefill"], durations["round"]) == (600, 100, 100)
    assert min(span.start_unix_ns for span in spans) == spans[0].start_unix_ns == 10**18


def test_text_is_in_no_span() -> None:
    recorder, clock = Recorder(record_text=True), FakeClock()
    _speculate(recorder, clock)
    fields = {attribute.field.name for record in recorder.records for attribute in attributes_of(type(record))}
    assert fields.isdisjoint({"prompt_ids", "tokens", "proposal", "text"})
    said = json.dumps([dict(span.attributes) for span in build_spans(recorder.records)])
    assert str(PROMPT)[1:-1] not in said


def test_a_span_has_room_for_its_attributes() -> None:
    """The SDK drops the oldest of more than 128 in silence."""
    full = comparison(A, equal=False, diverged_at=1, diverged_round=0, top2_gap=0.5, tolerance=0.1, near_tie=False)
    start = generation(A, kv_bits=4, rank=1)
    end = generation_end(A, finish_reason="error", error_type="ValueError", stop_kind="eos")
    assert max(len(span.attributes) for span in build_spans([start, *rounds(A, 1), end, full])) <= 128


_DURATIONS = st.lists(st.integers(0, 10**9), min_size=5, max_size=5)


@given(_DURATIONS, st.integers(0, 1000), st.sets(st.sampled_from(range(5))))
def test_stages_lie_in_their_round_one_after_the_other(durations: list[int], gap: int, left_out: set[int]) -> None:
    names = ("draft", "verify", "synchronize", "trim", "rewind")
    values = {f"{name}_ns": 0 if i in left_out else durations[i] for i, name in enumerate(names)}
    bases = {f"{name}_basis": None if i in left_out else "host" for i, name in enumerate(names)}
    [record] = rounds(A, 1, **values, **bases, t_round_ns=sum(values.values()) + gap)
    spans = list(build_spans([generation(A), record]))[1:]
    last = spans[0].start_unix_ns
    for span in spans[1:]:
        assert span.start_unix_ns >= last
        assert span.duration_ns is not None
        last = span.start_unix_ns + span.duration_ns
    assert len(spans) == 6 - len(left_out)
    assert last <= (spans[0].end_unix_ns or 0)


def test_every_field_of_a_round_is_an_attribute_or_a_span() -> None:
    facts = {"overlap": 0.5, "overlap_positions": 1, "proposer": "suffix", "q_source": "point"}
    facts |= {"reason": "best", "expected_ns": 10_000, "expected_step_ns": 20_000}
    [record] = rounds(A, 1, stop_kind="eos", rewind_basis="host", **facts)
    spans = list(build_spans([generation(A), record]))
    told = {attribute.field.name for attribute in attributes_of(RoundRecord)}
    told |= {"generation_id", "start_ns", "t_round_ns", "proposal", "tokens"}
    told |= {
        f"{span}_{part}" for span in ("draft", "verify", "synchronize", "trim", "rewind") for part in ("ns", "basis")
    }
    assert told == {field.encode_name for field in msgspec.structs.fields(RoundRecord)}
    assert len(spans) == 7
    assert len(spans[1].attributes) == len(attributes_of(RoundRecord))


def test_a_comparison_without_its_generation_makes_no_span() -> None:
    assert list(build_spans([ComparisonRecord(generation_id=A, pair_id=B, equal=True), *rounds(B, 1)])) == []
