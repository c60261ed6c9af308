"""Real architectures of mlx-lm at a small size: committed ids are those of its ordinary loop, or it is refused."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from runtime.drafters.assistant import Assistant
from runtime.generate import decode, speculate
from runtime.protocols import Drafter
from runtime.speculative.trimming import MOST_BEHIND
from runtime.testing import ScriptedDrafter
from telemetry.errors import Unsupported
from telemetry.recorder import Recorder
from telemetry.records import GenerationEnd
from tests.architectures import ARCHITECTURES, VOCABULARY, WINDOW, render_targets
from tests.conftest import ROOT
from tests.runtime.scripted import drain_checked, rows

LIMIT = 24
PROMPT = [random.Random(1).randrange(VOCABULARY) for _ in range(WINDOW + 4)]
REFUSED = ["deepseek_v41"]
SUPPORTED = [name for name in ARCHITECTURES if name not in REFUSED]
RECURRENT = ["mamba2", "rwkv7", "qwen3_next", "recurrent_gemma", "falcon_h1"]
WINDOWED = ["llama, sliding", "gemma3_text", "gemma4_text", "gpt_oss", "llama4", "recurrent_gemma"]
QUANTISED = [name for name in SUPPORTED if ARCHITECTURES[name].kv_bits]
DRAFTING = [
    ("perfect", 4),
    ("rejected", 1),
    ("rejected", 8),
    ("mixed", 1),
    ("mixed", 4),
    ("mixed", 8),
    ("assistant", 4),
]

_build = functools.cache(lambda name, seed=0: ARCHITECTURES[name].build(seed))


def ordinary(name: str, prompt: Sequence[int], count: int, **options: Any) -> list[int]:
    """What mlx-lm's own loop gives."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    steps = generate_step(mx.array(list(prompt)), _build(name).model, max_tokens=count, **options)
    return [int(token) for token, _ in steps]


@functools.cache
def _reference(name: str, count: int = LIMIT) -> tuple[int, ...]:
    return tuple(ordinary(name, PROMPT, count))


def make_drafter(kind: str, name: str, expected: Sequence[int], prompt: Sequence[int] = PROMPT) -> Drafter:
    """One that is always right, always wrong, right in two of three places, or another model of the same class."""
    if kind == "assistant":
        return Assistant(_build(name, 7))

    def propose(history: Sequence[int], m: int) -> list[int]:
        done = len(history) - len(prompt)
        right = expected[done : done + m]
        wrong = {"perfect": lambda i: False, "rejected": lambda i: True, "mixed": lambda i: i % 3 == 2}[kind]
        return [(token + wrong(done + i)) % VOCABULARY for i, token in enumerate(right)]

    return ScriptedDrafter(propose)


def check_equal(
    name: str, kind: str, m: int, expected: Sequence[int], prompt: Sequence[int] = PROMPT, **options: Any
) -> tuple[list[Any], GenerationEnd]:
    """Speculate, hold every round to the invariants and the output to `expected`; its rounds and its record."""
    recorder = Recorder()
    drafter = make_drafter(kind, name, expected, prompt)
    generation = speculate(
        _build(name), drafter, prompt, draft_length=m, max_tokens=len(expected), eos=(), recorder=recorder, **options
    )
    rounds = drain_checked(generation, prompt, draft_length=m)
    assert generation.tokens == list(expected)
    [record] = rows(recorder.records, GenerationEnd)
    return rounds, record


@pytest.mark.parametrize("name", SUPPORTED)
def test_an_output_is_worth_comparing(name: str) -> None:
    """It does not settle on one token, depends on the seed, and is the same for the same seed."""
    again, other = ARCHITECTURES[name].build(0), _build(name, 7)
    assert len(set(_reference(name))) > 3
    assert tuple(decode(again, PROMPT, max_tokens=8, eos=()).drain().tokens) == _reference(name)[:8]
    assert tuple(decode(other, PROMPT, max_tokens=8, eos=()).drain().tokens) != _reference(name)[:8]


