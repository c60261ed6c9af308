"""mlx-lm's entry points on our loop: its arguments, its responses, its ids; and what is refused."""

from __future__ import annotations

import importlib
import inspect
import json
from collections import deque
from typing import Any

import msgspec
import pytest

from runtime.compat import mlx_lm as ours
from runtime.compat import responses
from runtime.rounds import OpenRound
from runtime.targets import MlxTarget
from telemetry.errors import Unsupported, UsageError
from telemetry.recorder import Recorder
from telemetry.records import GenerationEnd, GenerationRecord, RoundRecord
from tests.conftest import run_python
from tests.models import tiny_llama
from tests.runtime.mlx_lm_calls import (
    CHARACTERS,
    PROMPT,
    SECOND,
    ask_mlx_lm,
    ask_ours,
    make_caches,
    make_qwen,
    make_tokenizer,
    show,
    tokens_of,
)


@pytest.fixture(scope="module")
def target() -> MlxTarget:
    return tiny_llama(1)


@pytest.fixture(scope="module")
def other() -> MlxTarget:
    return tiny_llama(7, layers=1)


# What mlx-lm's own tests of generation hold


@pytest.mark.parametrize("limit", [1, 2, 4, 17])
def test_as_many_responses_as_tokens_are_allowed(target, limit):
    tokenizer = make_tokenizer()
    responses = ask_ours(target, tokenizer, PROMPT, max_tokens=limit)
    assert show(responses) == show(ask_mlx_lm(target, tokenizer, PROMPT, max_tokens=limit))
    assert [r.finish_reason for r in responses] == [None] * (limit - 1) + ["length"]


def test_tokens_of_a_perfect_draft_model_are_flagged(target):
    """Two of three, and the last place of the budget too, for which the draft model was asked."""
    import mlx_lm.sample_utils

    options = {
        "draft_model": target.model,
        "num_draft_tokens": 2,
        "sampler": mlx_lm.sample_utils.make_sampler(temp=0.0),
    }
    responses = ask_ours(target, make_tokenizer(), PROMPT, max_tokens=5, **options)
    assert [r.from_draft for r in responses] == [True, True, False, True, True]


def test_a_processor_sees_the_prompt_and_what_was_said(target):
    seen = []

    def watch(tokens: Any, logits: Any) -> Any:
        seen.append(tokens.tolist())
        return logits

    tokenizer = make_tokenizer()
    said = tokens_of(ask_ours(target, tokenizer, PROMPT, max_tokens=5, logits_processors=[watch]))
    assert seen[:5] == [PROMPT + said[:index] for index in range(5)]
    assert len(seen) == 5


def test_a_logit_bias_forces_a_token(target):
    from mlx_lm.sample_utils import make_logits_processors

    bias = make_logits_processors({3: 2000.0, 1: -20.0})
    for options in ({}, {"draft_model": target.model}):
        text = ours.generate(target.model, make_tokenizer(), "59", max_tokens=5, logits_processors=bias, **options)
        assert text == "33333"


def test_log_probabilities_are_those_the_token_was_chosen_from(target, other):
    import mlx.core as mx

    tokenizer = make_tokenizer()
    theirs = ask_mlx_lm(target, tokenizer, PROMPT, max_tokens=9)
    for options in ({}, {"draft_model": target.model}, {"draft_model": other.model, "num_draft_tokens": 4}):
        mine = ask_ours(target, tokenizer, PROMPT, max_tokens=9, **options)
        assert tokens_of(mine) == tokens_of(theirs)
        for response, expected in zip(mine, theirs, strict=True):
            assert response.logprobs.shape == expected.logprobs.shape
            assert mx.allclose(response.logprobs, expected.logprobs, atol=1e-5)
            assert response.logprobs.argmax().item() == response.token


# Equality


