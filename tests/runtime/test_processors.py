"""Logits processors in speculation: the same calls, with the same histories, as in ordinary decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.drafters.assistant import Assistant
from runtime.drafters.known import Oracle, Wrong
from runtime.drafters.prompt_lookup import PromptLookup
from runtime.generate import decode, speculate
from runtime.protocols import Drafter
from runtime.targets import MlxTarget
from runtime.testing import ScriptedDrafter, ScriptedFailure, ScriptedTarget
from telemetry.fields import Timing
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord, RoundRecord
from tests.models import tiny_llama
from tests.runtime.recurrent import tiny_mamba
from tests.runtime.scripted import (
    KeepingDrafter,
    counting,
    describe,
    drain_checked,
    draw,
    expect,
    guessing,
    hashed,
    rows,
)

VOCABULARY = 24
PROMPT = [5, 9, 33, 5, 9, 33, 5, 9]


class Shifting:
    """Rotates the logits by a number that depends on the whole history; notes every history that it is shown."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.seen: list[list[int]] = []
        self._fail_at = fail_at

    def __call__(self, tokens: Any, logits: Any) -> Any:
        import mlx.core as mx

        if len(self.seen) == self._fail_at:
            raise ScriptedFailure("the processor failed as scripted")
        self.seen.append(tokens.tolist())
        assert logits.shape == (1, VOCABULARY)
        return mx.roll(logits, shift(self.seen[-1]), axis=-1)


def shift(history: Sequence[int]) -> int:
    return draw("shift", tuple(history)) % 3


def shifted(script: Callable[[Sequence[int]], int]) -> Callable[[Sequence[int]], int]:
    """What a target of `script` says through `Shifting`."""
    return lambda history: (script(history) + shift(history)) % VOCABULARY


def make_scripted(kind: str, script: Callable[[Sequence[int]], int], percent: int) -> Drafter:
    """A drafter that is right about `script` in `percent` of its tokens."""
    propose = guessing(script, VOCABULARY, percent=percent, shape="short" if kind == "short" else "full")
    if kind == "keeping":
        return KeepingDrafter(propose)
    return ScriptedDrafter(propose, lazy=kind == "lazy")


IDS = st.integers(0, VOCABULARY - 1)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 999),
    prompt=st.lists(IDS, min_size=1, max_size=6),
    limit=st.integers(1, 25),
    m=st.integers(0, 8),
    kind=st.sampled_from(["plain", "lazy", "keeping", "short"]),
    percent=st.sampled_from([100, 90, 70, 0]),
    eos=st.frozensets(IDS, max_size=3),
    stop=st.lists(st.one_of(IDS, st.text("abcdefghij", min_size=1, max_size=2)), max_size=2),
    timing=st.sampled_from(["fused", "attributed"]),
)
def test_a_processor_sees_exactly_the_histories_of_ordinary_decoding(
    seed: int,
    prompt: list[int],
    limit: int,
    m: int,
    kind: str,
    percent: int,
    eos: frozenset[int],
    stop: list[int | str],
    timing: Timing,
) -> None:
    """mlx-examples#1291, mlx-lm#1175: one call a committed token, in order, with the prompt; nothing else."""
    script = hashed(seed, VOCABULARY, 2)
    target = ScriptedTarget(script, vocab_size=VOCABULARY, eos=eos)
    expected = expect(shifted(script), prompt, max_tokens=limit, eos=eos, stop=stop)
    histories = [[*prompt, *expected.tokens[:count]] for count in range(len(expected.tokens))]
    recorder, processor = Recorder(), Shifting()
    options: dict[str, Any] = {"max_tokens": limit, "stop": stop, "logits_processors": [processor]}
    drafter = make_scripted(kind, shifted(script), percent)
    generation = speculate(target, drafter, prompt, draft_length=m, timing=timing, recorder=recorder, **options)
    rounds = drain_checked(generation, prompt, draft_length=m, max_tokens=limit)
    assert describe(generation, rounds) == expected
    assert processor.seen == histories
    check_costs(rounds, recorder, timing, lazy=kind == "lazy")
    ordinary = Shifting()
    unpipelined = decode(target, prompt, pipelined=False, **{**options, "logits_processors": [ordinary]})
    assert describe(unpipelined, drain_checked(unpipelined, prompt)) == expected
    assert ordinary.seen == histories
    ahead = Shifting()
    pipelined = decode(target, prompt, **{**options, "logits_processors": [ahead]})
    assert describe(pipelined, drain_checked(pipelined, prompt)) == expected
    assert ahead.seen[: len(histories)] == histories


def check_costs(rounds: Sequence[Any], recorder: Recorder, timing: str, *, lazy: bool) -> None:
    """A processed row is read by itself: as many synchronisations as rows, and those are recorded."""
    for entry in rounds:
        reads_draft = lazy and entry.proposed > 0
        barriers = 1 + reads_draft if timing == "attributed" else 0
        assert entry.processed == entry.committed
        assert entry.syncs == entry.processed + reads_draft + barriers
    records = rows(recorder.records, RoundRecord)
    assert [(record.processed, record.syncs) for record in records] == [(e.processed, e.syncs) for e in rounds]
    assert rows(recorder.records, GenerationRecord)[0].n_processors == 1


