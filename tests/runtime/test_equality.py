"""Speculation commits what ordinary decoding commits: properties over scripted targets and drafters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.drafters.assistant import Assistant
from runtime.drafters.prompt_lookup import PromptLookup
from runtime.generate import decode, speculate
from runtime.protocols import Drafter
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.fields import Timing
from telemetry.recorder import Recorder
from telemetry.records import GenerationEnd, RoundRecord
from telemetry.testing import FakeClock
from tests.runtime.scripted import KeepingDrafter, describe, drain_checked, expect, guessing, hashed, rows, spell


@dataclass(frozen=True)
class Case:
    """A target's script, a request, and a drafter."""

    seed: int
    vocab_size: int
    order: int
    prompt: list[int]
    max_tokens: int
    eos: frozenset[int]
    stop: list[int | str]
    draft_length: int
    percent: int
    shape: str
    kind: str
    timing: Timing

    def target(self) -> ScriptedTarget:
        """A fresh target."""
        return ScriptedTarget(hashed(self.seed, self.vocab_size, self.order), vocab_size=self.vocab_size, eos=self.eos)

    def drafter(self) -> Drafter:
        """A fresh drafter."""
        script = hashed(self.seed, self.vocab_size, self.order)
        propose = guessing(script, self.vocab_size, percent=self.percent, seed=self.seed, shape=self.shape)
        if self.kind == "keeping":
            return KeepingDrafter(propose)
        if self.kind == "prompt-lookup":
            return PromptLookup(max_n=3, min_n=1)
        if self.kind == "assistant":
            return Assistant(
                ScriptedTarget(lambda history: (propose(history, 1) or [0])[0], vocab_size=self.vocab_size)
            )
        return ScriptedDrafter(propose, lazy=self.kind == "lazy")

    def request(self) -> dict[str, Any]:
        """The arguments that both calls share."""
        return {"max_tokens": self.max_tokens, "stop": self.stop}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any history function, prompt, limit, stops and drafter."""
    vocab_size = draw(st.integers(2, 32))
    ids = st.integers(0, vocab_size - 1)
    said = st.lists(ids, min_size=1, max_size=4).map(spell)
    pieces = st.builds(lambda text, cut: text[cut:] or text, said, st.integers(0, 2))
    return Case(
        seed=draw(st.integers(0, 2**16)),
        vocab_size=vocab_size,
        order=draw(st.integers(1, 4)),
        prompt=draw(st.lists(ids, min_size=1, max_size=8)),
        max_tokens=draw(st.one_of(st.integers(10, 40), st.integers(1, 9))),
        eos=draw(st.frozensets(ids, max_size=1)),
        stop=draw(st.lists(st.one_of(ids, pieces), max_size=2)),
        draft_length=draw(st.sampled_from([4, 8, 3, 2, 1, 5, 6, 7, 0])),
        percent=draw(st.sampled_from([95, 80, 100, 50, 0])),
        shape=draw(st.sampled_from(["full", "full", "short", "empty", "periodic"])),
        kind=draw(st.sampled_from(["plain", "lazy", "keeping", "prompt-lookup", "assistant"])),
        timing=draw(st.sampled_from(["fused", "attributed"])),
    )


def _expected(case: Case) -> Any:
    script = hashed(case.seed, case.vocab_size, case.order)
    return expect(script, case.prompt, max_tokens=case.max_tokens, eos=case.eos, stop=case.stop)


@settings(max_examples=150)
@given(case=cases(), pipelined=st.booleans())
def test_ordinary_decoding_is_the_script(case: Case, pipelined: bool) -> None:
    generation = decode(case.target(), case.prompt, pipelined=pipelined, **case.request())
    rounds = drain_checked(generation, case.prompt)
    assert describe(generation, rounds) == _expected(case)
    assert [entry.outcome for entry in rounds] == ["step"] * len(rounds)


@settings(max_examples=300)
@given(case=cases())
def test_speculation_equals_ordinary_decoding(case: Case) -> None:
    drafter = case.drafter()
    generation = speculate(
        case.target(),
        drafter,
        case.prompt,
        draft_length=case.draft_length,
        timing=case.timing,
        **case.request(),
    )
    rounds = drain_checked(generation, case.prompt, draft_length=case.draft_length, max_tokens=case.max_tokens)
    assert describe(generation, rounds) == _expected(case)
    history = [*case.prompt, *generation.tokens]
    if isinstance(drafter, Assistant):
        assert [layer.tokens for layer in drafter._cache] == [history[: drafter.length]] * 2
        assert drafter.length == rounds[-1].drafter_length
        return
    lags = [case.kind == "keeping" and entry.outcome in ("bonus", "step") for entry in rounds]
    assert [entry.drafter_length for entry in rounds] == [
        entry.cache_length - lag for entry, lag in zip(rounds, lags, strict=True)
    ]


@settings(max_examples=100)
@given(case=cases(), tick=st.integers(0, 7))
def test_records_are_the_rounds_and_the_times_add_up(case: Case, tick: int) -> None:
    clock = FakeClock(tick_ns=tick)
    recorder = Recorder(clock=clock)
    generation = speculate(
        case.target(),
        case.drafter(),
        case.prompt,
        draft_length=case.draft_length,
        timing=case.timing,
        recorder=recorder,
        **case.request(),
    )
    rounds = []
    for entry in generation:
        rounds.append(entry)
        clock.advance(1000)
    [end] = rows(recorder.records, GenerationEnd)
    records = rows(recorder.records, RoundRecord)
    assert [record.generation_id for record in records] == [generation.id] * len(rounds)
    for record, entry in zip(records, rounds, strict=True):
        for name in ("index", "requested", "proposed", "accepted", "committed", "cut", "outcome", "width", "syncs"):
            assert getattr(record, name) == getattr(entry, name)
        for name in ("cache_length", "drafter_length", "t_round_ns", "trim_way", "rewind_way"):
            assert getattr(record, name) == getattr(entry, name)
        for stage, measured in entry.stages.items():
            assert (getattr(record, f"{stage}_ns"), getattr(record, f"{stage}_basis")) == measured
    assert end.n_rounds == len(rounds)
    assert end.n_committed == sum(record.committed for record in records) == len(generation.tokens)
    assert end.decode_ns == sum(record.t_round_ns for record in records) + end.unaccounted_ns
    assert 1000 * (len(rounds) - 1) <= end.consumer_ns <= end.unaccounted_ns
    assert end.finish_reason == generation.finish_reason
