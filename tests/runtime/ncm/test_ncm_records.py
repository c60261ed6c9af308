"""What a generation leaves behind: counts from shapes, times on their bases, the right end, rows in the store."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import pytest
from mlx.utils import tree_flatten
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from runtime.device import barrier, syncs
from runtime.ncm.config import load_config
from runtime.ncm.descent import Descent
from runtime.ncm.generation import generate
from runtime.ncm.log import HELD_NS, OpenLevel, digest_codes
from runtime.ncm.model import Generator, init_model
from telemetry.context import Caller
from telemetry.fields import LEVEL_STAGES
from telemetry.journal import Journal
from telemetry.ncm_records import LevelRecord, NcmEnd, NcmRecord
from telemetry.recorder import Recorder
from telemetry.spans import build_spans
from telemetry.store import DATABASE, load
from telemetry.testing import FakeClock
from tests.runtime.ncm.test_ncm_generation import Script
from tests.runtime.ncm.tiny import GRID, TINY, draw_conditioning, tiny_model

Records = tuple[NcmRecord, list[LevelRecord], NcmEnd]


def record(model: Any, batch: int, clock: FakeClock | None = None, **options: Any) -> Records:
    """The records of one generation, by kind."""
    recorder = Recorder(clock=clock)
    generate(model, draw_conditioning(model.config, batch), recorder=recorder, **options)
    return split(recorder)


def split(recorder: Recorder) -> Records:
    start, *levels, end = recorder.records
    assert isinstance(start, NcmRecord)
    assert isinstance(end, NcmEnd)
    assert all(isinstance(level, LevelRecord) for level in levels)
    assert {record.generation_id for record in (start, *levels, end)} == {start.generation_id}  # type: ignore[union-attr]
    return start, levels, end  # type: ignore[return-value]


@pytest.mark.parametrize("batch", [1, 2])
def test_counts_of_the_published_size(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,286 positions and 120,392 pairs become 395 and 48,221, counted while they run."""
    monkeypatch.setattr(
        "runtime.ncm.descent.read_rows", lambda *arrays: [[[0] * array.shape[1]] * batch for array in arrays]
    )
    monkeypatch.setattr("mlx.core.async_eval", lambda *arrays: None)
    model = init_model(load_config("sudoku-e20"))
    _, cached, _ = record(model, batch)
    _, repeated, _ = record(model, batch, cache=False)
    assert [level.length for level in cached] == list(model.config.lengths)
    for levels, positions, pairs, reused in ((cached, 395, 48_221, 891), (repeated, 1286, 120_392, 0)):
        assert sum(level.prefix_processed + level.level_processed for level in levels) == batch * positions
        assert sum(level.pairs_computed for level in levels) == 8 * batch * pairs
        assert sum(level.pairs_allowed for level in levels) == 8 * batch * pairs
        assert sum(level.prefix_reused for level in levels) == batch * reused
        assert [level.forwards for level in levels] == [1] * 12
    assert [level.prefix_processed for level in cached] == [81 * batch] + [0] * 11
    assert {level.kv_bytes for level in cached} == {1_327_104 * batch}
    assert {level.kv_bytes for level in repeated} == {0}


def test_counts_with_masks_and_tied_layers() -> None:
    _, levels, _ = record(tiny_model(0, GRID), 2)
    applications, samples = 4, 2
    assert [level.pairs_computed for level in levels] == [
        applications * samples * pairs for pairs in (81 * 9 + 82, 4 * 85, 81 * 162)
    ]
    assert [level.pairs_allowed for level in levels] == [
        applications * samples * pairs for pairs in (81 * 9 + 82, 4 * (21 + 4), 81 * (1 + 81))
    ]
    assert levels[0].kv_bytes == 2 * applications * samples * 81 * 18 * 4