def test_without_processors_nothing_is_processed() -> None:
    target = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY)
    for generation in (
        decode(target, [1], max_tokens=9),
        speculate(
            target,
            ScriptedDrafter(guessing(counting(VOCABULARY), VOCABULARY, percent=70)),
            [1],
            draft_length=3,
            max_tokens=9,
            logits_processors=[],
        ),
    ):
        assert {entry.processed for entry in generation} == {0}


@pytest.mark.parametrize(
    ("options", "tokens", "stop", "text"),
    [
        ({"eos": [20, 5, 12]}, [1, 2, 3, 4, 5], 5, "bcde"),
        ({"eos": [], "stop": [20, 3]}, [1, 2, 3], 3, "bc"),
        ({"stop": ["cd"]}, [1, 2, 3], "cd", "b"),
        ({"stop": ["efg", "fgh"]}, [1, 2, 3, 4, 5, 6], "efg", "bcd"),
        ({"stop": ["cdefghij"]}, list(range(1, 10)), "cdefghij", "b"),
    ],
    ids=["several EOS ids", "stop ids", "inside a block", "over two rounds", "over three rounds"],
)
def test_stops_inside_an_accepted_block_and_across_rounds(
    options: dict[str, Any], tokens: list[int], stop: int | str, text: str
) -> None:
    """Nothing after the stop is committed, and no processor is shown it."""
    calls: list[list[int]] = []

    def note(ids: Any, logits: Any) -> Any:
        calls.append(ids.tolist())
        return logits

    target = ScriptedTarget(counting(VOCABULARY), vocab_size=VOCABULARY)
    drafter = ScriptedDrafter(guessing(counting(VOCABULARY), VOCABULARY, percent=100))
    generation = speculate(target, drafter, [0], draft_length=3, max_tokens=20, logits_processors=[note], **options)
    rounds = drain_checked(generation, [0], draft_length=3)
    assert (generation.tokens, rounds[-1].stop, generation.text) == (tokens, stop, text)
    assert calls == [list(range(count)) for count in range(1, len(tokens) + 1)]


# Small real models, against mlx-lm's ordinary loop

TARGETS: dict[str, Callable[[], MlxTarget]] = {
    "llama": lambda: tiny_llama(1),
    "window": lambda: tiny_llama(1, sliding_window=8),
    "recurrent": tiny_mamba,
}
PENALTIES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "short repetition": {"repetition_penalty": 1.5, "repetition_context_size": 4},
    "presence": {"presence_penalty": 0.8},
    "frequency": {"frequency_penalty": 0.5, "frequency_context_size": 12},
    "bias": {"logit_bias": {3: 4.0, 7: -50.0, 11: 1.5}},
    "all": {"logit_bias": {3: 1.0}, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
}