@pytest.mark.parametrize("pipelined", [True, False], ids=["pipelined", "unpipelined"])
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_ordinary_decoding_is_that_of_mlx_lm(name: str, pipelined: bool) -> None:
    generation = decode(_build(name), PROMPT, max_tokens=LIMIT, eos=(), pipelined=pipelined).drain()
    assert tuple(generation.tokens) == _reference(name)
    generation.cache.check_integrity()
    assert generation.cache.tokens[: len(PROMPT) + LIMIT - 1] == [*PROMPT, *_reference(name)[:-1]]


@pytest.mark.parametrize(("kind", "m"), DRAFTING)
@pytest.mark.parametrize("name", SUPPORTED)
def test_committed_ids_are_those_of_mlx_lm(name: str, kind: str, m: int) -> None:
    """mlx-lm#846, #1446: recurrent targets and drafters too. omlx PR#3416: no snapshot where a trim does."""
    rounds, record = check_equal(name, kind, m, _reference(name))
    way = "snapshot" if name in RECURRENT else "trim"
    assert {entry.trim_way for entry in rounds} - {"none"} <= {way}
    behind = 0
    for entry in rounds:
        in_front, rejected = behind, entry.width - behind > entry.committed
        assert entry.trim_way == (way if rejected else "none")
        behind = behind + entry.committed if rejected and way == "snapshot" else 0
        caught_up = behind if behind > max(MOST_BEHIND, m) or entry is rounds[-1] else 0
        behind -= caught_up
        assert entry.replayed == in_front + caught_up
    ways = {entry.rewind_way for entry in rounds} - {"none"}
    if kind == "assistant" and name in WINDOWED and name not in RECURRENT:
        assert ways <= {"snapshot", "trim"}  # within a chunk, steps can be trimmed
        assert record.snapshot_bytes > 0 or "snapshot" not in ways
    else:
        assert ways <= {"snapshot" if kind == "assistant" and name in RECURRENT else "trim"}
        assert (record.snapshot_bytes > 0) == (name in RECURRENT)


@pytest.mark.parametrize("m", [0, 2, 3, 5, 6, 7])
@pytest.mark.parametrize(
    "name", ["llama, sliding", "gemma4_text", "llama4", "qwen3_next", "recurrent_gemma", "mamba2", "falcon_h1"]
)
def test_every_draft_length(name: str, m: int) -> None:
    """The K/V shared between layers of gemma4_text has fewer caches than layers: they are counted by the list."""
    check_equal(name, "mixed", m, _reference(name))
    check_equal(name, "assistant", m, _reference(name))


@pytest.mark.parametrize("prompt_length", [1, WINDOW - 6, WINDOW + 9])
@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_a_rejecting_drafter_over_a_window(m: int, prompt_length: int) -> None:
    """mlx-lm#1423: 60 tokens, from before the window wraps and from after."""
    prompt = (PROMPT * 2)[:prompt_length]
    expected = ordinary("llama, sliding", prompt, 60)
    check_equal("llama, sliding", "rejected", m, expected, prompt)


def test_caches_are_counted_by_the_list() -> None:
    """mlx-lm: targets that share K/V between layers, or have layers without any, have fewer caches than layers."""
    target = _build("gemma4_text")
    assert (len(target.make_cache()), len(target.model.layers)) == (2, 4)


@pytest.mark.parametrize("name", SUPPORTED)
def test_three_turns_are_warm_what_they_are_cold(name: str) -> None:
    """A turn ends on whatever it does; the third differs from the history in its middle."""
    history, cache = list(PROMPT[:10]), None
    for said, kind in (([5, 9], "mixed"), ([7], "assistant"), ([3, 1, 4], "mixed")):
        history += said
        expected = ordinary(name, history, 9)
        drafter = make_drafter(kind, name, expected, history)
        generation = speculate(_build(name), drafter, history, draft_length=4, max_tokens=9, eos=(), cache=cache)
        drain_checked(generation, history, draft_length=4)
        assert generation.tokens == expected
        cache = generation.cache
        assert cache.tokens == [*history, *expected[:-1]]
        history += expected
    changed = [*history[:-6], 2, 2]
    generation = decode(_build(name), changed, max_tokens=6, eos=(), cache=cache).drain()
    assert generation.tokens == ordinary(name, changed, 6)


