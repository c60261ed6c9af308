"""Cancellation from another thread, and what else a generation may meet while it is open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from runtime.generate import decode, speculate
from runtime.generation import Generation
from runtime.session import PREFILL_CHUNK
from runtime.testing import ScriptedDrafter, ScriptedTarget
from telemetry.recorder import Recorder
from telemetry.records import GenerationEnd, RoundRecord
from tests.runtime.scripted import counting, guessing, rows

PATIENCE = 20.0
"""Seconds a thread is waited for before the test fails; never reached when all is well."""

SCRIPT = counting(50)


def _in_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def _closing(generations: list[Generation], at: int, propose: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """`propose`, in whose call for round `at` another thread closes the generation and is waited for."""

    def close_and_propose(history: Sequence[int], m: int) -> list[int]:
        if generations[0].cache.length >= at:
            _in_thread(generations[0].close)
        return propose(history, m)

    return close_and_propose


@pytest.mark.parametrize("lazy", [False, True])
def test_closing_from_another_thread_while_drafting(lazy: bool) -> None:
    """The open round is closed as cancelled with nothing committed; what it proposed counts as never judged."""
    recorder = Recorder()
    generations: list[Generation] = []
    drafter = ScriptedDrafter(_closing(generations, 4, guessing(SCRIPT, 50, percent=100)), lazy=lazy)
    target = ScriptedTarget(SCRIPT, vocab_size=50)
    generation = speculate(target, drafter, [0], draft_length=3, max_tokens=40, recorder=recorder)
    generations.append(generation)
    rounds = list(generation)
    assert [(entry.outcome, entry.proposed, entry.committed, entry.cut) for entry in rounds] == [
        ("bonus", 3, 4, 0),
        ("cancelled", 3, 0, 3),
    ]
    assert rounds[-1].width == 0
    assert target.widths == [4]
    assert (generation.finish_reason, generation.tokens) == ("cancelled", [1, 2, 3, 4])
    generation.cache.check_integrity()
    assert (generation.cache.tokens, drafter.length) == ([0, 1, 2, 3], 4)
    [end] = rows(recorder.records, GenerationEnd)
    assert (end.finish_reason, end.n_rounds, end.n_committed) == ("cancelled", 2, 4)


@pytest.mark.parametrize("make", ["speculate", "ordinary", "unpipelined"])
def test_closing_from_another_thread_during_a_forward(make: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    target = ScriptedTarget(SCRIPT, vocab_size=50)
    if make == "speculate":
        drafter = ScriptedDrafter(guessing(SCRIPT, 50, percent=100))
        generation = speculate(target, drafter, [0, 1], draft_length=3, max_tokens=40, recorder=recorder)
    else:
        generation = decode(target, [0, 1], max_tokens=40, pipelined=make == "ordinary", recorder=recorder)
    forward = target.forward

    def close_and_forward(ids: Any, cache: Any) -> Any:
        if len(target.widths) == 3:
            _in_thread(generation.close)
            assert generation.finish_reason is None
        return forward(ids, cache)

    monkeypatch.setattr(target, "forward", close_and_forward)
    rounds = list(generation)
    assert generation.finish_reason == "cancelled"
    if make == "speculate":
        last = rounds[-1]
        assert (last.outcome, last.width, last.proposed, last.cut, last.committed) == ("cancelled", 4, 3, 3, 0)
    assert generation.tokens == [token for entry in rounds for token in entry.tokens]
    assert generation.tokens == list(range(2, 2 + len(generation.tokens)))
    assert len(rows(recorder.records, RoundRecord)) == len(rounds)
    generation.cache.check_integrity()
    assert not generation.cache.in_use
    assert generation.cache.tokens == [0, 1, *generation.tokens][:-1]
    assert [layer.tokens for layer in generation.cache.layers] == [generation.cache.tokens] * 2


def test_closing_before_the_first_token() -> None:
    """There is then no time to a first token."""
    recorder = Recorder()
    generations: list[Generation] = []
    drafter = ScriptedDrafter(_closing(generations, 0, guessing(SCRIPT, 50, percent=100)))
    target = ScriptedTarget(SCRIPT, vocab_size=50)
    generations.append(speculate(target, drafter, [0, 1], draft_length=3, max_tokens=40, recorder=recorder))
    assert [(entry.outcome, entry.tokens) for entry in generations[0]] == [("cancelled", ())]
    [end] = rows(recorder.records, GenerationEnd)
    assert (end.ttft_ns, end.n_rounds, end.n_committed) == (None, 1, 0)
    assert generations[0].cache.tokens == [0]


@pytest.mark.parametrize("make", ["speculate", "ordinary"])
def test_closing_from_another_thread_between_rounds(make: str) -> None:
    """Only a flag is set there; the iterating thread ends the generation at its next step, without a round."""
    recorder = Recorder()
    target = ScriptedTarget(SCRIPT, vocab_size=50)
    if make == "speculate":
        drafter = ScriptedDrafter(guessing(SCRIPT, 50, percent=50))
        generation = speculate(target, drafter, [0], draft_length=3, max_tokens=40, recorder=recorder)
    else:
        generation = decode(target, [0], max_tokens=40, recorder=recorder)
    next(generation)
    before = len(target.widths)
    _in_thread(generation.close)
    assert generation.finish_reason is None
    assert list(generation) == []
    assert len(target.widths) == before
    assert generation.finish_reason == "cancelled"
    assert len(rows(recorder.records, RoundRecord)) == 1
    generation.cache.check_integrity()


def test_a_drafter_may_close_its_own_generation() -> None:
    generations: list[Generation] = []

    def close_and_propose(history: Sequence[int], m: int) -> list[int]:
        generations[0].close()
        return [1] * m

    target = ScriptedTarget(SCRIPT, vocab_size=50)
    generations.append(speculate(target, ScriptedDrafter(close_and_propose), [0], draft_length=2, max_tokens=9))
    assert [entry.outcome for entry in generations[0]] == ["cancelled"]
    assert generations[0].finish_reason == "cancelled"


def test_a_drafter_may_not_iterate_its_own_generation() -> None:
    generations: list[Generation] = []
    target = ScriptedTarget(SCRIPT, vocab_size=50)
    drafter = ScriptedDrafter(lambda history, m: list(next(generations[0]).tokens))
    generations.append(speculate(target, drafter, [0], draft_length=2, max_tokens=9))
    with pytest.raises(RuntimeError, match="already open"):
        next(generations[0])
    assert generations[0].finish_reason == "error"
    generations[0].cache.check_integrity()


def test_iterating_in_a_second_thread_is_refused() -> None:
    """The generation stays as it is, and goes on in its own thread."""
    generation = decode(ScriptedTarget(SCRIPT, vocab_size=50), [0], max_tokens=4)
    first = next(generation)
    caught: list[BaseException] = []

    def iterate() -> None:
        try:
            next(generation)
        except RuntimeError as error:
            caught.append(error)

    _in_thread(iterate)
    assert [str(error)[:42] for error in caught] == ["a generation is bound to the thread that t"]
    assert [first.tokens, *(entry.tokens for entry in generation)] == [(1,), (2,), (3,), (4,)]


def test_one_made_here_may_be_iterated_there() -> None:
    generation = decode(ScriptedTarget(SCRIPT, vocab_size=50), [0], max_tokens=4)
    _in_thread(generation.drain)
    assert (generation.tokens, generation.finish_reason) == ([1, 2, 3, 4], "length")


def test_a_cache_whose_generation_was_forgotten_in_another_thread_is_not_trusted() -> None:
    """A step in flight cannot be waited for there, so the cache, one position ahead, refuses further use."""
    recorder = Recorder()
    target = ScriptedTarget(SCRIPT, vocab_size=50)
    held = [decode(target, [0, 1], max_tokens=9, recorder=recorder)]
    cache = held[0].cache
    next(held[0])
    _in_thread(held.clear)
    [end] = rows(recorder.records, GenerationEnd)
    assert (end.finish_reason, end.n_committed) == ("cancelled", 1)
    with pytest.raises(ValueError, match="this cache is damaged"):
        decode(target, [0, 1, 2], max_tokens=1, cache=cache)


@pytest.mark.parametrize("ending", ["drain", "break", "close", "forget", "raise"])
def test_the_callers_current_span_is_never_changed(ending: str) -> None:
    """Spans that the caller opens around `next()` keep their parent, however the generation ends."""
    trace = pytest.importorskip("opentelemetry.trace", reason="needs opentelemetry-api: pip install opentelemetry-api")
    script = SCRIPT if ending != "raise" else counting(3)
    target = ScriptedTarget(script, vocab_size=50, fail_at=4 if ending == "raise" else None)
    mine = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
    drafter = ScriptedDrafter(guessing(script, 50, percent=70))
    with trace.use_span(mine):
        generation = speculate(target, drafter, [0], draft_length=3, max_tokens=20)
        for entry in range(3):
            next(generation)
            assert trace.get_current_span() is mine, entry
        if ending == "drain":
            generation.drain()
        elif ending == "close":
            generation.close()
        elif ending == "forget":
            del generation
        elif ending == "raise":
            with pytest.raises(RuntimeError):
                generation.drain()
        assert trace.get_current_span() is mine
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_closing_elsewhere_ends_a_long_prefill_between_its_chunks() -> None:
    target = ScriptedTarget(lambda history: 0, vocab_size=3)
    generation = decode(target, [1] * (3 * PREFILL_CHUNK), max_tokens=4)
    forward = target.forward

    def forward_and_close(*arguments: Any) -> Any:
        _in_thread(generation.close)
        return forward(*arguments)

    target.forward = forward_and_close  # type: ignore[method-assign]
    assert list(generation) == []
    assert generation.finish_reason == "cancelled"
    assert target.widths == [PREFILL_CHUNK]
    assert generation.cache.tokens == [1] * PREFILL_CHUNK
    generation.cache.check_integrity()