@pytest.mark.parametrize("m", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("same", [True, False])
def test_speculation_says_what_mlx_lm_says(target, other, m, same):
    """Flags too, where mlx-lm is right about them."""
    tokenizer, draft = make_tokenizer(), target if same else other
    for limit in (1, 2, 6, 13):
        options = {"draft_model": draft.model, "num_draft_tokens": m}
        mine = ask_ours(target, tokenizer, PROMPT, max_tokens=limit, **options)
        theirs = ask_mlx_lm(target, tokenizer, PROMPT, max_tokens=limit, **options)
        assert show(mine) == show(theirs)
        assert tokens_of(mine) == tokens_of(ask_mlx_lm(target, tokenizer, PROMPT, max_tokens=limit))


@pytest.mark.parametrize("index", [0, 3, 4])
def test_an_end_of_text_is_reported_as_there(target, index):
    said = tokens_of(ask_mlx_lm(target, make_tokenizer(), PROMPT, max_tokens=12))
    tokenizer = make_tokenizer(eos=CHARACTERS[said[index]])
    theirs = ask_mlx_lm(target, tokenizer, PROMPT, max_tokens=12)
    assert theirs[-1].finish_reason == "stop"
    for options in ({}, {"draft_model": target.model}, {"draft_model": target.model, "num_draft_tokens": 8}):
        mine = ask_ours(target, tokenizer, PROMPT, max_tokens=12, **options)
        assert [(r.text, r.token, r.finish_reason) for r in mine] == [
            (r.text, r.token, r.finish_reason) for r in theirs
        ]


def test_text_ids_and_arrays_are_prompts(target):
    import mlx.core as mx

    tokenizer = make_tokenizer()
    text = "".join(CHARACTERS[token] for token in PROMPT)
    expected = show(ask_mlx_lm(target, tokenizer, text, max_tokens=6))
    for prompt in (text, PROMPT, mx.array(PROMPT)):
        assert show(ask_ours(target, tokenizer, prompt, max_tokens=6)) == expected
    said = "".join(entry[0] for entry in expected)
    assert ours.generate(target.model, tokenizer, text, max_tokens=6) == said


def test_a_bare_tokenizer_is_wrapped(target):
    bare = make_tokenizer()._tokenizer
    assert len(ask_ours(target, bare, PROMPT, max_tokens=3)) == 3


@pytest.mark.parametrize("options", [{"kv_bits": 8}, {"kv_bits": 4, "kv_group_size": 32, "quantized_kv_start": 11}])
def test_quantised_kv_acts_as_there(options):
    target = tiny_llama(3, hidden=256, heads=4, kv_heads=2)
    options = {"quantized_kv_start": 0, "max_tokens": 14, **options}
    theirs = tokens_of(ask_mlx_lm(target, make_tokenizer(), PROMPT, **options))
    assert tokens_of(ask_ours(target, make_tokenizer(), PROMPT, **options)) == theirs
    assert tokens_of(ask_ours(target, make_tokenizer(), PROMPT, draft_model=target.model, **options)) == theirs


def test_a_bounded_window_acts_as_there():
    target = make_qwen(4)
    options = {"max_kv_size": 12, "max_tokens": 20}
    theirs = tokens_of(ask_mlx_lm(target, make_tokenizer(), PROMPT, **options))
    assert tokens_of(ask_ours(target, make_tokenizer(), PROMPT, **options)) == theirs
    assert theirs != tokens_of(ask_mlx_lm(target, make_tokenizer(), PROMPT, max_tokens=20))


@pytest.mark.parametrize("step", [1, 3, 7, 2048])
def test_progress_is_told_as_there(target, step):
    told: list[list[tuple[int, int]]] = [[], []]
    for ask, calls in zip((ask_ours, ask_mlx_lm), told, strict=True):
        ask(
            target,
            make_tokenizer(),
            PROMPT,
            max_tokens=2,
            prefill_step_size=step,
            prompt_progress_callback=lambda done, total, calls=calls: calls.append((done, total)),
        )
    assert told[0] == told[1]


def test_no_limit_ends_where_the_positions_end():
    target = tiny_llama(1, max_positions=20)
    responses = ask_ours(target, make_tokenizer(), PROMPT, max_tokens=-1)
    assert tokens_of(responses) == tokens_of(ask_mlx_lm(target, make_tokenizer(), PROMPT, max_tokens=12))
    assert responses[-1].finish_reason == "length"


def test_a_given_stream_is_used(target):
    import mlx.core as mx

    stream = mx.new_thread_local_stream(mx.default_device())
    expected = show(ask_ours(target, make_tokenizer(), PROMPT, max_tokens=4))
    assert show(ask_ours(target, make_tokenizer(), PROMPT, max_tokens=4, stream=stream)) == expected


# Refusals, all of them by the call itself


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_tokens": 0}, ValueError, "max_tokens is 0; it must be 1 or more, or -1 for no limit"),
        ({"max_tokens": -2}, UsageError, "max_tokens is -2"),
        ({"prefill_step_size": 0}, UsageError, "prefill_step_size is 0"),
        ({"num_draft_tokens": -1}, UsageError, "num_draft_tokens is -1"),
        ({"kv_bits": 5}, UsageError, "kv_bits is 5"),
        ({"input_embeddings": [[0.0]]}, Unsupported, "input_embeddings is refused"),
        ({"sampler": max}, Unsupported, "the sampler max is refused: what it draws from cannot be known"),
        ({"prompt": []}, ValueError, "the prompt is empty"),
        ({"prompt": [64]}, UsageError, "prompt token 64 is not in the model's vocabulary of 64"),
        ({"prompt": [1] * 512}, Unsupported, "the prompt has 512 tokens, the target positions for 512"),
        ({"temp": 0.7}, TypeError, "temp"),
        ({"max_kv_size": 8, "prompt_cache": []}, Unsupported, "max_kv_size is refused with a prompt_cache"),
        ({"max_kv_size": 8, "draft_model": "same"}, Unsupported, "max_kv_size is refused with a draft_model"),
    ],
)
def test_what_cannot_act_is_refused_by_name(target, options, error, message):
    prompt = options.pop("prompt", PROMPT)
    if options.get("draft_model") == "same":
        options["draft_model"] = target.model
    with pytest.raises(error, match=message):
        ours.stream_generate(target.model, make_tokenizer(), prompt, **options)


