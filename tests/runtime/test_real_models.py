"""Small random models of mlx-lm: the loop gives what mlx-lm's own ordinary loop gives, by every drafter."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.drafters.assistant import Assistant
from runtime.drafters.composed import Composed
from runtime.drafters.known import NoDrafter, Oracle, Wrong
from runtime.drafters.prompt_lookup import PromptLookup
from runtime.generate import decode, speculate
from runtime.protocols import Drafter
from runtime.speculative.contract import DrafterError
from runtime.speculative.controller import Controller
from runtime.targets import MlxTarget
from runtime.testing import ScriptedFailure
from telemetry.fields import Timing
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord
from tests.conftest import run_python
from tests.models import tiny_llama
from tests.runtime.recurrent import tiny_mamba
from tests.runtime.scripted import KeepingDrafter, always, drain_checked, rows

PROMPT = [5, 9, 33, 5, 9, 33, 5, 9]
LIMIT = 24
DRAFTERS = ["none", "prompt-lookup", "same", "other", "oracle", "wrong"]


@pytest.fixture(scope="module", params=["grouped heads", "one K/V head, traditional rope"])
def target(request: pytest.FixtureRequest) -> MlxTarget:
    """A target with two query heads a K/V head, or with four and the other rope."""
    if request.param == "grouped heads":
        return tiny_llama(1)
    made = tiny_llama(2, layers=3, kv_heads=1)
    for layer in made.model.layers:
        layer.self_attn.rope.traditional = True
    return made


def ask_mlx_lm(target: MlxTarget, prompt: Sequence[int], limit: int) -> list[int]:
    """What mlx-lm's ordinary loop says."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    return [int(token) for token, _ in generate_step(mx.array(prompt), target.model, max_tokens=limit)]


def make_drafter(name: str, target: MlxTarget, prompt: Sequence[int], output: Sequence[int]) -> Drafter:
    """A drafter that is always, sometimes or never right about `output`."""
    known = {tuple(prompt): output}
    if name == "same":
        return Assistant(target)
    if name == "other":
        return Assistant(tiny_llama(7, layers=1))
    return {
        "none": NoDrafter(),
        "prompt-lookup": PromptLookup(max_n=2, min_n=1),
        "oracle": Oracle(known),
        "wrong": Wrong(target.vocab_size, known),
    }[name]


@pytest.mark.parametrize("pipelined", [True, False])
def test_ordinary_decoding_is_mlx_lms(target: MlxTarget, pipelined: bool) -> None:
    generation = decode(target, PROMPT, max_tokens=LIMIT, pipelined=pipelined)
    drain_checked(generation, PROMPT)
    assert generation.tokens == ask_mlx_lm(target, PROMPT, LIMIT)


@pytest.mark.parametrize("name", DRAFTERS)
def test_speculation_is_mlx_lms_ordinary_loop(target: MlxTarget, name: str) -> None:
    """Every draft length, with caches checked after every round and one synchronisation in each."""
    output = ask_mlx_lm(target, PROMPT, LIMIT)
    for m in range(9):
        drafter = make_drafter(name, target, PROMPT, output)
        generation = speculate(target, drafter, PROMPT, draft_length=m, max_tokens=LIMIT)
        rounds = drain_checked(generation, PROMPT, draft_length=m, max_tokens=LIMIT)
        assert generation.tokens == output
        assert {entry.syncs for entry in rounds} == {1}
        lags = [entry.cache_length - (entry.drafter_length or 0) for entry in rounds]
        if name in ("same", "oracle"):
            assert [entry.accepted for entry in rounds] == [entry.proposed for entry in rounds]
        if name == "wrong":
            assert [entry.accepted for entry in rounds] == [0] * len(rounds)
        if name in ("same", "other") and m:
            assert lags[:-1] == [int(entry.outcome in ("bonus", "step")) for entry in rounds[:-1]]
        elif name not in ("same", "other"):
            assert lags == [0] * len(rounds)


@pytest.mark.parametrize("names", [("prompt-lookup",), ("other",), ("same",), ("wrong",), ("prompt-lookup", "other")])
def test_what_a_controller_chooses_gives_mlx_lms_output(target: MlxTarget, names: tuple[str, ...]) -> None:
    """By a part alone, and by a composition; twice, as the controller then knows more."""
    output, controller = ask_mlx_lm(target, PROMPT, LIMIT), Controller()
    for _ in range(2):
        parts = [make_drafter(name, target, PROMPT, output) for name in names]
        drafter = parts[0] if len(parts) == 1 else Composed(*parts)
        generation = speculate(target, drafter, PROMPT, draft_length="auto", controller=controller, max_tokens=LIMIT)
        drain_checked(generation, PROMPT, draft_length=controller.longest)
        assert generation.tokens == output


