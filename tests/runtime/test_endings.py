"""Every way out of a generation leaves its caches, its drafter and its records exact."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from runtime.caches import CacheError
from runtime.generate import decode, speculate
from runtime.generation import Generation
from runtime.testing import ScriptedDrafter, ScriptedFailure, ScriptedTarget
from telemetry.recorder import Recorder
from telemetry.records import GenerationEnd, GenerationRecord, RoundRecord
from tests.runtime.scripted import KeepingDrafter, counting, expect, guessing, hashed, rows, spell

PROMPT = [1, 2, 3]
SCRIPT = hashed(11, 19, 2)
GUESS = guessing(SCRIPT, 19, percent=60)


def _speculate(recorder: Recorder, drafter: Any = None, **options: Any) -> Generation:
    target = ScriptedTarget(SCRIPT, vocab_size=19, **options)
    if drafter is None:
        drafter = KeepingDrafter(GUESS)
    return speculate(target, drafter, PROMPT, draft_length=3, max_tokens=30, recorder=recorder)


def _decode(recorder: Recorder, pipelined: bool = True, **options: Any) -> Generation:
    target = ScriptedTarget(SCRIPT, vocab_size=19, **options)
    return decode(target, PROMPT, max_tokens=30, pipelined=pipelined, recorder=recorder)


MAKERS = pytest.mark.parametrize(
    "make",
    [_speculate, _decode, lambda recorder: _decode(recorder, pipelined=False)],
    ids=["speculate", "ordinary", "unpipelined"],
)


def check_end(generation: Generation, recorder: Recorder, reason: str, n_failed: int = 0) -> None:
    """Records say what the caller got, and the cache can be used again from exactly there."""
    [end] = rows(recorder.records, GenerationEnd)
    records = rows(recorder.records, RoundRecord)
    tokens = generation.tokens
    assert generation.finish_reason == end.finish_reason == reason
    assert end.n_rounds == len(records)
    assert [record.index for record in records] == list(range(len(records)))
    assert end.n_committed == sum(record.committed for record in records) == len(tokens)
    assert [record.outcome for record in records if record.outcome in ("error", "cancelled")] == [reason] * n_failed
    assert end.decode_ns == sum(record.t_round_ns for record in records) + end.unaccounted_ns
    assert tokens == expect(SCRIPT, PROMPT, max_tokens=max(len(tokens), 1)).tokens[: len(tokens)]
    cache = generation.cache
    assert not cache.in_use
    cache.check_integrity()
    assert [layer.tokens for layer in cache.layers] == [cache.tokens] * 2
    assert cache.tokens == [*PROMPT, *tokens][:-1]
    assert next(generation, None) is None
    target = ScriptedTarget(SCRIPT, vocab_size=19)
    cache.target = target
    again = decode(target, [*PROMPT, *tokens], max_tokens=5, cache=cache).drain()
    assert target.widths == [1] * 5
    assert again.tokens == expect(SCRIPT, [*PROMPT, *tokens], max_tokens=5).tokens


@MAKERS
def test_a_consumer_that_breaks_and_closes(make: Callable[[Recorder], Generation]) -> None:
    recorder = Recorder()
    generation = make(recorder)
    for entry in generation:
        if entry.index == 2:
            break
    assert generation.finish_reason is None
    generation.close()
    generation.close()
    check_end(generation, recorder, "cancelled")
    assert len(rows(recorder.records, RoundRecord)) == 3


@MAKERS
def test_a_consumer_that_raises(make: Callable[[Recorder], Generation]) -> None:
    recorder = Recorder()
    generation = make(recorder)

    def consume() -> None:
        with generation:
            for entry in generation:
                1 / (entry.index - 2)

    with pytest.raises(ZeroDivisionError):
        consume()
    check_end(generation, recorder, "cancelled")


@MAKERS
def test_a_consumer_that_forgets(make: Callable[[Recorder], Generation]) -> None:
    """The rows are kept and say so; the cache, if somebody kept it, is usable."""
    recorder = Recorder()
    generation = make(recorder)
    tokens = [token for _ in range(2) for token in next(generation).tokens]
    cache = generation.cache
    del generation
    gc.collect()
    [end] = rows(recorder.records, GenerationEnd)
    assert (end.finish_reason, end.n_rounds, end.n_committed) == ("cancelled", 2, len(tokens))
    assert not cache.in_use
    cache.check_integrity()
    assert cache.tokens == [*PROMPT, *tokens][:-1]


@MAKERS
def test_one_that_is_never_started_leaves_no_records(make: Callable[[Recorder], Generation]) -> None:
    recorder = Recorder()
    with make(recorder) as generation:
        pass
    assert (generation.finish_reason, generation.tokens, recorder.records) == ("cancelled", [], [])
    assert not generation.cache.in_use
    assert next(generation, None) is None


@pytest.mark.parametrize("error", [ScriptedFailure("x"), KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize("at", [1, 2, 5])
@MAKERS
def test_a_forward_that_fails_between_two_layers(
    make: Callable[..., Generation], at: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer has grown and the second has not; both are brought back. Ctrl-C is a cancellation."""
    recorder = Recorder()
    generation = make(recorder)
    target = generation.cache.target
    forward, n_forwards = target.forward, 0

    def fail(ids: Any, cache: Any) -> Any:
        nonlocal n_forwards
        n_forwards += 1
        if n_forwards == at + 1:
            cache[0].tokens.extend(ids.tolist()[0])
            raise error
        return forward(ids, cache)

    monkeypatch.setattr(target, "forward", fail)
    with pytest.raises(type(error)):
        generation.drain()
    assert generation.error is error
    last = rows(recorder.records, RoundRecord)[-1]
    assert (last.committed, last.accepted, last.cut) == (0, 0, last.proposed)
    assert last.cache_length == len(generation.cache.tokens)
    check_end(generation, recorder, "cancelled" if isinstance(error, KeyboardInterrupt) else "error", n_failed=1)