def test_the_start_says_what_was_asked_for() -> None:
    recorder = Recorder(run_id="run").label(prompt_id="batch-3", repeat=2, sequence=7, warm_up=True)
    generate(tiny_model(), draw_conditioning(TINY, 2), seed=9, temperature=0.5, cache=False, recorder=recorder)
    start, _, end = split(recorder)
    assert (start.run_id, start.arm, start.cache, start.exit, start.timing) == (
        "run",
        "no-cache",
        False,
        "none",
        "fused",
    )
    assert (start.config, start.config_digest, start.policy) == ("tiny", TINY.digest, "block_diagonal")
    assert (start.prefix_attention, start.level_attention) == ("all", "all")
    of_grid, _, _ = record(tiny_model(0, GRID), 1)
    assert (of_grid.prefix_attention, of_grid.level_attention) == ("units", "cells")
    assert (start.n_layers, start.n_heads, start.head_dim, start.dtype) == (2, 2, 8, "float32")
    assert (start.prefix_length, start.lengths, start.batch) == (5, [1, 2, 3, 5], 2)
    assert (start.batch_id, start.repeat, start.sequence, start.warm_up) == ("batch-3", 2, 7, True)
    assert (start.seed, start.temperature, start.reused_prefix) == (9, 0.5, False)
    assert (end.finish_reason, end.n_levels, end.n_solved, end.error_type) == ("complete", 4, None, None)


T, S = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("given", "active", "caller"),
    [
        (None, None, None),
        (f"00-{T}-{S}-01", None, Caller(T, S, True)),
        (f"00-{T}-{S}-00", None, Caller(T, S, False)),
        (None, 1, Caller("a" * 32, "b" * 16, True)),
        (None, 0, Caller("a" * 32, "b" * 16, False)),
        (f"00-{T}-{S}-01", 0, Caller(T, S, True)),
    ],
    ids=["none", "argument", "argument, unsampled", "active span", "active span, unsampled", "argument before active"],
)
def test_the_callers_trace_context_is_the_parents(
    monkeypatch: pytest.MonkeyPatch, given: str | None, active: int | None, caller: Caller | None
) -> None:
    monkeypatch.delenv("TRACEPARENT", raising=False)
    recorder = Recorder()
    context = SpanContext(int("a" * 32, 16), int("b" * 16, 16), is_remote=False, trace_flags=TraceFlags(active or 0))
    with nullcontext() if active is None else trace.use_span(NonRecordingSpan(context)):
        generate(tiny_model(), draw_conditioning(TINY, 1), recorder=recorder, traceparent=given)
    start, levels, _ = split(recorder)
    root, *below = build_spans(recorder.records)
    if caller is None:
        assert (start.trace_id, start.parent_span_id, start.sampled) == (None, None, None)
        assert (root.trace_id, root.parent_id, root.sampled) == (start.generation_id, None, True)
    else:
        assert Caller(start.trace_id, start.parent_span_id, start.sampled) == caller  # type: ignore[arg-type]
        assert (root.trace_id, root.parent_id, root.sampled) == (caller.trace_id, caller.span_id, caller.sampled)
    assert {(span.trace_id, span.sampled) for span in below} == {(root.trace_id, root.sampled)}
    assert len(levels) == TINY.n_levels


@pytest.mark.parametrize(
    ("options", "arm"),
    [({}, "cache"), ({"cache": False}, "no-cache"), ({"exit": "verified"}, "cache exit")],
)
def test_arms_have_names(options: Any, arm: str) -> None:
    start, _, _ = record(tiny_model(), 1, check=Script({}), **options)
    assert start.arm == arm


def test_fused_levels_are_launched_and_waited_for_once() -> None:
    model = tiny_model()
    record(model, 2)  # constants of the layouts are made once
    before = syncs()
    _, levels, end = record(model, 2)
    assert syncs() - before == 1
    assert [level.syncs for level in levels] == [0] * 4
    assert {(level.forward_basis, level.sample_basis, level.reconstruct_basis) for level in levels} == {
        ("host_launch",) * 3
    }
    assert {(level.decode_basis, level.check_basis, level.codes_digest) for level in levels} == {(None, None, None)}
    assert end.codes_digest != digest_codes([])