@pytest.mark.parametrize("name", ["prompt-lookup", "other"])
def test_attributed_rounds_give_the_same_output(target: MlxTarget, name: str) -> None:
    output = ask_mlx_lm(target, PROMPT, LIMIT)
    timings: tuple[Timing, ...] = ("fused", "attributed")
    runs = [
        list(
            speculate(
                target,
                make_drafter(name, target, PROMPT, output),
                PROMPT,
                draft_length=4,
                max_tokens=LIMIT,
                timing=timing,
            )
        )
        for timing in timings
    ]
    assert [[entry.tokens for entry in run] for run in runs] == [[entry.tokens for entry in runs[0]]] * 2
    assert [token for entry in runs[1] for token in entry.tokens] == output
    assert {entry.stages["verify"][1] for entry in runs[1]} == {"barrier"}


@settings(max_examples=25)
@given(
    prompt=st.lists(st.integers(0, 63), min_size=1, max_size=12),
    limit=st.integers(1, 24),
    m=st.integers(0, 8),
    name=st.sampled_from(DRAFTERS),
    end=st.frozensets(st.integers(0, 63), max_size=6),
)
def test_any_prompt_limit_and_end(prompt: list[int], limit: int, m: int, name: str, end: frozenset[int]) -> None:
    target = tiny_llama(1)
    output = ask_mlx_lm(target, prompt, limit)
    stop = next((index + 1 for index, token in enumerate(output) if token in end), None)
    drafter = make_drafter(name, target, prompt, output)
    generation = speculate(target, drafter, prompt, draft_length=m, max_tokens=limit, eos=end)
    drain_checked(generation, prompt, draft_length=m, max_tokens=limit)
    assert generation.tokens == output[:stop]
    assert generation.finish_reason == ("length" if stop is None else "stop")


@pytest.mark.parametrize(
    "ways", [("other", "other", "other"), ("ordinary", "same", "ordinary"), ("wrong", "ordinary", "prompt-lookup")]
)
def test_a_chat_of_three_turns_is_warm_what_it_is_cold(target: MlxTarget, ways: tuple[str, ...]) -> None:
    history, cache = list(PROMPT), None
    for turn, way in enumerate(ways):
        cold = ask_mlx_lm(target, history, 15)
        recorder = Recorder()
        options: dict[str, Any] = {"max_tokens": 15, "cache": cache, "recorder": recorder}
        if way == "ordinary":
            generation = decode(target, history, **options)
        else:
            generation = speculate(target, make_drafter(way, target, history, cold), history, draft_length=4, **options)
        held = generation.cache.length
        drain_checked(generation, history, draft_length=4)
        assert generation.tokens == cold, (turn, way)
        assert rows(recorder.records, GenerationRecord)[0].cached_tokens == held
        assert (held == 0) is (turn == 0)
        history = [*history, *generation.tokens, 40 + turn, 3]
        cache = generation.cache
    changed = [*history[:20], 1, 2, 3]
    assert decode(target, changed, max_tokens=9, cache=cache).drain().tokens == ask_mlx_lm(target, changed, 9)