@pytest.mark.parametrize("fail_at", [0, 1])
@pytest.mark.parametrize("way", ["speculate", "ordinary", "unpipelined"])
def test_a_prefill_that_fails(way: str, fail_at: int) -> None:
    """No round was opened; the chunks that were filled before stay, and serve the next attempt."""
    recorder = Recorder()
    prompt = [number % 19 for number in range(2500)]
    target = ScriptedTarget(SCRIPT, vocab_size=19, fail_at=fail_at)
    options: dict[str, Any] = {"max_tokens": 9, "recorder": recorder}
    if way == "speculate":
        generation = speculate(target, KeepingDrafter(GUESS), prompt, draft_length=3, **options)
    else:
        generation = decode(target, prompt, pipelined=way == "ordinary", **options)
    with pytest.raises(ScriptedFailure, match=f"forward {fail_at} failed"):
        next(generation)
    [end] = rows(recorder.records, GenerationEnd)
    assert (end.finish_reason, end.error_type) == ("error", "ScriptedFailure")
    assert (end.n_rounds, end.decode_ns, end.ttft_ns) == (0, 0, None)
    generation.cache.check_integrity()
    assert (generation.cache.tokens, generation.cache.in_use) == (prompt[: 2048 * fail_at], False)
    again = decode(target, prompt, max_tokens=9, cache=generation.cache).drain()
    assert again.tokens == expect(SCRIPT, prompt, max_tokens=9).tokens