@pytest.mark.parametrize("kind", ["mixed", "assistant"])
@pytest.mark.parametrize("start", [0, len(PROMPT) + 7], ids=["from the start", "from a threshold"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_keys_and_values(name: str, bits: int, start: int, kind: str) -> None:
    options = {"kv_bits": bits, "kv_group_size": 32, "quantized_kv_start": start}
    expected = ordinary(name, PROMPT, LIMIT, **options)
    for m in (2, 8):
        check_equal(name, kind, m, expected, **options)
    assert decode(_build(name), PROMPT, max_tokens=LIMIT, eos=(), **options).drain().tokens == expected


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in QUANTISED])
def test_keys_and_values_that_cannot_be_quantised_are_refused(name: str) -> None:
    """mlx-lm fails in the middle of the output where it has a window, and leaves the option out where it has a list."""
    reason = r"layer \d \(\w*Cache.*\) cannot be quantised|no layer holds keys and values"
    with pytest.raises(Unsupported, match=rf"kv_bits is refused: ({reason}); leave it out"):
        decode(_build(name), PROMPT, max_tokens=4, kv_bits=8, kv_group_size=32)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taken_back_is_refused_by_name(name: str) -> None:
    target, other = _build(name), _build("llama")
    with pytest.raises(
        Unsupported, match=r"the target has a cache .*: layer 0 \(LayerCache\), layer 1 .* Use ordinary"
    ):
        speculate(target, ScriptedDrafter(lambda history, m: []), PROMPT, draft_length=2, max_tokens=4)
    with pytest.raises(Unsupported, match=r"the draft model has a cache .*: layer 0 \(LayerCache\)"):
        speculate(other, Assistant(target), PROMPT, draft_length=2, max_tokens=4)


@pytest.mark.parametrize("name", [*RECURRENT, "llama"])
def test_snapshots_do_not_grow_with_the_output(name: str) -> None:
    """A recurrent state has one size; a window grows to its own and no further."""
    held = []
    for count in (12, 48):
        expected = _reference(name, count)
        _, record = check_equal(name, "rejected", 4, expected)
        held.append(record.snapshot_bytes)
    assert held[0] == held[1]
    assert (held[0] > 0) == (name in RECURRENT)


@pytest.mark.parametrize("name", ["llama, sliding", "llama4", "recurrent_gemma"])
def test_a_round_that_fails_or_is_cancelled_is_taken_back(name: str) -> None:
    """The whole forward is taken back out of a full window, and the next one is a single step."""
    expected = ordinary(name, PROMPT, 9)
    generation = speculate(
        _build(name), make_drafter("mixed", name, expected), PROMPT, draft_length=4, max_tokens=9, eos=()
    )
    next(generation)
    cache = generation.cache
    undo, length = cache.undo, cache.length
    undo.begin(length)
    _build(name).forward(_ids(expected[:5]), cache.layers)
    undo.restore(length)
    generation.close()
    cache.check_integrity()
    history = [*PROMPT, *generation.tokens]
    again = decode(_build(name), history, max_tokens=4, eos=(), cache=cache).drain()
    assert again.tokens == ordinary(name, history, 4)


def _ids(tokens: Sequence[int]) -> Any:
    import mlx.core as mx

    return mx.array([list(tokens)])


def test_the_table_of_targets_is_what_the_code_says() -> None:
    """Made by `python -m tests.architectures > docs/targets.md`."""
    assert (ROOT / "docs" / "targets.md").read_text() == render_targets()
