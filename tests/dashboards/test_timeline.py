"""The timeline: a Chrome trace whose events nest, with arrows from drafts to corrections, and nothing left out."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dashboards.timeline import Event, build_events
from runtime.generate import decode, speculate
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.grouping import group
from telemetry.ncm_records import NcmRecord
from telemetry.recorder import Recorder
from telemetry.records import GenerationEnd, GenerationRecord, RoundRecord
from telemetry.testing import FakeClock
from tests.runtime.commands import call
from tests.runtime.scripted import always, counting
from tests.telemetry.stores import (
    generation,
    generation_end,
    header,
    rounds,
    run,
    run_end,
    write_lines,
)
from tests.telemetry.traces import every_kind, write_store

A, B = "a" * 32, "b" * 32
START = 1_700_000_000_123_456_789
PROMPT = list(range(7, 13))


def trace(events: list[Event], phase: str) -> list[Event]:
    """The events of one kind."""
    return [event for event in events if event["ph"] == phase]


def build(records: list[Any], first_ns: int = START) -> list[Event]:
    """The events of every generation in `records`."""
    return list(build_events(group(records), first_ns))


def find_faults(events: list[Event]) -> Iterator[str]:
    """What does not nest: a slice that begins in another and ends after it."""
    by_process = defaultdict(list)
    for event in trace(events, "X"):
        begin = round(event["ts"] * 1000)
        by_process[event["pid"], event["tid"]].append((begin, -round(event["dur"] * 1000), event["name"]))
    for slices in by_process.values():
        around: list[int] = []
        for begin, negative, name in slices:
            while around and around[-1] <= begin:
                around.pop()
            if around and begin - negative > around[-1]:
                yield f"{name} at {begin} ends after what it is in"
            around.append(begin - negative)


def record_run() -> list[Any]:
    """Ordinary and speculative generations of a scripted target, one after the other."""
    clock = FakeClock(wall_ns=START)
    recorder = Recorder(clock=clock)
    target = ScriptedTarget(counting(20), vocab_size=20, cost_ns=100, clock=clock)
    for _ in range(2):
        decode(target, PROMPT, max_tokens=4, recorder=recorder).drain()
        drafter = ScriptedDrafter(always([13, 19]), cost_ns=7, clock=clock)
        speculate(target, drafter, PROMPT, draft_length=2, max_tokens=6, recorder=recorder).drain()
    return recorder.records


def test_what_a_loop_records_nests_and_is_all_there() -> None:
    records = record_run()
    events = build(records)
    slices = trace(events, "X")
    assert list(find_faults(events)) == []
    n_rounds = sum(1 for each in records if type(each).__name__ == "RoundRecord")
    assert [sum(each["name"] == name for each in slices) for name in ("prefill", "round")] == [4, n_rounds]
    assert {each["args"]["name"] for each in trace(events, "M") if each["name"] == "process_name"} == {
        "ordinary",
        "scripted m=2",
    }
    assert min(each["ts"] for each in events if "ts" in each) == 0


def test_every_kind_of_generation_nests() -> None:
    """The rounds of `every_kind` begin with the prefill; here they begin after it, as they do."""
    records = every_kind()
    prefill = max(each.prefill_ns for each in records if isinstance(each, GenerationEnd))
    shifted = [
        replace(each, start_ns=each.start_ns + prefill) if isinstance(each, RoundRecord) else each for each in records
    ]
    events = build(shifted)
    assert list(find_faults(events)) == []
    assert list(find_faults(build(records))) != []
    ends = [each["name"] for each in trace(events, "i")]
    assert len(ends) == sum(isinstance(each, (GenerationRecord, NcmRecord)) for each in records)
    assert set(ends) == {"limit", "error", "cancelled", "aborted", "last level"}


def test_a_fault_would_be_found() -> None:
    slices = [{"ph": "X", "name": name, "ts": ts, "dur": 2.0, "pid": 1, "tid": 1} for name, ts in (("a", 0), ("b", 1))]
    assert list(find_faults(slices)) == ["b at 1000 ends after what it is in"]


def test_arrows_lead_from_a_draft_to_its_correction() -> None:
    records = [
        generation(A),
        *rounds(A, 1),
        *rounds(A, 1, index=1, start_ns=100, outcome="bonus", accepted=4, committed=5),
        *rounds(A, 1, index=2, start_ns=200, synchronize_ns=0, synchronize_basis=None),
        generation_end(A),
    ]
    events = build(records)
    begin, end = trace(events, "s"), trace(events, "f")
    assert [(each["ts"], each["pid"]) for each in begin] == [(0.01, 1), (0.21, 1)]
    assert [(each["ts"], each["bp"]) for each in end] == [(0.07, "e"), (0.235, "e")]
    assert [each["id"] for each in begin] == [each["id"] for each in end]
    assert len({each["id"] for each in begin}) == 2
    holding = [
        [each["name"] for each in trace(events, "X") if each["ts"] <= one["ts"] < each["ts"] + each["dur"]][-1]
        for one in (*begin, *end)
    ]
    assert holding == ["draft", "draft", "synchronize", "verify"]


def test_counters_and_instants() -> None:
    records = [generation(A), *rounds(A, 2), generation_end(A, finish_reason="stop", stop_kind="eos", total_ns=400)]
    events = build(records)
    assert [(each["name"], each["ts"], each["args"]) for each in trace(events, "C")] == [
        ("accepted", 0.09, {"tokens": 0}),
        ("cache length", 0.09, {"positions": 4}),
        ("accepted", 0.19, {"tokens": 1}),
        ("cache length", 0.19, {"positions": 5}),
    ]
    assert [(each["name"], each["ts"], each["s"]) for each in trace(events, "i")] == [("eos", 0.4, "t")]


def test_what_was_measured_of_p_and_q_is_a_counter() -> None:
    records = [generation(A), *rounds(A, 1, overlap=1.5, overlap_positions=2), *rounds(A, 1, index=1, start_ns=100)]
    found = [each for each in trace(build(records), "C") if each["name"] == "1 - TV(p, q)"]
    assert [(each["ts"], each["args"]) for each in found] == [(0.09, {"mean": 0.75})]


def test_slices_of_rounds_say_who_proposed_and_what_q_was() -> None:
    records = [generation(A), *rounds(A, 1, proposer="ar", q_source="drafter"), *rounds(A, 1, index=1, start_ns=100)]
    names = [f"roundscope.round.{name}" for name in ("proposer", "q_source")]
    slices = [each for each in trace(build(records), "X") if each["name"] == "round"]
    assert [[each["args"].get(name) for name in names] for each in slices] == [["ar", "drafter"], [None, None]]


def test_what_a_controller_chose_is_a_counter() -> None:
    chosen = [
        each
        for n, m in enumerate((4, 0))
        for each in rounds(A, 1, index=n, start_ns=100 * n, requested=m, reason="best")
    ]
    found = [
        each for each in trace(build([generation(A, controlled=True), *chosen]), "C") if each["name"] == "draft length"
    ]
    assert [(each["ts"], each["args"]) for each in found] == [(0.09, {"m": 4}), (0.19, {"m": 0})]


@pytest.mark.parametrize(
    ("ending", "name"),
    [
        ([generation_end(A)], "limit"),
        ([generation_end(A, finish_reason="cancelled")], "cancelled"),
        ([generation_end(A, finish_reason="error", error_type="ValueError")], "error"),
        ([], "aborted"),
    ],
)
def test_the_end_says_what_it_was(ending: list[Any], name: str) -> None:
    assert [each["name"] for each in trace(build([generation(A), *ending]), "i")] == [name]


def test_generations_that_overlap_are_in_processes_of_their_own() -> None:
    later = generation(B, started_wall_ns=START + 100)
    first = [generation(A), *rounds(A, 3), generation_end(A, prefill_ns=0)]
    events = build([*first, later, generation_end(B), generation("c" * 32, started_wall_ns=START + 450)])
    roots = [each["pid"] for each in trace(events, "X") if each["cat"] == "text_completion"]
    assert roots == [1, 2, 1]
    named = [each["args"]["name"] for each in trace(events, "M") if each["name"] == "process_name"]
    assert named == ["prompt-lookup-8", "prompt-lookup-8 (2)"]
    assert list(find_faults(events)) == []


def test_the_command_writes_a_file_that_is_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store, file = tmp_path / "store", tmp_path / "trace.json"
    write_store(store)
    said = "generations: 12 on the timeline, 0 are not over yet\n"
    assert call(capsys, "export", "--timeline", file, "--store", store) == (0, said, "")
    document = json.loads(file.read_text())
    assert document["otherData"] == {"started_wall_ns": 1_700_000_000_000_000_000}
    assert len(trace(document["traceEvents"], "i")) == 12
    assert min(each["ts"] for each in document["traceEvents"] if "ts" in each) == 0
    counts = {"generations": 5, "generations_still_open": 0}
    code, out, _ = call(capsys, "export", "--timeline", file, "--run", "run-1", "--store", store, "--json")
    assert (code, json.loads(out)) == (
        0,
        counts | {"generations": len(trace(json.loads(file.read_text())["traceEvents"], "i"))},
    )


def test_a_store_without_generations_is_an_empty_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_lines(tmp_path, [header(), run(), run_end()])
    file = tmp_path / "trace.json"
    assert call(capsys, "export", "--timeline", file, "--store", tmp_path)[0] == 0
    assert json.loads(file.read_text())["traceEvents"] == []
    reason = f"error: cannot write {tmp_path}/none/t.json: No such file or directory; name another file\n"
    assert call(capsys, "export", "--timeline", tmp_path / "none" / "t.json", "--store", tmp_path) == (1, "", reason)
