"""A good trace of generations passes, and no mutation of it does: each is caught, by name and with its culprit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import decode, speculate
from runtime.testing import ScriptedDrafter, ScriptedFailure, ScriptedTarget
from telemetry.records import GenerationEnd, RoundRecord
from telemetry.testing import (
    Span,
    Spans,
    TraceAssertionError,
    TraceRecording,
    assert_rounds_consistent,
    assert_sinks_agree,
)
from tests.runtime.scripted import counting, guessing, hashed
from tests.telemetry.testing.trees import record

Mutate = Callable[[list[Span]], Iterable[Span]]


@cache
def recording() -> TraceRecording:
    """What was recorded, once: nothing here changes it."""
    return record()


def good() -> list[Span]:
    """The spans of a speculative generation of six rounds and of an ordinary one."""
    return list(recording().spans)


def nth(spans: Sequence[Span], name: str, n: int) -> Span:
    """The span that is the `n`th of its name."""
    return [span for span in spans if span.name == name][n]


def drop(name: str, n: int) -> Mutate:
    """Leave a span out."""
    return lambda spans: [span for span in spans if span is not nth(spans, name, n)]


def double(name: str, n: int) -> Mutate:
    """Put a span in twice."""
    return lambda spans: [*spans, replace(nth(spans, name, n))]


def change(name: str, n: int, **changes: Any) -> Mutate:
    """Give a span other fields; `attributes` are added to those it has; a callable makes the value from the span."""

    def mutate(spans: list[Span]) -> Iterable[Span]:
        old = nth(spans, name, n)
        made = {key: value(old) if callable(value) else value for key, value in changes.items()}
        if "attributes" in made:
            made["attributes"] = {**old.attributes, **made["attributes"]}
        return [replace(old, **made) if span is old else span for span in spans]

    return mutate


def move(name: str, n: int, ns: int) -> Mutate:
    """Shift a span in time."""
    return change(name, n, start_unix_ns=lambda s: s.start_unix_ns + ns, end_unix_ns=lambda s: s.end_unix_ns + ns)


def add(name: str, n: int, field: str, amount: int) -> Mutate:
    """Count one field of a round or generation wrong."""
    return change(name, n, attributes=lambda span: {field: span.attributes[field] + amount})


ROUND = "roundscope.round."
GENERATION = "text_completion scripted"
REASONS = "gen_ai.response.finish_reasons"
COUPLING = "roundscope.generation.coupling"
drawn = change(GENERATION, 0, attributes={"roundscope.generation.policy": "stochastic", COUPLING: "residual"})

MUTATIONS: dict[str, tuple[Mutate, str]] = {
    "a round dropped": (drop("round", 2), "index is 3, but it is round 2 in time"),
    "the last round dropped": (drop("round", 5), "its parent is not here"),
    "a draft dropped": (drop("draft", 1), "its stages are verify, synchronize, cache.trim, rewind, wanted draft"),
    "a rewind dropped": (drop("rewind", 3), "wanted draft, verify, synchronize, cache.trim, rewind"),
    "prefill dropped": (drop("prefill", 0), "has 0 prefills"),
    "the generation dropped": (drop(GENERATION, 0), "'prefill': its parent is not here"),
    "a round doubled": (double("round", 1), "index is 1, but it is round 2 in time"),
    "a stage doubled": (double("verify", 0), "starts before 'verify' ends"),
    "prefill later": (move("prefill", 0, 1), "starts 1 ns after 'text_completion scripted'"),
    "prefill doubled": (double("prefill", 0), "starts 1.1 us before 'prefill' ends"),
    "a round moved forward": (move("round", 1, 20_000), "index is 2, but it is round 1 in time"),
    "a round moved a little": (move("round", 1, -4_000), "before 'round' ends"),
    "a round moved out": (move("round", 5, 50_000), "is not inside 'text_completion scripted'"),
    "a stage moved": (move("cache.trim", 0, 7_000), "is not inside 'round'"),
    "a stage under another round": (
        change("draft", 2, parent_id=lambda _: nth(good(), "round", 1).span_id),
        "is not inside 'round'",
    ),
    "a stage under the generation": (
        change("draft", 2, parent_id=lambda span: nth(good(), GENERATION, 0).span_id),
        "its parent is 'text_completion scripted'",
    ),
    "a round in another trace": (change("round", 3, trace_id="f" * 32), "its parent is not here"),
    "C one too many": (add("round", 2, ROUND + "committed", 1), "committed is"),
    "C one too few": (add("round", 4, ROUND + "committed", -1), "committed is"),
    "C and A one too many": (
        lambda spans: add("round", 0, ROUND + "committed", 1)(list(add("round", 0, ROUND + "accepted", 1)(spans))),
        "cache_length is",
    ),
    "A more than was proposed": (add("round", 0, ROUND + "accepted", 9), "accepted and 0 cut are more than"),
    "cut in the middle": (add("round", 0, ROUND + "cut", 1), "1 cut, but a"),
    "more proposed than requested": (add("round", 0, ROUND + "proposed", 9), "are more than 3 requested"),
    "nothing requested of somebody": (
        change("round", 0, attributes={ROUND + "requested": 0, ROUND + "proposer": "ncm"}),
        "proposer is 'ncm', but nothing was requested",
    ),
    "a greedy q": (
        change(GENERATION, 0, attributes={"roundscope.generation.q_source": "point"}),
        "q_source is point, but its policy is greedy",
    ),
    "a relaxed coupling": (
        change(GENERATION, 0, attributes={"roundscope.generation.policy": "relaxed", COUPLING: "residual"}),
        "coupling is residual, but its policy is relaxed",
    ),
    "a round's q where none is judged by": (
        change("round", 0, attributes={ROUND + "q_source": "point", ROUND + "proposer": "ncm"}),
        "q_source is point, but the coupling is None",
    ),
    "a round's q where the drafter is one": (
        lambda spans: change("round", 0, attributes={ROUND + "q_source": "drafter"})(list(drawn(spans))),
        "q_source is drafter, but no part of a composed drafter proposed",
    ),
    "a time that nobody expected": (
        change("round", 0, attributes={ROUND + "expected_ns": 5}),
        "expected_ns is 5, but there is no reason",
    ),
    "a step's time that nobody expected": (
        change("round", 0, attributes={ROUND + "expected_step_ns": 5}),
        "expected_step_ns is 5, but there is no reason",
    ),
    "another number requested": (add("round", 0, ROUND + "requested", -1), "requested is 2, but 20 tokens were left"),
    "a wider forward": (add("round", 0, ROUND + "width", 1), "width is"),
    "a shorter cache": (add("round", 1, ROUND + "cache_length", -1), "cache_length is"),
    "a drafter that is ahead": (add("round", 1, ROUND + "drafter_length", 1), "drafter_length is"),
    "another outcome": (change("round", 0, attributes={ROUND + "outcome": "step"}), "a step does not go with"),
    "an end in the middle": (
        change("round", 0, attributes={ROUND + "stop_kind": "eos"}),
        "the output ended here (eos)",
    ),
    "a cancellation in the middle": (
        change("round", 0, attributes={ROUND + "outcome": "cancelled"}),
        "the output ended here (cancelled)",
    ),
    "no count": (change("round", 0, attributes={ROUND + "accepted": None}), "not set: accepted"),
    "no prompt": (change(GENERATION, 0, attributes={"gen_ai.usage.input_tokens": None}), "not set: prompt_tokens"),
    "one output token too many": (add(GENERATION, 0, "gen_ai.usage.output_tokens", 1), "tokens of output, and its"),
    "one round too many": (add(GENERATION, 1, "roundscope.generation.n_rounds", 1), "says 13 rounds, and has 12"),
    "a shorter decode": (add(GENERATION, 1, "roundscope.generation.decode_ns", -1), "decoding took"),
    "a higher limit": (add(GENERATION, 1, "gen_ai.request.max_tokens", -9), "is the limit"),
    "ended at a limit that was not reached": (
        change(GENERATION, 0, attributes={REASONS: ("length",)}),
        "ended at its limit of 20 tokens with 12",
    ),
    "no finish reason": (change(GENERATION, 0, attributes={REASONS: None}), "has no finish reason, and no error.type"),
    "an abort that has ended": (
        change(GENERATION, 0, attributes={REASONS: None}, status="error", error_type="aborted"),
        "has no finish reason, but a prefill that ended; has no finish reason, but ",
    ),
    "no finish reason and no prefill": (
        lambda spans: change(GENERATION, 1, attributes={REASONS: None})(list(drop("prefill", 1)(spans))),
        "has no finish reason, and no error.type",
    ),
    "an open round": (change("round", 2, end_unix_ns=None), "'round': has not ended"),
    "an open stage": (change("verify", 2, end_unix_ns=None), "'verify': has not ended"),
    "an open generation": (change(GENERATION, 0, end_unix_ns=None), f"'{GENERATION}': has not ended"),
    "usage twice": (
        change("round", 0, attributes={"gen_ai.usage.output_tokens": 2}),
        "usage belongs to the generation alone",
    ),
}


def test_a_good_trace_is_consistent_as_spans_and_as_records() -> None:
    assert_rounds_consistent(Spans(good()))
    assert_rounds_consistent(recording().records)
    assert_rounds_consistent(Spans(drawn(good())))
    assert_sinks_agree(records=recording().records, spans=Spans(good()))


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_is_caught_by_what_rounds_are(name: str) -> None:
    mutate, message = MUTATIONS[name]
    with pytest.raises(TraceAssertionError) as caught:
        assert_rounds_consistent(Spans(mutate(good())))
    text = str(caught.value)
    assert text.startswith("expected consistent rounds\nfound ")
    assert message in text
    assert "   <-- " in text


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_is_caught_beside_the_records(name: str) -> None:
    with pytest.raises(TraceAssertionError, match=r"^expected the 76 spans that were recorded\nfound "):
        assert_sinks_agree(records=recording().records, spans=Spans(MUTATIONS[name][0](good())))


@given(which=st.integers(0, 75), how=st.sampled_from(["drop", "double", "rename", "start earlier"]))
def test_any_span_dropped_doubled_renamed_or_lengthened_is_caught(which: int, how: str) -> None:
    """Whichever span it is, without the records at hand."""
    spans = good()
    span = spans[which]
    put = {
        "drop": [],
        "double": [span, replace(span)],
        "rename": [replace(span, name="other")],
        "start earlier": [replace(span, start_unix_ns=span.start_unix_ns - 9_000)],
    }[how]
    with pytest.raises(TraceAssertionError):
        assert_rounds_consistent(Spans([*spans[:which], *put, *spans[which + 1 :]]))


@given(
    seed=st.integers(0, 9),
    length=st.integers(0, 5) | st.just("auto"),
    limit=st.integers(1, 30),
    shape=st.sampled_from(["full", "short", "empty", "periodic"]),
    pipelined=st.booleans(),
    end=st.sampled_from(["drain", "close", "fail"]),
)
def test_whatever_a_loop_does_is_consistent(
    seed: int, length: int | Literal["auto"], limit: int, shape: str, pipelined: bool, end: str
) -> None:
    """Limits, ends of text, stop strings, cancellation, failures, kinds of caches: no fault is found where none is."""
    script = hashed(seed, 12, 3)
    fail_at = 4 if end == "fail" else None
    with TraceRecording() as recorded:
        target = ScriptedTarget(script, vocab_size=12, eos=[3], fail_at=fail_at)
        drafter = ScriptedDrafter(guessing(script, 12, percent=70, seed=seed, shape=shape))
        for generation in (
            speculate(target, drafter, [1, 2], draft_length=length, max_tokens=limit, stop=["fg"]),
            decode(target, [1, 2], max_tokens=limit, pipelined=pipelined),
        ):
            with suppress(ScriptedFailure):
                next(generation, None)
                generation.close() if end == "close" else generation.drain()
    assert_rounds_consistent(recorded.spans)
    assert [type(each) for each in recorded.records].count(RoundRecord) == len(recorded.spans.find("round"))


def test_nothing_recorded_is_not_consistent() -> None:
    with pytest.raises(TraceAssertionError, match=r"^expected consistent rounds\nfound no generation"):
        assert_rounds_consistent([])


@pytest.mark.parametrize(
    ("overlap", "positions", "message"),
    [
        (0.5, 1, None),
        (0.5, 9, r"an overlap over 9 positions, but \d were judged"),
        (1.5, 1, "overlap is 1.5 over 1 positions, of which each has 0 to 1"),
        (-0.5, 1, "overlap is -0.5 over 1 positions"),
    ],
)
def test_an_overlap_is_of_judged_tokens(overlap: float, positions: int, message: str | None) -> None:
    names = {"overlap": overlap, "overlap_positions": positions}
    attributes = {f"roundscope.round.{name}": value for name, value in names.items()}
    spans = Spans(change("round", 0, attributes=attributes)(good()))
    if message is None:
        assert_rounds_consistent(spans)
    else:
        with pytest.raises(TraceAssertionError, match=message):
            assert_rounds_consistent(spans)


@pytest.mark.parametrize(
    ("which", "attributes", "message"),
    [
        ("round", {"reason": None}, r"a controller chose \d, but gives no reason"),
        ("round", {"reason": "budget", "requested": 2}, "reason is budget, but 2 were requested"),
        (GENERATION, {"controlled": None}, r"reason is prior, but no controller chose \d"),
    ],
    ids=["no reason", "none is asked for", "no controller"],
)
def test_a_controller_gives_its_reasons(which: str, attributes: dict[str, Any], message: str) -> None:
    with TraceRecording() as recorded:
        drafter = ScriptedDrafter(guessing(counting(20), 20, percent=60))
        target = ScriptedTarget(counting(20), vocab_size=20)
        speculate(target, drafter, [1, 2, 3], draft_length="auto", max_tokens=12).drain()
    assert_rounds_consistent(recorded.spans)
    prefix = ROUND if which == "round" else "roundscope.generation."
    mutate = change(which, 0, attributes={prefix + name: value for name, value in attributes.items()})
    with pytest.raises(TraceAssertionError, match=message):
        assert_rounds_consistent(Spans(mutate(list(recorded.spans))))


def test_a_round_may_be_kept_short_where_the_cache_is_to_be_quantised() -> None:
    """`runtime.caches.quantising`: a forward does not cross the point from which keys and values are quantised."""
    asked_for_more = {"roundscope.generation.draft_length": 4}
    quantised = {**asked_for_more, "roundscope.generation.kv_bits": 8}
    assert_rounds_consistent(Spans(change(GENERATION, 0, attributes=quantised)(good())))
    with pytest.raises(TraceAssertionError, match="requested is 3, but 20 tokens were left: 4"):
        assert_rounds_consistent(Spans(change(GENERATION, 0, attributes=asked_for_more)(good())))


def test_a_generation_whose_process_died_is_consistent() -> None:
    records = recording().records
    assert_rounds_consistent(record for record in records if not isinstance(record, GenerationEnd))