def test_attributed_levels_have_a_barrier_after_each_stage() -> None:
    _, levels, _ = record(tiny_model(), 2, timing="attributed", exit="verified", check=Script({0: 1}))
    assert [level.syncs for level in levels] == [4, 5, 4, 4]
    assert {getattr(level, f"{stage}_basis") for level in levels for stage in LEVEL_STAGES} == {"barrier"}


@pytest.mark.parametrize("cache", [True, False])
def test_an_attributed_check_waits_for_all_that_compaction_left(cache: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it leaves lazy would be paid for in the next level's forward."""
    waited: list[list[Any]] = []
    compacted: list[list[Any]] = []

    def watch(*trees: Any) -> None:
        waited.append([array for _, array in tree_flatten(trees)])
        barrier(*trees)

    def see(descent: Descent, rows: list[int]) -> None:
        compact(descent, rows)
        kept = descent._cache.arrays if descent._cache is not None else []
        compacted.append([descent._partial, descent._prefix, *kept])

    compact = Descent._compact
    monkeypatch.setattr(Descent, "_compact", see)
    monkeypatch.setattr("runtime.ncm.descent.barrier", watch)
    _, levels, _ = record(
        tiny_model(), 3, cache=cache, timing="attributed", exit="verified", check=Script({0: 1, 2: 2})
    )
    assert [level.n_exited for level in levels] == [0, 1, 1, 0]
    assert [len(arrays) for arrays in compacted] == [2 + 4 * cache] * 2
    # Three barriers of stages a level, and that of compaction after those of levels 1 and 2.
    for at, arrays in zip((6, 10), compacted, strict=True):
        assert {id(array) for array in waited[at]} == {id(array) for array in arrays}


def test_forwards_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Generator.forward_level

    def repeat(self: Generator, level: int, *rest: Any) -> Any:
        for _ in range(level):
            forward(self, level, *rest)
        return forward(self, level, *rest)

    monkeypatch.setattr(Generator, "forward_level", repeat)
    _, levels, _ = record(tiny_model(), 1)
    assert [level.forwards for level in levels] == [1, 2, 3, 4]


@pytest.mark.parametrize(("timing", "basis"), [("fused", "host_wait"), ("attributed", "barrier")])
def test_what_comes_after_the_levels_is_told_apart(timing: str, basis: str) -> None:
    clock = FakeClock(tick_ns=5)

    def check(tokens: list[list[int]], samples: list[int]) -> list[bool]:
        clock.monotonic_ns()
        return [False for _ in samples]

    _, _, end = record(tiny_model(), 2, clock=clock, timing=timing, check=check)
    assert (end.decode_ns, end.decode_basis, end.check_ns, end.check_basis) == (5, basis, 10, "host")
    assert end.finish_ns == 25
    _, _, end = record(tiny_model(), 2, clock=clock, timing=timing)
    assert (end.decode_ns, end.decode_basis, end.check_ns, end.check_basis) == (5, basis, None, None)
    _, _, end = record(tiny_model(), 2, clock=clock, timing=timing, exit="verified", check=check)
    assert (end.decode_ns, end.decode_basis, end.check_ns, end.check_basis) == (None, None, None, None)


def test_exit_is_in_the_records() -> None:
    recorder = Recorder()
    conditioning = draw_conditioning(TINY, 3)
    output = generate(tiny_model(), conditioning, exit="verified", check=Script({1: 0, 0: 2, 2: 2}), recorder=recorder)
    _, levels, end = split(recorder)
    assert [(level.batch, level.n_exited) for level in levels] == [(3, 1), (2, 0), (2, 2)]
    assert [level.prefix_reused for level in levels] == [0, 10, 10]
    assert {(level.decode_basis, level.check_basis) for level in levels} == {("host_wait", "host")}
    assert [level.codes_digest for level in levels] == [
        digest_codes([codes[level] for codes in output.codes if len(codes) > level]) for level in range(3)
    ]
    assert (end.finish_reason, end.n_levels, end.n_solved) == ("exited", 3, 3)


def test_times_fit_into_each_other() -> None:
    start, levels, end = record(tiny_model(), 1, clock=FakeClock(tick_ns=5), exit="verified", check=Script({}))
    assert start.started_monotonic_ns == 5
    assert [level.start_ns for level in levels] == [5, 35, 65, 95]
    assert {level.t_level_ns for level in levels} == {25}
    assert {getattr(level, f"{stage}_ns") for level in levels for stage in LEVEL_STAGES} == {5}
    assert (end.levels_ns, end.finish_ns, end.total_ns) == (100, 10, 130)


def test_equal_codes_have_equal_digests() -> None:
    digests = {
        (cache, seed): record(tiny_model(), 2, cache=cache, seed=seed, temperature=1.0)[2].codes_digest
        for cache in (True, False)
        for seed in (1, 2)
    }
    assert digests[True, 1] == digests[False, 1] != digests[True, 2] == digests[False, 2]


@pytest.mark.parametrize(("error", "reason"), [(RuntimeError("lost"), "error"), (KeyboardInterrupt(), "cancelled")])
def test_a_generation_that_breaks_off_says_so(
    error: BaseException, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Generator.forward_level

    def fail(self: Generator, level: int, *rest: Any) -> Any:
        if level == 2:
            raise error
        return forward(self, level, *rest)

    monkeypatch.setattr(Generator, "forward_level", fail)
    recorder = Recorder()
    with pytest.raises(type(error)):
        generate(tiny_model(), draw_conditioning(TINY, 1), recorder=recorder)
    _, levels, end = split(recorder)
    assert (len(levels), end.n_levels, end.finish_reason) == (2, 2, reason)
    assert (end.error_type, end.n_solved) == (type(error).__name__, None)


def test_everything_becomes_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, conditioning = tiny_model(0, GRID), draw_conditioning(GRID, 2)
    journal = Journal(tmp_path)
    recorder = Recorder(journal, run_id=None)
    for options in ({}, {"cache": False}, {"exit": "verified", "timing": "attributed"}):
        generate(model, conditioning, check=Script({0: 0, 1: 1}), recorder=recorder, **options)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        generate(model, conditioning, check=lambda tokens, samples: 1 / 0, recorder=recorder)  # type: ignore[arg-type]
    journal.close()
    report = load(tmp_path)
    assert (report.n_rejected, report.n_torn, report.n_lost) == (0, 0, 0)
    with duckdb.connect(str(tmp_path / DATABASE), read_only=True) as con:
        assert con.execute(
            "SELECT arm, finish_reason, n_levels, n_solved FROM ncm_generations ORDER BY started_monotonic_ns"
        ).fetchall() == [
            ("cache", "complete", 3, 1),
            ("no-cache", "complete", 3, 1),
            ("cache exit", "exited", 2, 2),
            ("cache", "error", 3, None),
        ]
        assert con.execute("SELECT count(*) FROM levels").fetchall() == [(11,)]


def test_levels_that_take_long_are_written_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process can lose of a generation in progress is bounded in time."""
    clock = FakeClock()
    recorder, model = Recorder(clock=clock), tiny_model()
    seen: list[int] = []
    run_level = Descent.run_level

    def slow(descent: Descent, opened: OpenLevel) -> None:
        seen.append(sum(isinstance(record, LevelRecord) for record in recorder.records))
        run_level(descent, opened)
        clock.advance(HELD_NS + 1 if opened.level != 1 else 1)
        opened.mark("reconstruct", "host")

    monkeypatch.setattr(Descent, "run_level", slow)
    generate(model, draw_conditioning(model.config, 1), recorder=recorder)
    assert seen == [0, 1, 1, 3][: len(seen)]
    assert len(seen) >= 3
    assert len(split(recorder)[1]) == model.config.n_levels
