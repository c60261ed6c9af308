"""The recorder: where records go, by which clock, under which labels, and that text stays out unless asked for."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from runtime.generate import decode, speculate
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.recorder import Labels, MemorySink, Recorder, new_generation_id
from telemetry.records import GenerationEnd, GenerationRecord, Record, RoundRecord
from telemetry.testing import FakeClock
from tests.runtime.scripted import always, counting, rows

SECRET = list(range(7, 13))


def _speculate(recorder: Recorder, **options: Any) -> str:
    target = ScriptedTarget(counting(20), vocab_size=20)
    drafter = ScriptedDrafter(always([13, 14, 19]))
    options = {"draft_length": 3, "max_tokens": 4, **options}
    return speculate(target, drafter, SECRET, recorder=recorder, **options).drain().id


def test_without_a_sink_records_are_kept_in_memory() -> None:
    recorder = Recorder()
    generation_id = _speculate(recorder)
    assert [type(record) for record in recorder.records] == [
        GenerationRecord,
        RoundRecord,
        RoundRecord,
        GenerationEnd,
    ]
    assert {record.generation_id for record in recorder.records} == {generation_id}


def test_any_sink_with_write_will_do() -> None:
    class Counting:
        n = 0

        def write(self, record: Record) -> None:
            self.n += 1

    sink = Counting()
    recorder = Recorder(sink)
    _speculate(recorder)
    assert sink.n == 4
    with pytest.raises(AttributeError, match="records went to Counting, which does not keep them in memory"):
        _ = recorder.records


def test_a_whole_generation_as_it_is_recorded() -> None:
    """Every field of every record, with the times of a fake clock."""
    clock = FakeClock(wall_ns=5_000)
    recorder = Recorder(clock=clock, run_id="run-1").label(arm="mine", prompt_id="p1", class_="copy", sequence=3)
    target = ScriptedTarget(counting(20), vocab_size=20, eos=[15], cost_ns=100, clock=clock)
    drafter = ScriptedDrafter(always([13, 19]), cost_ns=7, clock=clock)
    generation = speculate(target, drafter, SECRET, draft_length=2, max_tokens=9, recorder=recorder).drain()
    begin, first, second, end = (msgspec.to_builtins(record) for record in recorder.records)
    assert begin == {
        "type": "generation",
        "generation_id": generation.id,
        "run_id": "run-1",
        "arm": "mine",
        "drafter": "scripted",
        "draft_length": 2,
        "pipelined": False,
        "controlled": False,
        "timing": "fused",
        "model": "scripted",
        "prompt_id": "p1",
        "class": "copy",
        "repeat": 0,
        "sequence": 3,
        "warm_up": False,
        "prompt_tokens": 6,
        "cached_tokens": 0,
        "max_tokens": 9,
        "n_processors": 0,
        "policy": "greedy",
        "started_wall_ns": 5_000,
        "started_monotonic_ns": 0,
    }
    assert first == {
        "type": "round",
        "generation_id": generation.id,
        "index": 0,
        "start_ns": 100,
        "t_round_ns": 107,
        "requested": 2,
        "proposed": 2,
        "accepted": 1,
        "committed": 2,
        "cut": 0,
        "outcome": "correction",
        "width": 3,
        "processed": 0,
        "syncs": 1,
        "cache_length": 7,
        "drafter_length": 7,
        "replayed": 0,
        "trim_way": "trim",
        "rewind_way": "none",
        "draft_ns": 7,
        "draft_basis": "host",
        "verify_ns": 100,
        "verify_basis": "host_launch",
        "synchronize_ns": 0,
        "synchronize_basis": "host_wait",
        "trim_ns": 0,
        "trim_basis": "host",
        "rewind_ns": 0,
        "rewind_basis": "host",
    }
    assert (second["start_ns"], second["accepted"], second["committed"], second["stop_kind"]) == (207, 0, 1, "eos")
    peak = end.pop("peak_memory_bytes")
    assert peak >= 0
    assert end == {
        "type": "generation_end",
        "generation_id": generation.id,
        "finish_reason": "stop",
        "stop_kind": "eos",
        "n_rounds": 2,
        "n_committed": 3,
        "prefill_ns": 100,
        "decode_ns": 214,
        "unaccounted_ns": 0,
        "consumer_ns": 0,
        "ttft_ns": 207,
        "total_ns": 314,
        "cache_bytes": 2 * 8 * 8,
        "snapshot_bytes": 0,
    }


def test_labels_are_of_one_recorder_only() -> None:
    recorder = Recorder(run_id="r")
    labelled = recorder.label(prompt_id="p", warm_up=True)
    assert (recorder.labels, labelled.labels) == (Labels(), Labels(prompt_id="p", warm_up=True))
    assert (labelled.sink, labelled.run_id, labelled.clock) == (recorder.sink, "r", recorder.clock)
    with pytest.raises(TypeError, match="colour"):
        recorder.label(colour="red")


def test_the_arm_is_named_after_drafter_and_length_unless_labelled() -> None:
    recorder = Recorder()
    _speculate(recorder)
    _speculate(recorder.label(arm="mine"))
    decode(ScriptedTarget(counting(20), vocab_size=20), SECRET, max_tokens=1, recorder=recorder).drain()
    assert [record.arm for record in rows(recorder.records, GenerationRecord)] == ["scripted m=3", "mine", "ordinary"]


def _texts(recorder: Recorder) -> list[tuple[Any, ...]]:
    found = []
    for record in recorder.records:
        if isinstance(record, GenerationRecord):
            found.append(("prompt", record.prompt_ids))
        elif isinstance(record, RoundRecord):
            found.append(("round", record.proposal, record.tokens))
        elif isinstance(record, GenerationEnd):
            found.append(("end", record.text))
    return found


def test_text_is_recorded_only_where_it_was_asked_for() -> None:
    quiet, loud = Recorder(), Recorder(record_text=True)
    _speculate(quiet, stop=["q"])
    _speculate(loud, stop=["q"])
    assert _texts(quiet) == [("prompt", None), ("round", None, None), ("round", None, None), ("end", None)]
    assert _texts(loud) == [
        ("prompt", SECRET),
        ("round", [13, 14, 19], [13, 14, 15]),
        ("round", [], [16]),
        ("end", "nop"),
    ]


def test_nothing_of_a_prompt_or_an_output_is_in_a_record_without_text() -> None:
    """Neither in a stop's kind nor in an error's: messages may quote ids, so only the class is kept."""
    recorder = Recorder()
    _speculate(recorder, stop=["no"])
    target = ScriptedTarget(counting(20), vocab_size=20)
    failing = speculate(target, ScriptedDrafter(always([99])), SECRET, draft_length=1, max_tokens=4, recorder=recorder)
    with pytest.raises(Exception, match="token 99"):
        failing.drain()
    texts = set()
    for record in recorder.records:
        for name, value in msgspec.to_builtins(record).items():
            assert not isinstance(value, (list, dict)), name
            if isinstance(value, str) and name != "generation_id":
                texts.add(value)
    assert not {text for text in texts if "99" in text or "no" == text}
    assert "DrafterError" in texts


def test_a_round_that_proposed_or_accepted_nothing_says_0() -> None:
    """TensorRT-LLM PR#17082, #12545: zeros are written, never left out."""
    recorder = Recorder()
    target = ScriptedTarget(counting(20), vocab_size=20)
    speculate(target, ScriptedDrafter(always([])), [1], draft_length=3, max_tokens=1, recorder=recorder).drain()
    line = msgspec.to_builtins(rows(recorder.records, RoundRecord)[0])
    names = ("requested", "proposed", "accepted", "cut", "index")
    assert {name: line[name] for name in names} == dict.fromkeys(names, 0)


def test_ids_do_not_repeat_when_random_is_seeded() -> None:
    """opentelemetry-python#2974, #4376."""
    ids = []
    for _ in range(2):
        random.seed(0)
        ids.append(new_generation_id())
    assert ids[0] != ids[1]
    assert [(len(each), int(each, 16) >= 0) for each in ids] == [(32, True)] * 2


def test_a_memory_sink_keeps_what_it_is_given() -> None:
    sink = MemorySink()
    record = GenerationEnd(
        generation_id="g",
        finish_reason="length",
        n_rounds=0,
        n_committed=0,
        prefill_ns=0,
        decode_ns=0,
        unaccounted_ns=0,
        consumer_ns=0,
        total_ns=0,
        peak_memory_bytes=0,
        cache_bytes=0,
        snapshot_bytes=0,
    )
    sink.write(record)
    assert sink.records == [record]
