"""Generating: what is refused, what sampling depends on, verified exit, and the policy that has no cache."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from runtime.ncm.config import load_config
from runtime.ncm.generation import NcmOutput, generate
from runtime.ncm.model import Generator, init_model
from runtime.ncm.sampling import choose_codes, derive_keys
from runtime.ncm.temperature import COLDEST
from telemetry.errors import Unsupported, UsageError
from telemetry.recorder import Recorder
from tests.runtime.ncm.tiny import GRID, TINY, draw_conditioning, tiny_model, watch_forwards

CAUSAL = msgspec.structs.replace(TINY, policy="block_causal")


class Script:
    """A check that lets samples go by a plan, {sample: level}, and remembers what it was asked."""

    def __init__(self, plan: dict[int, int]) -> None:
        self.plan = plan
        self.asked: list[tuple[list[list[int]], list[int]]] = []

    def __call__(self, tokens: list[list[int]], samples: list[int]) -> list[bool]:
        self.asked.append((tokens, samples))
        return [self.plan.get(sample) == len(self.asked) - 1 for sample in samples]


def allow_all(tokens: list[list[int]], samples: list[int]) -> list[bool]:
    return [True for _ in samples]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"exit": "early"}, UsageError, "exit must be one of none, verified, not 'early'"),
        ({"timing": "quick"}, UsageError, "timing must be one of fused, attributed"),
        ({"exit": "verified"}, UsageError, "exit verified needs a check"),
        ({"temperature": -1.0}, UsageError, "temperature"),
        ({"temperature": float("nan")}, UsageError, "temperature"),
        ({"temperature": 1e-50}, UsageError, "temperature must be 0 .* or a number from 1e-30 up, not 1e-50"),
        ({"cache": False, "keep_prefix": True}, UsageError, "need the cache"),
        ({"sample_ids": [1]}, UsageError, "1 sample_ids for 2 samples"),
        ({"sample_ids": [4, 4]}, UsageError, "sample_ids name a sample twice"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, error: type[Exception], message: str) -> None:
    recorder = Recorder()
    with pytest.raises(error, match=message):
        generate(tiny_model(), draw_conditioning(TINY, 2), recorder=recorder, **options)
    assert recorder.records == []


@pytest.mark.parametrize(
    ("conditioning", "message"),
    [
        ([], "no rows"),
        ([[1, 2, 3]], "row 0 has 3 tokens, and the prefix 5"),
        ([[0] * 5, [0, 0, 0, 0, 7]], "row 1 has tokens outside 0 to 6"),
        ([[-1] * 5], "row 0 has tokens outside"),
        ([[0.5] * 5], "must be rows of integers, in lists or in one numpy or MLX array .* 'float'"),
        (np.zeros((1, 5)), "must be rows of integers"),
        (mx.zeros((1, 5)), "must be rows of integers"),
        ([mx.array([0] * 5)], "rows are MLX arrays of their own"),
        (np.zeros(5, int), "must be rows of integers"),
        ("12345", "must be rows of integers"),
    ],
)
def test_conditioning_that_does_not_fit_is_refused(conditioning: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        generate(tiny_model(), conditioning)


def test_a_prefix_without_cache_is_refused() -> None:
    model, conditioning = tiny_model(), draw_conditioning(TINY, 1)
    kept = generate(model, conditioning, keep_prefix=True).prefix
    with pytest.raises(UsageError, match="need the cache"):
        generate(model, conditioning, cache=False, prefix=kept)


@pytest.mark.parametrize("cache", [True, False])
def test_a_model_in_training_is_refused(cache: bool) -> None:
    with pytest.raises(Unsupported, match="training mode"):
        generate(tiny_model().train(), draw_conditioning(TINY, 1), cache=cache)


def test_block_causal_runs_without_the_cache_and_is_refused_with_it() -> None:
    model, conditioning = init_model(CAUSAL), draw_conditioning(TINY, 3)
    with pytest.raises(Unsupported, match="policy block_causal with the prefix cache: levels there read"):
        generate(model, conditioning)
    recorder = Recorder()
    output = generate(model, conditioning, cache=False, recorder=recorder)
    _, *levels, _ = recorder.records
    assert [record.level_processed for record in levels] == [3, 9, 18, 33]  # type: ignore[union-attr]
    # Teacher-forced with its own codes, the one pass over all levels says the same.
    partial, inputs = model.codec.start(3), []
    for level in range(4):
        inputs.append(model.codec.make_input(level, partial))
        partial = model.codec.add_level(level, partial, mx.array([codes[level] for codes in output.codes]))
    logits = model.generator.forward_levels(inputs, mx.array(conditioning))
    assert [choose_codes(part, 0.0, None).tolist() for part in logits] == by_level(output)


def by_level(output: NcmOutput) -> list[list[list[int]]]:
    return [[codes[level] for codes in output.codes] for level in range(4)]


def test_the_output_is_what_the_codes_decode_to() -> None:
    model = tiny_model(0, GRID)
    output = generate(model, draw_conditioning(GRID, 2))
    partial = model.codec.start(2)
    for level in range(3):
        partial = model.codec.add_level(level, partial, mx.array([codes[level] for codes in output.codes]))
    assert output.tokens == mx.argmax(model.codec.decode(partial), axis=-1).tolist()
    assert (output.n_levels, output.solved, output.finish_reason) == ([3, 3], None, "complete")


@pytest.mark.parametrize("cache", [True, False])
def test_a_level_is_exactly_one_forward(cache: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    run = Generator._run
    monkeypatch.setattr(
        Generator, "_run", lambda self, inputs, *rest: runs.append(inputs.shape) or run(self, inputs, *rest)
    )
    generate(tiny_model(), draw_conditioning(TINY, 2), cache=cache)
    assert runs == [(2, 1, 4), (2, 2, 4), (2, 3, 4), (2, 5, 4)]


def test_the_lowest_code_wins_a_tie() -> None:
    assert choose_codes(mx.array([[[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]]), 0.0, None).tolist() == [[1, 0]]


def test_the_coldest_temperature_takes_the_most_probable_codes() -> None:
    model, conditioning = tiny_model(), draw_conditioning(TINY, 3)
    assert generate(model, conditioning, temperature=COLDEST).codes == generate(model, conditioning).codes


def test_codes_are_drawn_from_the_softmax() -> None:
    logits = mx.log(mx.array([0.5, 0.3, 0.2]))
    keys = derive_keys(3, [0], 0)
    drawn: Any = choose_codes(mx.broadcast_to(logits * 2, (1, 20000, 3)), 2.0, keys)[0].tolist()
    assert [round(drawn.count(code) / 20000, 2) for code in range(3)] == [
        pytest.approx(share, abs=0.015) for share in (0.5, 0.3, 0.2)
    ]


def test_draws_depend_on_seed_sample_and_level_alone() -> None:
    model, conditioning = tiny_model(), draw_conditioning(TINY, 3)
    whole = generate(model, conditioning, temperature=1.0, seed=5)
    assert generate(model, conditioning, temperature=1.0, seed=5).codes == whole.codes
    assert generate(model, conditioning, temperature=1.0, seed=6).codes != whole.codes
    for ids in ([2, 0], [1]):
        part = generate(model, [conditioning[id] for id in ids], temperature=1.0, seed=5, sample_ids=ids)
        assert part.codes == [whole.codes[id] for id in ids]
    twins = generate(model, [conditioning[0]] * 2, temperature=1.0, seed=5)
    assert twins.codes[0] != twins.codes[1]
    assert len({tuple(key) for level in range(3) for key in derive_keys(1, [0, 1], level).tolist()}) == 6


@pytest.mark.parametrize("timing", ["fused", "attributed"])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_samples_that_leave_do_not_disturb_the_others(cache: bool, temperature: float, timing: Any) -> None:
    model, conditioning = tiny_model(), draw_conditioning(TINY, 4)
    whole = generate(model, conditioning, cache=cache, temperature=temperature)
    script = Script({1: 0, 3: 2, 0: 3})
    output = generate(
        model, conditioning, cache=cache, temperature=temperature, timing=timing, exit="verified", check=script
    )
    assert [samples for _, samples in script.asked] == [[0, 1, 2, 3], [0, 2, 3], [0, 2, 3], [0, 2]]
    assert output.n_levels == [4, 1, 4, 3]
    assert output.codes == [codes[:depth] for codes, depth in zip(whole.codes, output.n_levels, strict=True)]
    assert [output.tokens[0], output.tokens[2]] == [whole.tokens[0], whole.tokens[2]]
    assert [output.tokens[1], output.tokens[3]] == [script.asked[0][0][1], script.asked[2][0][2]]
    assert (output.solved, output.finish_reason) == ([True, True, False, True], "complete")


@pytest.mark.parametrize("cache", [True, False])
def test_samples_keep_their_ids_when_others_leave(cache: bool) -> None:
    model, conditioning = tiny_model(), draw_conditioning(TINY, 4)
    whole = generate(model, conditioning, cache=cache, temperature=1.0)
    ids = [3, 1, 2]
    output = generate(
        model,
        [conditioning[id] for id in ids],
        cache=cache,
        temperature=1.0,
        sample_ids=ids,
        exit="verified",
        check=Script({0: 0, 1: 2}),
    )
    assert output.n_levels == [1, 3, 4]
    assert output.codes == [whole.codes[id][:depth] for id, depth in zip(ids, output.n_levels, strict=True)]


def test_a_generation_ends_when_everybody_has_left() -> None:
    output = generate(tiny_model(), draw_conditioning(TINY, 2), exit="verified", check=Script({0: 0, 1: 1}))
    assert (output.n_levels, output.solved, output.finish_reason) == ([1, 2], [True, True], "exited")


def test_block_causal_can_exit_too() -> None:
    model, conditioning = init_model(CAUSAL), draw_conditioning(TINY, 3)
    whole = generate(model, conditioning, cache=False)
    output = generate(model, conditioning, cache=False, exit="verified", check=Script({0: 1}))
    assert output.codes == [whole.codes[0][:2], *whole.codes[1:]]


def test_without_exit_the_check_is_asked_once_about_the_output() -> None:
    script = Script({1: 0})
    output = generate(tiny_model(), draw_conditioning(TINY, 2), check=script)
    assert script.asked == [(output.tokens, [0, 1])]
    assert (output.solved, output.n_levels) == ([False, True], [4, 4])


@pytest.mark.parametrize("exit", ["none", "verified"])
def test_a_check_must_answer_for_every_sample(exit: Any) -> None:
    with pytest.raises(UsageError, match="check answered for 1 samples and was asked about 2"):
        generate(tiny_model(), draw_conditioning(TINY, 2), exit=exit, check=lambda tokens, samples: [True])


def test_a_check_cannot_change_the_output() -> None:
    def scribble(tokens: list[list[int]], samples: list[int]) -> list[bool]:
        for row in tokens:
            row[:] = [99] * len(row)
        samples.clear()
        return [False, False]

    model, conditioning = tiny_model(), draw_conditioning(TINY, 2)
    output = generate(model, conditioning, exit="verified", check=scribble)
    assert output.tokens == generate(model, conditioning).tokens


def test_an_exit_inside_the_published_size() -> None:
    model = init_model(load_config("tinyworld"), 1)
    conditioning = draw_conditioning(model.config, 2)
    output = generate(model, conditioning, exit="verified", check=allow_all)
    assert output.codes == [codes[:1] for codes in generate(model, conditioning).codes]


def test_forwards_of_a_cached_generation_process_own_positions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    with watch_forwards(monkeypatch, lambda level, store: lengths.append(level)) as logits:
        generate(tiny_model(), draw_conditioning(TINY, 1))
    assert (lengths, [part.shape for part in logits]) == ([0, 1, 2, 3], [(1, n, 11) for n in TINY.lengths])