def test_a_window_is_refused_by_a_model_that_makes_its_own_cache():
    target = tiny_llama(1, sliding_window=8)
    with pytest.raises(Unsupported, match="max_kv_size is refused: this model makes its own cache"):
        ours.stream_generate(target.model, make_tokenizer(), PROMPT, max_kv_size=8)


def test_a_draft_model_with_too_few_ids_is_refused(target):
    small = tiny_llama(2, vocab_size=48)
    with pytest.raises(Unsupported, match="the draft model has 48 token ids and the tokenizer 64"):
        ours.stream_generate(target.model, make_tokenizer(), PROMPT, draft_model=small.model)


def test_an_unknown_option_is_refused_by_generate_too(target):
    with pytest.raises(TypeError, match="top_p"):
        ours.generate(target.model, make_tokenizer(), PROMPT, top_p=0.9)


# Records


def test_what_ran_is_recorded(target):
    recorder = Recorder()
    cache = make_caches(target, target)
    options = {"draft_model": target.model, "prompt_cache": cache, "max_tokens": 5, "recorder": recorder}
    ask_ours(target, make_tokenizer(), PROMPT, **options)
    mine = ask_ours(target, make_tokenizer(), SECOND, **options)
    starts = [r for r in recorder.records if isinstance(r, GenerationRecord)]
    described = [(r.arm, r.prompt_tokens, r.cached_tokens, r.max_tokens) for r in starts]
    assert described == [("assistant m=2", 8, 0, 5), ("assistant m=2", 8 + 5 + 3, 8 + 5, 5)]
    rounds = [r for r in recorder.records if isinstance(r, RoundRecord) and r.generation_id == starts[1].generation_id]
    assert sum(r.committed for r in rounds) == len(mine) == 5
    ends = [r.finish_reason for r in recorder.records if isinstance(r, GenerationEnd)]
    assert ends == ["length", "length"]


def test_tokens_nobody_told_are_no_tokens_in_a_record(target):
    recorder = Recorder(record_text=True)
    cache = make_caches(target)
    options = {"prompt_cache": cache, "max_tokens": 2}
    ask_ours(target, make_tokenizer(), PROMPT, **options)
    ask_ours(target, make_tokenizer(), SECOND, recorder=recorder, **options)
    [start] = [r for r in recorder.records if isinstance(r, GenerationRecord)]
    assert start.prompt_ids == [-1] * 10 + SECOND


def test_the_environment_names_a_store(tmp_path):
    code = (
        "from runtime.compat.mlx_lm import generate\n"
        "from tests.models import tiny_llama\n"
        "from tests.runtime.mlx_lm_calls import make_tokenizer\n"
        "print(generate(tiny_llama(1).model, make_tokenizer(), [1, 2, 3], max_tokens=4))"
    )
    done = run_python(code, env={"ROUNDSCOPE_STORE": str(tmp_path), "ROUNDSCOPE_BLAS": "stock"})
    assert (done.returncode, len(done.stdout.strip())) == (0, 4), done.stderr
    [journal] = (tmp_path / "journal").iterdir()
    kinds = [json.loads(line)["type"] for line in journal.read_text().splitlines()]
    assert kinds == ["journal", "generation", *["round"] * 4, "generation_end"]


def test_arguments_and_defaults_are_those_of_the_installed_mlx_lm():
    """Whatever one more version takes has to act here or be refused. `stream` is made when it runs."""
    theirs = importlib.import_module("mlx_lm.generate")

    def read(function: Any) -> dict[str, Any]:
        return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}

    own = read(theirs.stream_generate) | read(theirs.generate_step)
    drafting = read(theirs.speculative_generate_step)
    expected = own | {"num_draft_tokens": drafting["num_draft_tokens"], "stream": None, "recorder": None}
    del expected["kwargs"]
    assert read(ours.stream_generate) == expected
    differing = {name for name, default in drafting.items() if name in own and default != own[name]}
    assert differing - {"draft_model", "stream"} == {"prefill_step_size"}


def test_importing_the_replacement_loads_no_mlx():
    code = "import sys, runtime.compat.mlx_lm; print([n for n in ('mlx', 'mlx_lm', 'numpy') if n in sys.modules])"
    assert run_python(code).stdout.strip() == "[]"


def test_rates_count_the_first_round_as_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx-lm's rate leaves out the first round's time and keeps its tokens: many in one round are infinitely fast."""
    import mlx.core as mx

    moments = iter([0.0, 3.0, 3.0, 3.0, 3.0, 3.0])
    monkeypatch.setattr(responses.time, "perf_counter", lambda: next(moments))
    rows = deque(mx.zeros((1, 64)) for _ in range(4))
    counted = responses._Counted(make_tokenizer(), rows, 10, None)
    open_round = OpenRound(0, lambda: 0)
    open_round.tokens, open_round.accepted = [5, 9, 33, 5], 3
    closed = msgspec.structs.replace(open_round.close(), t_round_ns=1_000_000_000)
    rates = [(one.prompt_tps, one.generation_tokens, one.generation_tps) for one in counted.split(closed, None)]
    assert rates == [(5.0, n, float(n)) for n in (1, 2, 3, 4)]
