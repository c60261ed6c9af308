"""The rule of stochastic verification by exact enumeration: all paths, in fractions; and that the arrays follow it."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product

import mlx.core as mx
import numpy as np
import pytest

from runtime.analysis.speculation import FIXTURES, MIXTURE, enumerate_outcomes, list_pairs
from runtime.speculative.stochastic import settle
from runtime.speculative.verification import find_residual, is_accepted
from tests.runtime.sampling.laws import MUTANTS, Conditional, Path, Rule, chain, enumerate_round

CASES = [(vocab, m, seed) for vocab in (2, 3) for m in (1, 2, 3) for seed in range(2 if vocab == 3 else 4)]


def _histories(vocab: int, length: int) -> list[Path]:
    return [path for n in range(length + 1) for path in product(range(vocab), repeat=n)]


def _invent(vocab: int, length: int, seed: int, *, full: bool = False) -> Conditional:
    """Distributions in quarters, with zeros unless full, that depend on everything said before."""
    chance = random.Random(f"{vocab} {length} {seed}")
    table = {}
    for path in _histories(vocab, length):
        weights = [0] * vocab
        for _ in range(4):
            weights[chance.randrange(vocab)] += 1
        weights = [weight + full for weight in weights]
        table[path] = [Fraction(weight, sum(weights)) for weight in weights]
    return table


@pytest.mark.parametrize(("vocab", "m", "seed"), CASES)
def test_the_output_is_the_targets(vocab: int, m: int, seed: int) -> None:
    """Every path of a block over a small vocabulary, zero masses on both sides among them, adds up to p's law."""
    p, q = _invent(vocab, m, seed), _invent(vocab, m, seed + 100)
    law = {path: mass for path, mass in chain(p, m + 1).items() if mass}
    assert enumerate_round(p, q, m, Rule()) == law


@pytest.mark.parametrize(("vocab", "m", "seed"), CASES)
def test_a_point_mass_is_a_distribution_too(vocab: int, m: int, seed: int) -> None:
    p, block = _invent(vocab, m, seed), random.Random(seed).choices(range(vocab), k=m)
    q = {path: [Fraction(token == block[min(len(path), m - 1)]) for token in range(vocab)] for path in p}
    assert enumerate_round(p, q, m, Rule()) == {path: mass for path, mass in chain(p, m + 1).items() if mass}


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_gives_another_law(name: str) -> None:
    """DeepSpec#31, transformers PR#33534: the same enumeration, so a rule that is wrong cannot pass it."""
    m = 2
    for seed in range(3):
        p, q = _invent(3, m, seed, full=True), _invent(3, m, seed + 100, full=True)
        assert enumerate_round(p, q, m, Rule()) == chain(p, m + 1)
        assert enumerate_round(p, q, m, MUTANTS[name]) != chain(p, m + 1), name


@pytest.mark.parametrize("name", FIXTURES)
def test_the_fixtures_of_analyze(name: str) -> None:
    """A step's accepted and corrected masses are those that `roundscope analyze` publishes."""
    p, q = FIXTURES[name].p, FIXTURES[name].q
    table = dict.fromkeys(_histories(len(p), 1), p)
    law = enumerate_round(table, dict.fromkeys(table, q), 1, Rule())
    assert law == {path: mass for path, mass in chain(table, 2).items() if mass}
    accepted, corrected = enumerate_outcomes(p, q)
    assert [a + c for a, c in zip(accepted, corrected, strict=True)] == list(p)
    residual = find_residual(np.array(p, dtype=object), np.array(q, dtype=object))
    if any(corrected):
        assert [Fraction(value) / residual.sum() for value in residual] == [
            value / sum(corrected) for value in corrected
        ]
    else:
        assert list(residual) == list(p)  # of no mass, so that nothing can be rejected; p stands in


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("name", FIXTURES)
def test_the_fixtures_of_analyze_in_longer_blocks(name: str, m: int) -> None:
    """Every path of a block of which each position has the fixture's p and q."""
    p, q = FIXTURES[name].p, FIXTURES[name].q
    table = dict.fromkeys(_histories(len(p), m), p)
    law = enumerate_round(table, dict.fromkeys(table, q), m, Rule())
    assert law == {path: mass for path, mass in chain(table, m + 1).items() if mass}


