"""The residual rule and E[C] in fractions: values worked out by hand, and that what is wrong would be seen."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.analysis.speculation import (
    FIXTURES,
    MIXTURE,
    Mixture,
    enumerate_block,
    enumerate_committed,
    enumerate_outcomes,
    expect_committed,
    list_pairs,
    make_fixture,
    measure_distance,
    mix,
    parse_distribution,
)

F = Fraction


@st.composite
def distributions(draw: st.DrawFn, size: int = 4) -> tuple[Fraction, ...]:
    """A distribution over a few tokens, zeros among them."""
    weights = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any))
    return tuple(F(weight, sum(weights)) for weight in weights)


def test_the_fixtures_by_hand() -> None:
    accepted, corrected = enumerate_outcomes(FIXTURES["general"].p, FIXTURES["general"].q)
    assert accepted == (F(1, 8), F(1, 4), F(1, 8), F(1, 8))
    assert corrected == (F(3, 8), 0, 0, 0)
    accepted, corrected = enumerate_outcomes(FIXTURES["zero support"].p, FIXTURES["zero support"].q)
    assert accepted == (0, F(1, 3), 0)
    assert corrected == (F(1, 2), F(1, 6), 0)
    accepted, corrected = enumerate_outcomes(FIXTURES["deterministic proposal"].p, FIXTURES["deterministic proposal"].q)
    assert accepted == (0, F(1, 3), 0)
    assert corrected == (F(1, 2), 0, F(1, 6))
    accepted, corrected = enumerate_outcomes(FIXTURES["equal distributions"].p, FIXTURES["equal distributions"].q)
    assert accepted == FIXTURES["equal distributions"].p
    assert corrected == (0, 0, 0)


@given(p=distributions(), q=distributions())
def test_the_output_is_the_target_and_acceptance_follows_the_distance(
    p: tuple[Fraction, ...], q: tuple[Fraction, ...]
) -> None:
    accepted, corrected = enumerate_outcomes(p, q)
    assert tuple(a + b for a, b in zip(accepted, corrected, strict=True)) == p
    assert sum(accepted) == 1 - measure_distance(p, q)


def test_expected_committed_tokens() -> None:
    assert expect_committed(F(1, 2), 4) == F(31, 16)
    assert expect_committed(F(0), 4) == 1
    assert expect_committed(F(1), 4) == 5
    assert [enumerate_committed(F(1, 3), m) for m in range(3)] == [1, F(4, 3), F(13, 9)]


@given(numerator=st.integers(0, 7), m=st.integers(0, 6))
def test_the_formula_is_what_enumeration_gives_and_the_closed_form(numerator: int, m: int) -> None:
    alpha = F(numerator, 7)
    expected = F(m + 1) if alpha == 1 else (1 - alpha ** (m + 1)) / (1 - alpha)
    assert expect_committed(alpha, m) == enumerate_committed(alpha, m) == expected


def test_the_mixture_is_the_target_for_every_latent() -> None:
    target = {(0, 0): F(1, 6), (0, 1): F(1, 2), (1, 0): F(4, 15), (1, 1): F(1, 15)}
    assert list_pairs(MIXTURE) == target
    assert [enumerate_block(MIXTURE, latent) for latent in (0, 1)] == [target, target]
    assert mix(MIXTURE) == target


def test_proposals_verified_by_another_latents_probabilities_would_be_seen() -> None:
    """Drawn given one latent and judged by the other's q: the first token no longer has the target's law."""
    (_, drawn, _), (_, judged, _) = MIXTURE.latents
    p = MIXTURE.first
    accepted = [drawn[y] * min(F(1), p[y] / judged[y]) for y in (0, 1)]
    excess = [max(a - b, F(0)) for a, b in zip(p, judged, strict=True)]
    output = [a + (1 - sum(accepted)) * e / sum(excess) for a, e in zip(accepted, excess, strict=True)]
    assert output != list(p)


def test_mixtures_of_other_weights_hold_as_well() -> None:
    for weight, latent in product((F(0), F(1, 5), F(1)), (0, 1)):
        (_, *first), (_, *second) = MIXTURE.latents
        other = Mixture(MIXTURE.first, MIXTURE.second, ((weight, *first), (1 - weight, *second)))  # type: ignore[arg-type]
        assert mix(other) == enumerate_block(other, latent) == list_pairs(MIXTURE)


@pytest.mark.parametrize("text", ["1/2 1/3", "3/2 -1/2"])
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no distribution"):
        parse_distribution(text)


def test_distributions_over_different_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="p has 2 tokens and q 1"):
        make_fixture("1/2 1/2", "1")