def ask_mlx_lm(target: MlxTarget, prompt: Sequence[int], limit: int, processors: list[Any]) -> list[int]:
    """What mlx-lm's ordinary loop says."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    steps = generate_step(mx.array(prompt), target.model, max_tokens=limit, logits_processors=processors)
    return [int(token) for token, _ in steps]


def make_drafter(name: str, target: MlxTarget, prompt: Sequence[int], output: Sequence[int]) -> Drafter:
    """A drafter that is always, sometimes or never right about `output`."""
    known = {tuple(prompt): output}
    if name == "mixed":
        wrong = [token if draw(index) % 3 else (token + 1) % target.vocab_size for index, token in enumerate(output)]
        return Oracle({tuple(prompt): wrong})
    makers: dict[str, Callable[[], Drafter]] = {
        "oracle": lambda: Oracle(known),
        "wrong": lambda: Wrong(target.vocab_size, known),
        "assistant": lambda: Assistant(target),
        "prompt-lookup": lambda: PromptLookup(max_n=2, min_n=1),
    }
    return makers[name]()


def check_all(target: MlxTarget, make_processors: Callable[[], list[Any]], prompt: list[int], limit: int) -> list[int]:
    """Every drafter, and ordinary decoding, say what mlx-lm says; returned."""
    output = ask_mlx_lm(target, prompt, limit, make_processors())
    assert decode(target, prompt, max_tokens=limit, logits_processors=make_processors()).drain().tokens == output
    for name in ("oracle", "wrong", "mixed", "assistant", "prompt-lookup"):
        for m in (0, 1, 3, 8) if name == "mixed" else (4,):
            generation = speculate(
                target,
                make_drafter(name, target, prompt, output),
                prompt,
                draft_length=m,
                max_tokens=limit,
                logits_processors=make_processors(),
            )
            rounds = drain_checked(generation, prompt, draft_length=m, max_tokens=limit)
            assert generation.tokens == output, (name, m)
            if name == "oracle":
                assert [entry.accepted for entry in rounds] == [entry.proposed for entry in rounds]
    return output


@pytest.mark.parametrize("model", TARGETS)
@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_and_biases_are_mlx_lms(name: str, model: str) -> None:
    from mlx_lm.sample_utils import make_logits_processors

    target = TARGETS[model]()
    output = check_all(target, lambda: make_logits_processors(**PENALTIES[name]), PROMPT, 20)
    assert output != ask_mlx_lm(target, PROMPT, 20, [])


class Grammar:
    """Allows the ids that are congruent to its state, which every token changes; each call is one token further.

    AssertionError if a call is left out, comes twice, or follows a token that was not allowed.
    """

    modulus = 5

    def __init__(self, prompt_length: int) -> None:
        self._length = prompt_length
        self._state: int | None = None

    def __call__(self, tokens: Any, logits: Any) -> Any:
        import mlx.core as mx

        assert tokens.shape == (self._length,)
        self._length += 1
        if self._state is None:
            self._state = 0
        else:
            last = int(tokens[-1].item())
            assert last % self.modulus == self._state
            self._state = (self._state + last // self.modulus + 1) % self.modulus
        allowed = mx.arange(logits.shape[-1]) % self.modulus == self._state
        return mx.where(allowed, logits, -mx.inf)


@pytest.mark.parametrize("model", TARGETS)
def test_a_grammar_with_a_state_is_led_through_it_once(model: str) -> None:
    """No snapshot of it is needed: every call it gets is for a token that is committed."""
    output = check_all(TARGETS[model](), lambda: [Grammar(len(PROMPT))], PROMPT, 24)
    assert output[0] % Grammar.modulus == 0


@pytest.mark.parametrize("fail_at", [0, 1, 2, 6])
@pytest.mark.parametrize("way", ["speculate", "keeping", "pipelined", "unpipelined"])
def test_a_processor_that_raises_ends_the_generation_as_error(way: str, fail_at: int) -> None:
    """Whole rounds stay committed, and the cache serves the history that they make."""
    script = hashed(4, VOCABULARY, 2)
    target = ScriptedTarget(script, vocab_size=VOCABULARY)
    recorder = Recorder()
    options: dict[str, Any] = {"max_tokens": 20, "logits_processors": [Shifting(fail_at)], "recorder": recorder}
    if way.endswith("pipelined"):
        generation = decode(target, [1, 2], pipelined=way == "pipelined", **options)
    else:
        drafter = make_scripted(way, shifted(script), 70)
        generation = speculate(target, drafter, [1, 2], draft_length=3, **options)
    with pytest.raises(ScriptedFailure, match="the processor failed as scripted"):
        generation.drain()
    assert (generation.finish_reason, rows(recorder.records, RoundRecord)[-1].outcome) == ("error", "error")
    history = [1, 2, *generation.tokens]
    expected = expect(shifted(script), [1, 2], max_tokens=20).tokens
    assert generation.tokens == expected[: len(generation.tokens)]
    assert len(generation.tokens) <= fail_at
    generation.cache.check_integrity()
    assert [layer.tokens for layer in generation.cache.layers] == [history[:-1]] * 2
    again = decode(target, history, max_tokens=5, cache=generation.cache, logits_processors=[Shifting()]).drain().tokens
    assert [*generation.tokens, *again] == expected[: len(history) + 3]


def test_in_a_warm_turn_a_processor_sees_the_whole_history() -> None:
    script = hashed(8, VOCABULARY, 2)
    target = ScriptedTarget(script, vocab_size=VOCABULARY)
    first = decode(target, [1, 2, 3], max_tokens=5).drain()
    history = [1, 2, 3, *first.tokens, 4]
    processor = Shifting()
    drafter = make_scripted("plain", shifted(script), 70)
    second = speculate(
        target, drafter, history, draft_length=3, max_tokens=9, cache=first.cache, logits_processors=[processor]
    ).drain()
    assert second.tokens == expect(shifted(script), history, max_tokens=9).tokens
    assert processor.seen == [[*history, *second.tokens[:count]] for count in range(9)]


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_grammar_that_is_over_does_not_take_the_last_token_with_it(pipelined: bool) -> None:
    """A pipelined step is launched before it is known that the output has ended: what is said of it then is void."""

    def grammar(tokens: Any, logits: Any) -> Any:
        if 5 in tokens.tolist():
            raise ScriptedFailure("past the end")
        return logits

    target = ScriptedTarget(lambda history: history[-1] + 1, vocab_size=9, eos=[5])
    generation = decode(target, [0], max_tokens=20, pipelined=pipelined, logits_processors=[grammar]).drain()
    assert (generation.tokens, generation.finish_reason) == ([1, 2, 3, 4, 5], "stop")
    generation.cache.check_integrity()


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_processor_that_raises_before_the_end_ends_the_output_there(pipelined: bool) -> None:
    def refuse_three(tokens: Any, logits: Any) -> Any:
        if 3 in tokens.tolist():
            raise ScriptedFailure("no three")
        return logits

    target = ScriptedTarget(lambda history: history[-1] + 1, vocab_size=9, eos=[5])
    generation = decode(target, [0], max_tokens=20, pipelined=pipelined, logits_processors=[refuse_three])
    with pytest.raises(ScriptedFailure, match="no three"):
        generation.drain()
    assert (generation.tokens, generation.finish_reason) == ([1, 2, 3], "error")
    generation.cache.check_integrity()
