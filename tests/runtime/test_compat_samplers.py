"""mlx-lm's samplers in the drop-in: read back, drawn from, repeated by MLX's seed, or refused."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from runtime.compat import mlx_lm as ours
from runtime.compat.samplers import read_sampler
from runtime.sampling import Sampling
from runtime.targets import MlxTarget
from telemetry.errors import Unsupported
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord
from tests.models import tiny_llama
from tests.runtime.mlx_lm_calls import PROMPT, ask_ours, make_tokenizer, tokens_of
from tests.runtime.sampling.laws import LIMIT, deviate
from tests.runtime.scripted import rows


@pytest.fixture(scope="module")
def target() -> MlxTarget:
    return tiny_llama(1)


SAMPLERS: list[dict[str, Any]] = [
    {"temp": 0.5},
    {"temp": 1.3, "top_p": 0.8},
    {"temp": 0.9, "min_p": 0.1, "top_k": 9},
    {"temp": 1.0, "top_p": 0.95, "min_p": 0.02, "top_k": 20},
]


@pytest.mark.parametrize("options", SAMPLERS)
def test_a_sampler_of_mlx_lms_is_read_back(options):
    """And draws from the distribution that it stands for, a token of whose support every token is."""
    from mlx_lm.sample_utils import make_sampler

    mx.random.seed(3)
    found = read_sampler(make_sampler(**options))
    wanted = {"temperature": options["temp"], **{key: value for key, value in options.items() if key != "temp"}}
    assert found == Sampling(**wanted, seed=found.seed)
    mx.random.seed(3)
    assert read_sampler(make_sampler(**options)).seed == found.seed
    assert read_sampler(make_sampler(**options)).seed != found.seed


@pytest.mark.parametrize("drafted", [False, True])
def test_a_sampler_draws_what_mlx_lm_would(target, drafted):
    """Tokens have the probabilities that mlx-lm's sampler gives them; `logprobs` are those of the model."""
    from mlx_lm.sample_utils import make_sampler

    options: dict[str, Any] = {"draft_model": tiny_llama(2).model, "num_draft_tokens": 3} if drafted else {}
    recorder, count = Recorder(), 300
    mx.random.seed(5)
    sampler = make_sampler(temp=0.7, top_k=4)
    responses = ask_ours(
        target, make_tokenizer(), PROMPT, max_tokens=count, sampler=sampler, recorder=recorder, **options
    )
    expected = []
    for response in responses:
        row = np.array(response.logprobs, np.float64)
        kept = np.where(row >= np.sort(row)[-4], np.exp(row / 0.7), 0.0)
        expected.append(list(kept / kept.sum()))
    assert deviate(tokens_of(responses), expected) < LIMIT
    assert deviate([0 if p[token] == max(p) else 1 for token, p in zip(tokens_of(responses), expected, strict=True)],
                   [[max(p), 1 - max(p)] for p in expected]) < LIMIT  # fmt: skip
    assert any(r.from_draft for r in responses) == drafted
    [record] = rows(recorder.records, GenerationRecord)
    assert (record.policy, record.temperature, record.top_k) == ("stochastic", 0.7, 4)
    assert (record.coupling, record.q_source) == (("residual", "drafter") if drafted else (None, None))


def test_mlx_random_seed_repeats_a_generation(target):
    from mlx_lm.sample_utils import make_sampler

    said = []
    for seed in (1, 1, 2):
        mx.random.seed(seed)
        options = {"draft_model": tiny_llama(2).model, "sampler": make_sampler(temp=1.0)}
        said.append(tokens_of(ask_ours(target, make_tokenizer(), PROMPT, max_tokens=20, **options)))
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"xtc_probability": 0.5}, "the sampler's XTC is refused: it removes tokens at random"),
        ({"min_p": 0.1, "min_tokens_to_keep": 2}, "min_tokens_to_keep is refused"),
    ],
)
def test_a_sampler_without_a_counterpart_is_refused(target, options, message):
    from mlx_lm.sample_utils import make_sampler

    with pytest.raises(Unsupported, match=message):
        ours.stream_generate(target.model, make_tokenizer(), PROMPT, sampler=make_sampler(temp=0.5, **options))
