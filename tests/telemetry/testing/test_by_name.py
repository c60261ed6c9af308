"""The assertions by name, each against what it is to catch: other output, sinks that disagree, further device reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from runtime import decode, speculate
from runtime.device import barrier, syncs
from runtime.drafters.composed import Composed
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.metrics import Metrics
from telemetry.ncm_records import LevelRecord
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord, Record, RoundRecord
from telemetry.testing import (
    Spans,
    TraceAssertionError,
    TraceRecording,
    assert_equal_to_ordinary,
    assert_no_extra_sync,
    assert_rounds_consistent,
    assert_sinks_agree,
)
from tests.runtime.scripted import counting, guessing
from tests.telemetry.coarse import whole_ncm
from tests.telemetry.stores import comparison, header, whole_generation, write_lines
from tests.telemetry.testing.trees import record

TARGET = ScriptedTarget(counting(20), vocab_size=20)


def run_speculation(**options: Any) -> list[int]:
    """The output of a speculative generation."""
    drafter = ScriptedDrafter(guessing(counting(20), 20, percent=60))
    return speculate(TARGET, drafter, [1, 2, 3], draft_length=3, max_tokens=9, **options).drain().tokens


def test_output_of_ordinary_decoding_passes() -> None:
    ordinary = decode(TARGET, [1, 2, 3], max_tokens=9).drain()
    assert_equal_to_ordinary(run_speculation(), ordinary)
    assert_equal_to_ordinary(ordinary, tuple(ordinary.tokens))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            [1, 2, 3, 4, 9, 6],
            "found 6 tokens, which differ from position 4 on: ... 2 3 4 [9]\nordinary decoding: ... 2 3 4 [5]",
        ),
        ([1, 2], "found 2 tokens, which differ from position 2 on: 1 2 [the end]\nordinary decoding: 1 2 [3]"),
        ([9], "found 1 tokens, which differ from position 0 on: [9]\nordinary decoding: [1]"),
        (
            [1, 2, 3, 4, 5, 6, 7],
            "found 7 tokens, which differ from position 6 on: ... 4 5 6 [7]\nordinary decoding: ... 4 5 6 [the end]",
        ),
    ],
    ids=["other", "shorter", "at once", "longer"],
)
def test_other_output_is_shown_where_it_begins(output: list[int], message: str) -> None:
    with pytest.raises(TraceAssertionError) as caught:
        assert_equal_to_ordinary(output, [1, 2, 3, 4, 5, 6])
    assert str(caught.value) == f"expected ordinary decoding's output of 6 tokens\n{message}"


DIVERGED = {"equal": False, "diverged_at": 4, "diverged_round": 2, "top2_gap": 0.5, "tolerance": 0.001}


def test_a_sampled_generation_is_named_as_such() -> None:
    """It is not to be equal, so an assertion that it is has to fail, and say why."""
    recorder = Recorder()
    run_speculation(temperature=0.5, recorder=recorder)
    with pytest.raises(TraceAssertionError, match="was sampled: it has the distribution of ordinary decoding's output"):
        assert_equal_to_ordinary(Spans.from_records(recorder.records))


def test_a_relaxed_generation_is_named_as_not_exact() -> None:
    recorder = Recorder()
    run_speculation(policy="relaxed:threshold=0.5", recorder=recorder)
    with pytest.raises(TraceAssertionError, match=r"is not exact, by the relaxed rule threshold=0\.5: equality does"):
        assert_equal_to_ordinary(Spans.from_records(recorder.records))


def test_a_run_s_own_comparisons_count() -> None:
    equal = whole_generation("g1")
    near = [*whole_generation("g2")[:-1], comparison("g2", **DIVERGED | {"top2_gap": 0.0002, "near_tie": True})]
    spans = Spans.from_records([*equal, *near])
    assert_equal_to_ordinary(spans)
    with pytest.raises(TraceAssertionError, match=r"differs from position 4 on, committed by round 2; .* 0.0002 apart"):
        assert_equal_to_ordinary(spans, near_ties=False)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [*whole_generation("g1")[:-1], comparison("g1", near_tie=False, **DIVERGED)],
            "found 1 of 1 without\nnearest miss: differs from position 4 on, committed by round 2; "
            "the two best logits are 0.5 apart, tolerance 0.001",
        ),
        (
            [*whole_generation("g1"), *whole_generation("g2")[:-1]],
            "found 1 of 2 without\nnearest miss: was not compared with ordinary decoding",
        ),
        ([], "found no speculative generation\nthe trace is empty"),
    ],
    ids=["divergent", "not compared", "nothing"],
)
def test_a_divergent_or_uncompared_generation_is_caught(records: list[Record], message: str) -> None:
    with pytest.raises(TraceAssertionError) as caught:
        assert_equal_to_ordinary(Spans.from_records(records))
    expected = f"expected every speculative generation with ordinary decoding's output\n{message}"
    assert str(caught.value).startswith(expected)


def test_one_output_without_the_other_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="ordinary decoding's output is missing"):
        assert_equal_to_ordinary([1, 2])  # type: ignore[call-overload]


def all_sinks(store: Path, recording: TraceRecording, outputs: list[list[int]]) -> dict[str, Any]:
    """What every sink has of the same records."""
    records = recording.records
    write_lines(store, [header(), *records])
    metrics = Metrics()
    for each in records:
        metrics.count(each)
    return {
        "records": records,
        "spans": recording.spans,
        "store": store,
        "counters": metrics.registry,
        "outputs": outputs,
    }


@pytest.fixture
def sinks(tmp_path: Path) -> dict[str, Any]:
    """All sinks after three generations, of which one has a controller and two proposers, and draws, and a
    coarse-to-fine one."""
    with TraceRecording() as recording:
        outputs = [run_speculation(), decode(TARGET, [1, 2, 3], max_tokens=9).drain().tokens]
        parts = (ScriptedDrafter(guessing(counting(20), 20, percent=60, seed=seed)) for seed in (0, 1))
        drawn: dict[str, Any] = {"timing": "attributed", "temperature": 0.5}
        generation = speculate(TARGET, Composed(*parts), [1, 2, 3], draft_length="auto", max_tokens=9, **drawn)
        outputs.append(generation.drain().tokens)
        for each in whole_ncm("f" * 32):
            Recorder().write(each)
    return all_sinks(tmp_path, recording, outputs)


def test_all_sinks_agree(sinks: dict[str, Any]) -> None:
    assert_sinks_agree(**sinks)
    assert_rounds_consistent(sinks["records"])
    assert {each.q_source for each in sinks["records"] if isinstance(each, RoundRecord)} >= {"point"}
    registry = sinks.pop("counters")
    assert_sinks_agree(**sinks, counters=generate_latest(registry).decode())
    assert_sinks_agree(**sinks, counters=generate_openmetrics(registry).decode())


Change = Callable[[list[Record]], list[Record]]


def lose(kind: type[RoundRecord | LevelRecord]) -> Change:
    """The records without the first of this kind."""

    def change(records: list[Record]) -> list[Record]:
        lost = next(each for each in records if isinstance(each, kind))
        return [each for each in records if each is not lost]

    return change


def miscount(kind: type[RoundRecord | LevelRecord], field: str) -> Change:
    """The records with one more counted by this field of the first of this kind."""

    def change(records: list[Record]) -> list[Record]:
        wrong = next(each for each in records if isinstance(each, kind))
        changed = msgspec.structs.replace(wrong, **{field: getattr(wrong, field) + 1})
        return [changed if each is wrong else each for each in records]

    return change


def unset(field: str) -> Change:
    """The records with this field of one round not set."""

    def change(records: list[Record]) -> list[Record]:
        wrong = next(each for each in records if isinstance(each, RoundRecord) and getattr(each, field) is not None)
        return [msgspec.structs.replace(each, **{field: None}) if each is wrong else each for each in records]

    return change


@pytest.mark.parametrize("field", ["reason", "proposer", "overlap_positions"])
def test_a_sink_that_lost_why_a_round_was_as_it_was_is_caught(sinks: dict[str, Any], field: str) -> None:
    assert_sinks_agree(records=sinks["records"], counters=sinks["counters"])
    with pytest.raises(TraceAssertionError, match=rf"found other {field}\n"):
        assert_sinks_agree(records=unset(field)(sinks["records"]), counters=sinks["counters"])


@pytest.mark.parametrize(
    ("change", "is_output"),
    [
        (lose(RoundRecord), True),
        (miscount(RoundRecord, "committed"), True),
        (lose(LevelRecord), False),
        (miscount(LevelRecord, "prefix_processed"), False),
        (miscount(LevelRecord, "prefix_reused"), False),
    ],
    ids=["a round lost", "a round miscounted", "a level lost", "a level's work miscounted", "its reuse miscounted"],
)
@pytest.mark.parametrize("sink", ["records", "spans", "store", "counters"])
def test_a_sink_that_lost_or_miscounted_a_part_is_caught(
    sinks: dict[str, Any], tmp_path: Path, sink: str, change: Change, is_output: bool
) -> None:
    changed = change(sinks["records"])
    metrics = Metrics()
    for each in changed:
        metrics.count(each)
    write_lines(tmp_path / "other", [header(), *changed])
    sinks[sink] = {
        "records": changed,
        "spans": Spans.from_records(changed),
        "store": tmp_path / "other",
        "counters": metrics.registry,
    }[sink]
    with pytest.raises(TraceAssertionError):
        assert_sinks_agree(**sinks)
    other = "counters" if sink != "counters" else "outputs" if is_output else "records"
    with pytest.raises(TraceAssertionError, match=r"   <-- differ"):
        assert_sinks_agree(**{name: sinks[name] for name in (sink, other)})


def test_sinks_that_disagree_are_shown_side_by_side() -> None:
    records = record().records
    spans = Spans([each for each in Spans.from_records(records) if each.name != "round"])
    with pytest.raises(TraceAssertionError) as caught:
        assert_sinks_agree(spans=spans, outputs=[[0] * 20, [0] * 12])
    assert str(caught.value).split("\n") == [
        "expected spans, outputs to agree",
        "found other committed",
        "                     spans  outputs",
        "        generations      2        2",
        "             rounds      0         ",
        "           proposed      0         ",
        "           accepted      0         ",
        "          committed      0       32   <-- differ",
        "                cut      0         ",
        "  overlap_positions      0         ",
        "             reason      0         ",
        "           proposer      0         ",
        "    ncm_generations      0         ",
        "             levels      0         ",
        "   prefix_processed      0         ",
        "      prefix_reused      0         ",
    ]


def test_a_span_that_was_not_recorded_is_caught_and_a_stranger_s_is_not() -> None:
    records = record().records
    spans = list(Spans.from_records(records))
    stranger = replace(spans[0], span_id="9" * 16, name="request", attributes={"http.route": "/"})
    assert_sinks_agree(records=records, spans=Spans([*spans, stranger]))
    made_up = replace(spans[1], span_id="9" * 16)
    with pytest.raises(
        TraceAssertionError, match=r"found 0 missing, 1 other than recorded\nnearest miss: was not recorded"
    ):
        assert_sinks_agree(records=records, spans=Spans([*spans, made_up]))
    with pytest.raises(TraceAssertionError, match=r"found 1 missing, 0 other than recorded\nnearest miss: 'prefill'"):
        assert_sinks_agree(records=records, spans=Spans([*spans[:1], *spans[2:]]))


def test_one_sink_alone_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="two sinks or more"):
        assert_sinks_agree(records=[])


class Curious:
    """A sink that asks the device for something at every round."""

    def write(self, record: Record) -> None:
        """Take one record."""
        if not isinstance(record, GenerationRecord):
            barrier()


class Deaf:
    """No telemetry: records go nowhere."""

    def write(self, record: Record) -> None:
        """Take one record."""


def test_recording_reads_nothing_from_the_device(tmp_path: Path) -> None:
    off = lambda: run_speculation(recorder=Recorder(Deaf()))  # noqa: E731
    assert_no_extra_sync(off, run_speculation, count=syncs)
    with pytest.raises(TraceAssertionError, match=r"^expected (\d+) device reads with telemetry, as many as without\n"):
        assert_no_extra_sync(off, lambda: run_speculation(recorder=Recorder(Curious())), count=syncs)


def test_work_that_cannot_be_compared_is_refused() -> None:
    rising = iter(range(10))
    with pytest.raises(TraceAssertionError, match="found 1 reads and then 2, both without telemetry"):
        assert_no_extra_sync(lambda: None, lambda: None, count=iter([0, 1, 1, 2, 2, 4]).__next__)
    with pytest.raises(TraceAssertionError, match=r"found 0 reads: count\(\) does not see this work"):
        assert_no_extra_sync(lambda: None, lambda: next(rising), count=lambda: 3)