def test_ctrl_c_during_prefill_is_a_cancellation() -> None:
    recorder = Recorder()
    generation = _speculate(recorder, KeepingDrafter(GUESS, fails={"reset": 0}, error=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        next(generation)
    [end] = rows(recorder.records, GenerationEnd)
    assert (generation.finish_reason, end.finish_reason, end.n_rounds) == ("cancelled", "cancelled", 0)


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("method", ["propose", "commit", "rewind"])
def test_a_drafter_that_fails(method: str, at: int) -> None:
    """mlx-lm rewound twice and cut into the prompt: here the target holds the history less its last token, the drafter
    that or one fewer, and both are recorded so."""
    recorder = Recorder()
    drafter = KeepingDrafter(GUESS, fails={method: at})
    generation = _speculate(recorder, drafter)
    with pytest.raises(ScriptedFailure):
        generation.drain()
    assert isinstance(generation.error, ScriptedFailure)
    [end] = rows(recorder.records, GenerationEnd)
    assert end.error_type == "ScriptedFailure"
    held = generation.cache.tokens
    assert drafter.held in (held, held[:-1])
    last = rows(recorder.records, RoundRecord)[-1]
    assert (last.cache_length, last.drafter_length) == (len(held), len(drafter.held))
    assert (last.committed, last.accepted, last.cut, last.stop_kind) == (0, 0, last.proposed, None)
    check_end(generation, recorder, "error", n_failed=1)


@pytest.mark.parametrize("eos", range(19))
def test_a_stop_in_a_round_that_fails_never_was(eos: int) -> None:
    """The drafter fails when it is told of the round that found EOS: neither output nor records mention a stop."""
    until = expect(SCRIPT, PROMPT, max_tokens=30, eos=[eos])
    n_rounds = len(list(_speculate(Recorder(), eos=[eos])))
    recorder = Recorder()
    generation = _speculate(recorder, KeepingDrafter(GUESS, fails={"commit": n_rounds - 1}), eos=[eos])
    with pytest.raises(ScriptedFailure):
        generation.drain()
    [end] = rows(recorder.records, GenerationEnd)
    assert (end.stop_kind, rows(recorder.records, RoundRecord)[-1].stop_kind) == (None, None)
    assert generation.tokens == until.tokens[: len(generation.tokens)] != until.tokens
    assert generation.text == spell(generation.tokens)


def test_a_drafter_that_fails_while_it_is_reset() -> None:
    recorder = Recorder()
    generation = _speculate(recorder, KeepingDrafter(GUESS, fails={"reset": 0}))
    with pytest.raises(ScriptedFailure):
        next(generation)
    assert (generation.finish_reason, generation.tokens) == ("error", [])
    assert generation.cache.tokens == PROMPT[:-1]
    generation.cache.check_integrity()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("proposal", "message"),
    [
        ([1, 2, 3, 4], "'scripted' proposed 4 tokens where 3 were asked for"),
        ([1, 19], "'scripted' proposed token 19, which is not in the target's vocabulary of 19"),
    ],
)
def test_a_drafter_that_breaks_its_contract_is_named(proposal: list[int], message: str, lazy: bool) -> None:
    """The record of that round still obeys accepted + cut <= proposed <= requested."""
    recorder = Recorder()
    generation = _speculate(recorder, ScriptedDrafter(lambda history, m: proposal, lazy=lazy))
    with pytest.raises(Exception, match=message):
        next(generation)
    check_end(generation, recorder, "error", n_failed=1)
    [record] = rows(recorder.records, RoundRecord)
    assert record.accepted + record.cut <= record.proposed <= record.requested


def test_a_drafter_that_runs_out_of_a_generator_does_not_end_the_output_silently() -> None:
    """A StopIteration from inside must not look like the end of the rounds."""
    recorder = Recorder()
    generation = _speculate(recorder, KeepingDrafter(GUESS, fails={"propose": 1}, error=StopIteration()))
    with pytest.raises(RuntimeError, match="StopIteration"):
        generation.drain()
    check_end(generation, recorder, "error", n_failed=1)


def test_a_trim_that_does_less_than_asked() -> None:
    """mlx-swift-lm#424: noticed at once; what was committed before is kept, and the cache refuses further use."""
    recorder = Recorder()
    target = ScriptedTarget(counting(30), vocab_size=30, cache="sluggish")
    propose = guessing(counting(30), 30, percent=100)
    drafter = ScriptedDrafter(lambda history, m: propose(history, m) if len(history) < 5 else [0] * m)
    generation = speculate(target, drafter, [1], draft_length=3, max_tokens=30, recorder=recorder)
    with pytest.raises(CacheError, match=r"layer 0 \(ScriptedLayer\) removed 2 of 3 positions"):
        generation.drain()
    assert (generation.finish_reason, generation.tokens) == ("error", [2, 3, 4, 5])
    records = rows(recorder.records, RoundRecord)
    assert [(record.outcome, record.committed) for record in records] == [("bonus", 4), ("error", 0)]
    with pytest.raises(ValueError, match=r"this cache is damaged \(layer 0"):
        decode(target, [1, 2], max_tokens=1, cache=generation.cache)
    with pytest.raises(CacheError):
        generation.cache.check_integrity()


def test_a_trim_that_fails_when_ordinary_decoding_ends() -> None:
    """The step in flight cannot be taken back: the last round reaches the caller, and then the error."""
    recorder = Recorder()
    target = ScriptedTarget(counting(30), vocab_size=30, cache="sluggish", eos=[4])
    generation = decode(target, [1], max_tokens=30, recorder=recorder)
    delivered: list[int] = []
    with pytest.raises(CacheError):
        delivered.extend(token for entry in generation for token in entry.tokens)
    assert delivered == [2, 3, 4]
    assert next(generation, None) is None
    [end] = rows(recorder.records, GenerationEnd)
    assert (generation.finish_reason, end.finish_reason, end.n_committed) == ("error", "error", 3)
    assert generation.tokens == [2, 3, 4]
    assert isinstance(generation.error, CacheError)


@pytest.mark.parametrize("n", range(6))
@MAKERS
def test_a_sink_that_raises_ends_the_generation(make: Callable[[Recorder], Generation], n: int) -> None:
    class Full:
        n_left = n

        def write(self, record: object) -> None:
            self.n_left -= 1
            if self.n_left < 0:
                raise OSError("no space left")

    generation = make(Recorder(Full()))
    with pytest.raises(OSError, match="no space left"):
        generation.drain()
    assert generation.finish_reason == "error"
    assert isinstance(generation.error, OSError)
    assert not generation.cache.in_use
    generation.cache.check_integrity()
    assert generation.cache.tokens == ([*PROMPT, *generation.tokens][:-1] if n else [])


def test_records_of_an_ended_generation_begin_and_end_once() -> None:
    recorder = Recorder()
    with _speculate(recorder) as generation:
        generation.drain()
        generation.close()
    first, *_, last = kinds = [type(record) for record in recorder.records]
    assert (first, last) == (GenerationRecord, GenerationEnd)
    assert (kinds.count(GenerationRecord), kinds.count(GenerationEnd)) == (1, 1)
