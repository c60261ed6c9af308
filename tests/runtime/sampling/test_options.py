"""p from logits: held against mlx-lm's samplers, and against the options' definitions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.sampling import Sampling, draw, make_sampling

LOGITS = st.lists(st.integers(-60, 60), min_size=2, max_size=12, unique=True).map(lambda row: [v / 8 for v in row])
OPTIONS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.25, 0.7, 1.0, 3.0]),
        "top_k": st.sampled_from([0, 1, 2, 3, 50]),
        "top_p": st.sampled_from([0.05, 0.31, 0.77, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.013, 0.21, 1.0]),
    }
)


@pytest.fixture(autouse=True, scope="module")
def _uncompiled() -> Iterator[None]:
    """mlx-lm's filters are compiled anew for every value of an option, which takes seconds."""
    mx.disable_compile()
    yield
    mx.enable_compile()


def _as_mlx_lm(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """The probabilities that mlx-lm's `make_sampler` draws from: the same filters in the same order."""
    from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

    row = mx.array([logits])
    row = row - mx.logsumexp(row, axis=-1, keepdims=True)
    if top_p < 1:
        row = apply_top_p(row, top_p)
    if min_p:
        row = apply_min_p(row, min_p)
    if 0 < top_k < len(logits):
        row = apply_top_k(row, top_k)
    probabilities: Any = mx.softmax(row * (1 / temperature), axis=-1).tolist()[0]
    return list(probabilities)


def _is_at_an_edge(logits: list[float], top_p: float, min_p: float) -> bool:
    """Whether rounding may decide on a token: a mass or a share that is all but the limit."""
    total = sum(map(math.exp, logits))
    ordered = sorted((math.exp(value) / total for value in logits), reverse=True)
    masses = [sum(ordered[:n]) for n in range(len(ordered) + 1)]
    shares = [value / ordered[0] for value in ordered]
    return any(abs(mass - top_p) < 1e-5 for mass in masses if top_p < 1) or any(
        abs(share / min_p - 1) < 1e-5 for share in shares[1:] if min_p
    )


@settings(max_examples=150, deadline=None)
@given(LOGITS, OPTIONS)
def test_p_is_what_mlx_lm_draws_from(logits: list[float], options: dict[str, Any]) -> None:
    """vllm#18902: every option acts."""
    if _is_at_an_edge(logits, options["top_p"], options["min_p"]):
        return
    p: Any = Sampling(**options).distribution(mx.array([logits])).tolist()[0]
    assert p == pytest.approx(_as_mlx_lm(logits, **options), abs=1e-6)
    assert sum(p) == pytest.approx(1, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(LOGITS, OPTIONS)
def test_what_is_kept_follows_from_the_definitions(logits: list[float], options: dict[str, Any]) -> None:
    if _is_at_an_edge(logits, options["top_p"], options["min_p"]):
        return
    p: Any = Sampling(**options).distribution(mx.array([logits])).tolist()[0]
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    total = sum(map(math.exp, logits))
    kept: list[int] = []
    mass = 0.0
    for place, token in enumerate(order):
        share = math.exp(logits[token] - logits[order[0]])
        if mass >= options["top_p"] or (options["top_k"] and place >= options["top_k"]) or share < options["min_p"]:
            break
        kept.append(token)
        mass += math.exp(logits[token]) / total
    weights = {token: math.exp((logits[token] - logits[order[0]]) / options["temperature"]) for token in kept}
    wanted = [weights.get(token, 0.0) / sum(weights.values()) for token in range(len(logits))]
    assert p == pytest.approx(wanted, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(-30, 30, width=32), min_size=5, max_size=5), min_size=2, max_size=4), OPTIONS)
def test_a_row_does_not_depend_on_its_block(rows: list[list[float]], options: dict[str, Any]) -> None:
    """What verification computes for a block is bitwise what ordinary decoding computes for a row."""
    sampling = Sampling(**options)
    together = sampling.distribution(mx.array(rows)).tolist()
    assert together == [sampling.distribution(mx.array([row])).tolist()[0] for row in rows]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_p_is_in_float32_and_the_logits_stay_as_they_are(dtype: mx.Dtype) -> None:
    logits = mx.array([[1.0, 2.0, 3.0]]).astype(dtype)
    p = Sampling(0.5, top_k=2, top_p=0.9, min_p=0.1).distribution(logits)
    assert p.dtype == mx.float32
    assert logits.tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_infinite_logits_force_and_forbid(options: dict[str, Any]) -> None:
    """A grammar's processor says so of a token."""
    rows = mx.array([[0.0, math.inf, 5.0], [0.0, -math.inf, -math.inf]])
    assert Sampling(0.7, **options).distribution(rows).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("temperature", [1e-30, 1e30])
def test_extreme_temperatures(temperature: float) -> None:
    p: Any = Sampling(temperature).distribution(mx.array([[1.0, 3.0, 2.0]])).tolist()[0]
    assert p == pytest.approx([0, 1, 0] if temperature < 1 else [1 / 3] * 3)


def test_ties_are_kept_together() -> None:
    logits = mx.array([[1.0, 2.0, 2.0, 2.0, 0.0]])
    for options in ({"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}):
        p: Any = Sampling(1.0, **options).distribution(logits).tolist()[0]
        assert p == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0])


def test_greedy_has_no_sampling_and_a_missing_seed_is_a_fresh_one() -> None:
    assert make_sampling() is None
    one, other = make_sampling(0.5), make_sampling(0.5)
    assert one is not None
    assert other is not None
    assert one.seed != other.seed
    assert make_sampling(0.5, 3, 0.9, 0.1, 7) == Sampling(0.5, 3, 0.9, 0.1, 7)


def test_streams_and_positions_and_seeds_have_numbers_of_their_own() -> None:
    keys = {
        tuple(key)
        for seed in (0, 1, 11)
        for stream in ("target", "drafter")
        for key in Sampling(1.0, seed=seed).keys(stream, range(12)).tolist()  # type: ignore[arg-type, union-attr]
    }
    assert len(keys) == 3 * 2 * 12
    chances = [chance for seed in (0, 1, 11) for chance in Sampling(1.0, seed=seed).chances(range(200))]
    assert len(set(chances)) == 600
    assert 0.45 < sum(chances) / 600 < 0.55
    assert Sampling(1.0, seed=5).chances(range(3, 6)) == Sampling(1.0, seed=5).chances(range(6))[3:]


def test_a_draw_never_takes_what_has_no_weight() -> None:
    weights = mx.zeros((1, 5000))
    weights[0, 4321] = 1e-20
    for seed in range(20):
        assert draw(weights, mx.random.key(seed)).tolist() == [4321]
