"""The loop with a controller: the output of ordinary decoding, the cache's contract, and what every round says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.drafters.composed import Composed
from runtime.generate import decode, speculate
from runtime.speculative.controller import Choice, Controller
from runtime.speculative.costs import Curve
from runtime.testing import ScriptedDrafter, ScriptedFailure, ScriptedSampler, ScriptedTarget
from telemetry.errors import UsageError
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord, RoundRecord
from telemetry.testing import FakeClock, assert_rounds_consistent
from tests.runtime.control.worlds import PROMPT, STEP, make_world
from tests.runtime.scripted import KeepingDrafter, drain_checked, expect, guessing, hashed, rows

VOCAB = 30


class Whimsical(Controller):
    """Chooses by dice, so that every order of steps, landings and rounds comes about."""

    def __init__(self, choices: Sequence[int], *, pipelines: bool = False) -> None:
        super().__init__(Curve({(0, w): STEP for w in (1, 17)}), longest=8)
        self._choices = choices
        self._pipelines = pipelines
        self._n = 0

    def decide(self, context: int, limit: int, *, free: Collection[int] = (), without: Collection[int] = ()) -> Choice:
        self._n += not without
        decided = super().decide(context, limit, free=free, without=without)
        left = [part for part in range(len(self.parts)) if part not in without]
        m = min(self._choices[self._n % len(self._choices)], max(limit, 0)) if left else 0
        return decided._replace(m=m, reason="best", part=left[self._n % len(left)] if m else None)

    def is_worth_pipelining(self, part: int, context: int) -> bool:
        return self._pipelines


SCRIPT = hashed(1, VOCAB, 2)


def chosen(choices: Sequence[int], drafter: Any, target: Any = None, *, pipelines: bool = False, **options: Any) -> Any:
    """A generation whose rounds get these draft lengths in turn."""
    return speculate(
        target or ScriptedTarget(SCRIPT, vocab_size=VOCAB),
        drafter,
        list(PROMPT),
        draft_length="auto",
        controller=Whimsical(choices, pipelines=pipelines),
        **options,
    )


@settings(max_examples=60)
@given(
    choices=st.lists(st.sampled_from([0, 0, 0, 1, 2, 5, 8]), min_size=1, max_size=12),
    percent=st.sampled_from([0, 50, 90, 100]),
    shape=st.sampled_from(["full", "short", "empty", "periodic"]),
    on_host=st.booleans(),
    lazy=st.booleans(),
    pipelines=st.booleans(),
    max_tokens=st.integers(1, 40),
    stop=st.sampled_from([(), (3,), ("ab",)]),
)
def test_whatever_is_chosen_the_output_is_ordinarys(
    choices: list[int],
    percent: int,
    shape: str,
    on_host: bool,
    lazy: bool,
    pipelines: bool,
    max_tokens: int,
    stop: Sequence[int | str],
) -> None:
    script = hashed(percent, VOCAB, 2)
    drafter = ScriptedDrafter(
        guessing(script, VOCAB, percent=percent, shape=shape), on_host=on_host, lazy=lazy and not on_host
    )
    target = ScriptedTarget(script, vocab_size=VOCAB)
    generation = chosen(choices, drafter, target, pipelines=pipelines, max_tokens=max_tokens, stop=stop)
    rounds = drain_checked(generation, PROMPT, draft_length=8)
    wanted = expect(script, PROMPT, max_tokens=max_tokens, stop=stop)
    assert (generation.tokens, generation.text, generation.finish_reason) == (
        wanted.tokens,
        wanted.text,
        wanted.finish_reason,
    )
    assert all(one.decision is not None for one in rounds)
    assert drafter.committed == generation.tokens
    assert sum(target.widths) - len(PROMPT) + 1 >= len(rounds)


@pytest.mark.parametrize("kind", ["residual", "equality"])
@pytest.mark.parametrize("on_host", [False, True])
def test_with_nothing_accepted_or_equality_the_draws_are_ordinarys(kind: Any, on_host: bool) -> None:
    """Steps, landed or not, and rounds draw the token of a position from the same stream, whoever makes it."""
    logits = [0.1 * (i % 7) for i in range(VOCAB)]
    target = ScriptedTarget(logits=lambda history: logits, vocab_size=VOCAB)
    seeded: Any = {"max_tokens": 40, "temperature": 1.0, "seed": 5}
    drafter = ScriptedDrafter(lambda history, m: [] if kind == "residual" else [2] * m, on_host=on_host)
    generation = chosen([0, 0, 3, 0, 5, 5], drafter, target, coupling=kind, **seeded)
    drain_checked(generation, PROMPT, draft_length=8)
    assert generation.tokens == decode(target, list(PROMPT), **seeded).drain().tokens


def test_a_drafter_that_samples_is_followed_too() -> None:
    target = ScriptedTarget(logits=lambda history: [0.0] * VOCAB, vocab_size=VOCAB)
    drafter = ScriptedSampler(lambda history: [1 / VOCAB] * VOCAB)
    generation = chosen([0, 4, 4, 0, 0], drafter, target, max_tokens=30, temperature=1.0, seed=1)
    rounds = drain_checked(generation, PROMPT, draft_length=8)
    assert all(one.accepted == one.proposed for one in rounds)


def test_steps_in_a_row_are_pipelined_and_land_before_a_round() -> None:
    target = ScriptedTarget(SCRIPT, vocab_size=VOCAB)
    drafter = ScriptedDrafter(guessing(SCRIPT, VOCAB, percent=100))
    generation = chosen([2, 0, 0, 0, 2, 2], drafter, target, max_tokens=40)
    first = [next(generation) for _ in range(6)]
    lengths = accumulate((one.committed for one in first), initial=len(PROMPT) - 1)
    ahead = [one.cache_length - length for one, length in zip(first, [*lengths][1:], strict=True)]
    assert [one.requested for one in first] == [0, 0, 0, 0, 2, 2]
    assert [one.decision.reason for one in first if one.decision] == ["best", "best", "best", "landing", "best", "best"]
    assert ahead == [1, 1, 1, 0, 0, 0]
    assert drafter.calls == 2
    assert target.widths == [len(PROMPT) - 1, 1, 1, 1, 1, 3, 3]
    generation.close()


def test_a_model_that_is_not_asked_catches_up_when_it_is() -> None:
    asked: list[int] = []

    class Lagging(KeepingDrafter):
        def propose(self, history: Sequence[int], m: int) -> Any:
            asked.append(len(history) - len(self.held))
            self.held = list(history[:-1])
            return super().propose(history, m)

    generation = chosen([0, 0, 0, 0, 3, 3], Lagging(guessing(SCRIPT, VOCAB, percent=50)), max_tokens=40)
    drain_checked(generation, PROMPT, draft_length=8)
    assert max(asked) > 4


class Following(KeepingDrafter):
    """A model whose state may lag by any number of tokens, and is a beginning of the history."""

    def __init__(self, name: str, percent: int) -> None:
        super().__init__(guessing(SCRIPT, VOCAB, percent=percent))
        self.name = name
        self.calls = 0

    def propose(self, history: Sequence[int], m: int) -> Any:
        assert self.held == list(history[: len(self.held)])
        self.calls += 1
        self.held = list(history[:-1])
        return super().propose(history, m)


@settings(max_examples=30)
@given(
    choices=st.lists(st.sampled_from([0, 0, 1, 2, 5, 8]), min_size=1, max_size=9),
    shape=st.sampled_from(["full", "empty"]),
    on_host=st.booleans(),
    attributed=st.booleans(),
)
def test_whichever_part_is_asked_the_output_is_ordinarys(
    choices: list[int], shape: str, on_host: bool, attributed: bool
) -> None:
    host = ScriptedDrafter(guessing(SCRIPT, VOCAB, percent=60, shape=shape), on_host=on_host)
    composed = Composed(host, Composed(Following("a", 50), Following("b", 90)))
    generation = chosen(choices, composed, max_tokens=40, timing="attributed" if attributed else "fused")
    rounds = drain_checked(generation, PROMPT, draft_length=8)
    assert generation.tokens == expect(SCRIPT, PROMPT, max_tokens=40).tokens
    history = len(PROMPT) + 40
    assert all(part.length <= history - 1 for part in composed.parts)
    assert host.committed == generation.tokens
    for one in rounds:
        assert (one.proposer is None) == (one.requested == 0)
        assert one.proposer in (None, "scripted", "a", "b")


@pytest.mark.parametrize("is_composed", [False, True])
def test_its_trace_is_consistent(is_composed: bool) -> None:
    recorder = Recorder()
    for timing in ("fused", "attributed"):
        host = ScriptedDrafter(guessing(SCRIPT, VOCAB, percent=70, shape="empty"), on_host=not is_composed)
        chosen(
            [0, 0, 3, 0, 5, 5, 2],
            Composed(host, Following("a", 50), Following("b", 90)) if is_composed else host,
            max_tokens=30,
            timing=timing,
            recorder=recorder,
        ).drain()
    assert_rounds_consistent(recorder.records)
    proposers = {one.proposer for one in rows(recorder.records, RoundRecord) if not one.proposed}
    assert proposers == ({None, "scripted"} if is_composed else {None})


def test_only_the_part_that_is_chosen_is_asked() -> None:
    parts = [Following(name, 100) for name in "abc"]
    generation = chosen([1], Composed(*parts), max_tokens=40)
    asked = [one.proposer for one in generation]
    assert set(asked) == {"a", "b", "c"}
    assert [part.calls for part in parts] == [asked.count(name) for name in "abc"]


class Fond(Whimsical):
    """Prefers one part to the other of two."""

    def __init__(self, part: int) -> None:
        super().__init__([2])
        self._part = part

    def decide(self, context: int, limit: int, *, free: Collection[int] = (), without: Collection[int] = ()) -> Choice:
        decided = super().decide(context, limit, free=free, without=without)
        part = self._part if self._part not in without else 1 - self._part
        return decided._replace(part=part) if decided.m else decided


def prefer(part: int) -> tuple[list[tuple[str | None, int]], Fond]:
    """With a part on the host that has nothing in every second history, and a model: who proposed after how many
    positions, in all rounds but the last, which may be a step.
    """
    clock, controller = FakeClock(), Fond(part)
    host = ScriptedDrafter(guessing(SCRIPT, VOCAB, percent=100, shape="empty"), on_host=True)
    generation = speculate(
        ScriptedTarget(SCRIPT, vocab_size=VOCAB, clock=clock, cost_ns=STEP),
        Composed(host, Following("model", 100)),
        list(PROMPT),
        draft_length="auto",
        controller=controller,
        max_tokens=40,
        recorder=Recorder(clock=clock),
    )
    place, said = len(PROMPT), []
    for one in drain_checked(generation, PROMPT, draft_length=8):
        said.append((one.proposer, place))
        place += one.committed
    return said[:-1], controller


def test_where_a_part_on_the_host_has_nothing_the_next_best_is_asked() -> None:
    said, _ = prefer(0)
    assert said == [("model" if place % 2 else "scripted", place) for _, place in said]
    assert {proposer for proposer, _ in said} == {"model", "scripted"}


def test_a_part_on_the_host_is_watched_in_the_others_rounds() -> None:
    said, controller = prefer(1)
    assert {proposer for proposer, _ in said} == {"model"}
    host = controller.parts[0]
    assert next(host.acceptance.survivals()) > 0.8
    assert 0 < host.empty < 1


def test_what_is_recorded_is_what_the_caller_got() -> None:
    world = make_world(lambda i: 0.7, seed=1, n_tokens=60)
    recorder = Recorder()
    generation = speculate(
        ScriptedTarget(world.next_token, vocab_size=40),
        ScriptedDrafter(world.propose, on_host=True),
        list(PROMPT),
        draft_length="auto",
        max_tokens=60,
        recorder=recorder,
    )
    told = [(one.requested, one.decision) for one in generation]
    [start] = rows(recorder.records, GenerationRecord)
    assert (start.arm, start.controlled, start.draft_length, start.pipelined) == ("scripted m=auto", True, 16, True)
    assert told == [
        (one.requested, (one.requested, one.reason, one.expected_ns, one.expected_step_ns))
        for one in rows(recorder.records, RoundRecord)
    ]


@pytest.mark.parametrize("at", range(2, 9))
def test_after_a_failure_cache_and_drafter_are_at_the_committed_history(at: int) -> None:
    target = ScriptedTarget(SCRIPT, vocab_size=VOCAB, fail_at=at)
    drafter = ScriptedDrafter(guessing(SCRIPT, VOCAB, percent=50), on_host=True)
    generation = chosen([0, 0, 3, 0, 3], drafter, target, max_tokens=30)
    with pytest.raises(ScriptedFailure):
        generation.drain()
    history = [*PROMPT, *generation.tokens]
    assert generation.tokens == expect(SCRIPT, PROMPT, max_tokens=30).tokens[: len(generation.tokens)]
    assert generation.cache.tokens == history[:-1]
    generation.cache.check_integrity()
    assert drafter.length <= len(history) - 1


def test_a_generation_that_is_closed_leaves_nothing_in_flight() -> None:
    generation = chosen([0], ScriptedDrafter(guessing(SCRIPT, VOCAB, percent=50)), max_tokens=30)
    next(generation)
    generation.close()
    assert generation.cache.tokens == [*PROMPT, *generation.tokens][:-1]
    generation.cache.check_integrity()


def test_attributed_rounds_are_not_pipelined_and_have_all_stages() -> None:
    generation = chosen(
        [0, 0, 3], ScriptedDrafter(guessing(SCRIPT, VOCAB, percent=50)), max_tokens=20, timing="attributed"
    )
    for one in drain_checked(generation, PROMPT, draft_length=8):
        assert list(one.stages) == ["draft", "verify", "synchronize", "trim", "rewind"]


def test_what_asking_costs_decides_whether_a_drafter_is_watched() -> None:
    for cost, is_watched in ((1_000, True), (STEP // 2, False)):
        clock = FakeClock()
        drafter = ScriptedDrafter(lambda history, m: [0] * m, on_host=True, clock=clock, cost_ns=cost)
        target = ScriptedTarget(lambda history: 1, vocab_size=VOCAB, clock=clock, cost_ns=lambda width, _: STEP * width)
        speculate(
            target,
            drafter,
            list(PROMPT),
            draft_length="auto",
            controller=Controller(),
            max_tokens=100,
            recorder=Recorder(clock=clock),
        ).drain()
        assert (drafter.calls > 50) is is_watched


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_length": "many"}, "draft_length is 'many'; it must be a number or 'auto'"),
        ({"draft_length": -1}, "draft_length is -1; it must be 0 or more, or 'auto'"),
        ({"draft_length": 4, "controller": Controller()}, "give draft_length='auto'"),
    ],
)
def test_what_makes_no_sense_is_refused(options: Any, message: str) -> None:
    target = ScriptedTarget(lambda history: 1, vocab_size=VOCAB)
    with pytest.raises(UsageError, match=message):
        speculate(target, "prompt-lookup", list(PROMPT), max_tokens=3, **options)