def test_a_failed_forward_leaves_real_caches_exact(target: MlxTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx-lm: the layers had grown when it failed; afterwards the cache serves the same history as if it had not."""
    output = ask_mlx_lm(target, PROMPT, LIMIT)
    for name in ("ordinary", "other", "wrong"):
        options: dict[str, Any] = {"max_tokens": LIMIT}
        if name == "ordinary":
            generation = decode(target, PROMPT, **options)
        else:
            generation = speculate(
                target, make_drafter(name, target, PROMPT, output), PROMPT, draft_length=3, **options
            )
        for _ in range(3):
            next(generation)
        last = target.model.model.layers[-1]
        with monkeypatch.context() as patched:
            patched.setattr(type(last), "__call__", _fail_in(last, type(last).__call__))
            with pytest.raises(RuntimeError, match="out of memory"):
                next(generation)
        generation.cache.check_integrity()
        history = [*PROMPT, *generation.tokens]
        assert generation.cache.tokens == history[:-1]
        rest = decode(target, history, max_tokens=10, cache=generation.cache).drain().tokens
        assert generation.tokens + rest == output[: len(generation.tokens) + 10]


@pytest.mark.parametrize("make", [lambda: tiny_llama(1, sliding_window=8), tiny_mamba], ids=["window", "recurrent"])
@pytest.mark.parametrize("name", ["same", "wrong", "oracle"])
def test_a_failed_round_is_undone_where_nothing_can_be_trimmed(
    make: Callable[[], MlxTarget], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some layers had taken the round in and others had not: all are put back, and so is the drafter's model.

    A recurrent state may be behind by what the failing target could not feed again.
    """
    target = make()
    output = ask_mlx_lm(target, PROMPT, LIMIT)
    drafter = make_drafter(name, target, PROMPT, output)
    generation = speculate(target, drafter, PROMPT, draft_length=3, max_tokens=LIMIT)
    for _ in range(3):
        next(generation)
    last = target.model.layers[-1]
    with monkeypatch.context() as patched:
        patched.setattr(type(last), "__call__", _fail_in(last, type(last).__call__))
        with pytest.raises(RuntimeError, match="out of memory"):
            next(generation)
    generation.cache.check_integrity()
    history = [*PROMPT, *generation.tokens]
    behind = len(history) - 1 - generation.cache.length
    assert generation.cache.tokens == history[: len(history) - 1 - behind]
    assert behind == 0 or generation.cache.undo.way == "snapshot"
    again = make_drafter("same", target, history, output)
    rest = speculate(target, again, history, draft_length=3, max_tokens=9, cache=generation.cache).drain().tokens
    assert generation.tokens + rest == output[: len(generation.tokens) + 9]


@pytest.mark.parametrize("method", ["reset", "propose", "commit", "rewind"])
def test_a_drafter_that_fails_leaves_a_recurrent_state_whole(method: str) -> None:
    """Whether the target had taken in the round by then or not."""
    target = tiny_mamba()
    output = ask_mlx_lm(target, PROMPT, LIMIT)
    calls = {"reset": 0}.get(method, 2)
    drafter = KeepingDrafter(always([1, 2, 3]), fails={method: calls})
    generation = speculate(target, drafter, PROMPT, draft_length=3, max_tokens=LIMIT)
    with pytest.raises(ScriptedFailure):
        generation.drain()
    assert generation.cache.tokens == [*PROMPT, *generation.tokens][:-1]
    rest = decode(target, [*PROMPT, *generation.tokens], max_tokens=9, cache=generation.cache).drain().tokens
    assert (generation.tokens + rest, len(generation.tokens)) == (output[: calls + 9], calls)


def test_a_drafter_taken_away_leaves_a_recurrent_state_whole() -> None:
    target, drafter = tiny_mamba(), KeepingDrafter(always([1, 2, 3]))
    first = speculate(target, drafter, PROMPT, draft_length=3, max_tokens=LIMIT)
    next(first)
    next(speculate(target, drafter, PROMPT, draft_length=3, max_tokens=LIMIT))
    with pytest.raises(DrafterError, match="was reset by another generation"):
        next(first)
    first.cache.check_integrity()


def _fail_in(layer: Any, call: Any) -> Any:
    def __call__(self: Any, *arguments: Any, **options: Any) -> Any:
        if self is layer:
            raise RuntimeError("out of memory, as scripted")
        return call(self, *arguments, **options)

    return __call__


BITWISE = """
import json
import mlx.core as mx
mx.set_default_device(mx.cpu)
from mlx_lm.generate import generate_step
from runtime.drafters.assistant import Assistant
from runtime.drafters.composed import Composed
from runtime.drafters.known import Wrong
from runtime.generate import decode, speculate
from tests.models import tiny_llama

target, prompt, limit = tiny_llama(1), [5, 9, 33, 5, 9, 33, 5, 9], 24
forward, seen = target.forward, []

def watch(ids, cache):
    logits = forward(ids, cache)
    seen.append((ids.shape[1], logits))
    return logits

def collect(generation):
    seen.clear()
    rounds = list(generation)
    widths = [width for width, _ in seen]
    rows = [logits[0, i] for (_, logits), entry in zip(seen[1:], rounds) for i in range(entry.committed)]
    return widths, rows, generation.tokens

target.forward = watch
widths, ordinary, output = collect(decode(target, prompt, max_tokens=limit, pipelined=False))
[(_, theirs), *_] = generate_step(mx.array(prompt), target.model, max_tokens=1)
same = lambda a, b: bool(mx.array_equal(a, b))
result = {
    "prefill": [widths[0]],
    "first as mlx-lm": same(ordinary[0] - mx.logsumexp(ordinary[0], keepdims=True), theirs),
    "first": [], "all": [],
}
for m in range(9):
    for drafter in (Assistant(tiny_llama(1)), Wrong(64, {tuple(prompt): output})):
        widths, rows, _ = collect(speculate(target, drafter, prompt, draft_length=m, max_tokens=limit))
        result["prefill"].append(widths[0])
        result["first"].append(same(rows[0], ordinary[0]))
        result["all"].append(len(rows) == limit and all(map(same, rows, ordinary)))
print(json.dumps(result))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs the reference BLAS of MLX's Linux wheel")
def test_logits_are_bitwise_those_of_ordinary_decoding_on_stock_blas() -> None:
    """mlx-lm#1109: prefill leaves exactly one token out, and the first logits are ordinary's, bit for bit."""
    child = run_python(BITWISE, env={"ROUNDSCOPE_BLAS": "stock"})
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == {
        "prefill": [7] * 19,
        "first as mlx-lm": True,
        "first": [True] * 18,
        "all": [True] * 18,
    }