@pytest.mark.parametrize("name", FIXTURES)
def test_the_fixtures_of_analyze_by_the_arrays(name: str) -> None:
    """What `settle` accepts and draws the rest from, over every token and a grid of chances: the published masses."""
    p, q = FIXTURES[name].p, FIXTURES[name].q
    steps = 720
    accepted, corrected = np.zeros(len(p)), np.zeros(len(p))
    rows = mx.array([[float(value) for value in p]] * 2), mx.array([[float(value) for value in q]])
    for token, mass in enumerate(q):
        for k in range(steps) if mass else ():
            found = settle(rows[0], mx.array([token]), rows[1], mx.array([(k + 0.5) / steps]))
            [count], [weights], [is_sound] = (array.tolist() for array in found)
            share = float(mass) / steps
            if count:
                accepted[token] += share
            else:
                corrected += share * np.array(weights) / sum(weights)
            assert is_sound
    wanted = enumerate_outcomes(p, q)
    assert accepted == pytest.approx([float(value) for value in wanted[0]], abs=1e-6)
    assert corrected == pytest.approx([float(value) for value in wanted[1]], abs=1e-6)


def test_the_mixture_of_analyze() -> None:
    """A block of two whose q was drawn with a latent, fixed for the round: by each latent the law is the target's."""
    p = {(): MIXTURE.first, **{(a,): MIXTURE.second[a] for a in (0, 1)}}
    last = [Fraction(1, 2)] * 2
    p |= dict.fromkeys(product((0, 1), repeat=2), last)
    for _, first, second in MIXTURE.latents:
        law = enumerate_round(p, {(): first, (0,): second, (1,): second}, 2, Rule())
        pairs = {pair: law[*pair, 0] + law[*pair, 1] for pair in product((0, 1), repeat=2)}
        assert pairs == list_pairs(MIXTURE)


@pytest.mark.parametrize(("vocab", "m", "seed"), CASES)
def test_the_arrays_follow_the_rule(vocab: int, m: int, seed: int) -> None:
    """For every block that q can draw, at chances on both sides of every threshold: as many accepted as by fractions,
    and the same weights for the token that follows.
    """
    p, q = _invent(vocab, m, seed), _invent(vocab, m, seed + 100)
    for block in product(range(vocab), repeat=m):
        rows_p = [p[block[:i]] for i in range(m + 1)]
        rows_q = [q[block[:i]] for i in range(m)]
        masses = [(rows_p[i][token], rows_q[i][token]) for i, token in enumerate(block)]
        if not all(b for _, b in masses):
            continue
        arrays = [mx.array([[float(value) for value in row] for row in rows]) for rows in (rows_p, rows_q)]
        for sides in product((Fraction(-1, 100), Fraction(1, 100)), repeat=m):
            chances = [
                min(max(a / b + side, Fraction(0)), Fraction(99, 100))
                for (a, b), side in zip(masses, sides, strict=True)
            ]
            stands = [bool(is_accepted(a, b, chance)) for (a, b), chance in zip(masses, chances, strict=True)]
            count = next((i for i, each in enumerate(stands) if not each), m)
            wanted = np.array(rows_p[count], dtype=object)
            if count < m:
                wanted = find_residual(wanted, np.array(rows_q[count], dtype=object))
            before = [array.tolist() for array in arrays]
            found = settle(arrays[0], mx.array(block), arrays[1], mx.array([float(chance) for chance in chances]))
            accepted, weights, is_sound = (array.tolist() for array in found)
            assert (accepted, is_sound) == ([count], [1])
            assert weights == [pytest.approx([float(value) for value in wanted], abs=1e-7)]
            assert [array.tolist() for array in arrays] == before  # p is never changed in place


def test_a_point_mass_needs_no_q() -> None:
    p = mx.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.0, 1.0, 0.0]])
    tokens, chances = mx.array([0, 2]), mx.array([0.4, 0.9])
    for q in (None, mx.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])):
        accepted, weights, is_sound = settle(p, tokens, q, chances)
        assert (accepted.tolist(), is_sound.tolist()) == ([1], [1])
        assert weights.tolist() == [pytest.approx([0.1, 0.1, 0.0])]
    assert settle(p, tokens, None, mx.array([0.4, 0.7]))[1].tolist() == [[0.0, 1.0, 0.0]]
    assert settle(p, mx.array([0]), mx.array([[0.0, 0.5, 0.5]]), mx.array([0.5]))[2].tolist() == [0]


def test_a_residual_of_no_mass_falls_back_to_p() -> None:
    """p is q but for rounding, and the chance so close to 1 that the token is rejected nevertheless."""
    p = mx.array([[0.25, 0.25, 0.5], [1.0, 0.0, 0.0]])
    q = mx.array([[0.25 + 2**-24, 0.25 + 2**-24, 0.5]])
    accepted, weights, _ = settle(p, mx.array([0]), q, mx.array([1 - 2**-24]))
    assert accepted.tolist() == [0]
    assert weights.tolist() == [[0.25, 0.25, 0.5]]
