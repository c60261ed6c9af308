"""Latent-conditioned proposals: z drawn first, the block from q_z, judged by q_z. Exactly by enumeration, then the
product's drafter with a small real next-concept model and a small real target, by chi-square.

The mutants put other numbers in q's place: the probability of the latent itself, alone or times q_z, and what each
position's q is over all latents, as if the positions did not share one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from runtime.analysis.speculation import MIXTURE, list_pairs
from runtime.drafters.ncm import NcmSampler
from runtime.generate import speculate
from runtime.protocols import Proposal
from runtime.sampling import Sampling
from runtime.speculative.stochastic import settle
from runtime.speculative.verification import find_residual, is_accepted
from tests.models import tiny_llama
from tests.runtime.ncm.text.tiny_text import make_text_model
from tests.runtime.sampling.laws import LIMIT, Conditional, Path, Rule, deviate, enumerate_round
from tests.runtime.sampling.test_law import _score

TOKENS = (0, 1)
P: Conditional = {(): MIXTURE.first, (0,): MIXTURE.second[0], (1,): MIXTURE.second[1]} | dict.fromkeys(
    product(TOKENS, repeat=2), (Fraction(1, 2), Fraction(1, 2))
)


def _claim_latent(z: int) -> Conditional:
    weight = MIXTURE.latents[z][0]
    return dict.fromkeys(P, (weight, weight))


def _claim_joint(z: int) -> Conditional:
    weight, first, second = MIXTURE.latents[z]
    return {path: tuple(weight * value for value in (second if path else first)) for path in P}


def _claim_marginal(z: int) -> Conditional:
    rows = [[sum(latent[0] * latent[i][token] for latent in MIXTURE.latents) for token in TOKENS] for i in (1, 2)]
    return {path: rows[bool(path)] for path in P}


def _claim_own(z: int) -> Conditional:
    _, first, second = MIXTURE.latents[z]
    return {path: second if path else first for path in P}


def _enumerate(claim: Any) -> dict[Path, Fraction]:
    """The law of the first two tokens, over the draw of z, when verification is given `claim(z)` as q."""
    law: dict[Path, Fraction] = defaultdict(Fraction)
    for z, (weight, *_) in enumerate(MIXTURE.latents):
        own, claimed = _claim_own(z), claim(z)
        drawn = {id(claimed[path]): own[path] for path in claimed}
        rule = Rule(drawn_from=lambda q, drawn=drawn: drawn[id(q)])
        for path, mass in enumerate_round(P, claimed, 2, rule).items():
            law[path[:2]] += weight * mass
    return dict(law)


def test_the_mixture_over_latents_is_the_target() -> None:
    assert _enumerate(_claim_own) == list_pairs(MIXTURE)


@pytest.mark.parametrize("claim", [_claim_latent, _claim_joint, _claim_marginal])
def test_every_other_q_gives_another_law(claim: Any) -> None:
    law = _enumerate(claim)
    assert sum(law.values()) == 1
    assert law != list_pairs(MIXTURE)


def test_the_arrays_follow_the_rule_for_either_latent() -> None:
    """Every block of every latent, at chances on both sides of every threshold, through the product's `settle`: the law
    that its verdicts add up to, each side weighed by its exact share, is the target's.
    """
    law: dict[Path, Fraction] = defaultdict(Fraction)
    for weight, first, second in MIXTURE.latents:
        for block in product(TOKENS, repeat=2):
            rows_p, rows_q = [P[()], P[block[:1]], P[block]], [first, second]
            p, q = (mx.array([[float(value) for value in row] for row in rows]) for rows in (rows_p, rows_q))
            ratios = [min(Fraction(1), rows_p[i][token] / rows_q[i][token]) for i, token in enumerate(block)]
            for stands in product((True, False), repeat=2):
                share = Fraction(1)
                for ratio, stood in zip(ratios, stands, strict=True):
                    share *= ratio if stood else 1 - ratio
                if not share:
                    continue
                chances = [
                    float(r) / 2 if stood else (float(r) + 1) / 2 for r, stood in zip(ratios, stands, strict=True)
                ]
                accepted, weights, is_sound = settle(p, mx.array(block), q, mx.array(chances))
                [count] = accepted.tolist()
                assert count == next((i for i, stood in enumerate(stands) if not stood), 2)
                assert is_sound.tolist() == [1]
                exact = np.array(rows_p[count], dtype=object)
                exact = exact if count == 2 else find_residual(exact, np.array(rows_q[count], dtype=object))
                assert weights.tolist() == [pytest.approx([float(value) for value in exact], abs=1e-6)]
                mass = weight * first[block[0]] * second[block[1]] * share
                for token in TOKENS:
                    said = (*block[:count], token)[:2]
                    here = mass * exact[token] / exact.sum()
                    for last in TOKENS if len(said) == 1 else (None,):
                        path = said if last is None else (*said, last)
                        law[path] += here * (1 if last is None else P[said][last])
    assert dict(law) == list_pairs(MIXTURE)
    assert is_accepted(Fraction(1, 2), Fraction(1), Fraction(1, 3))


class _Mutant(NcmSampler):
    """Gives the probability of the drawn latent in q's place, alone or times q_z."""

    times_q = False

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        from runtime.ncm import sampling

        own, weight = sampling.choose_codes, mx.array(1.0)

        def watch(logits: mx.array, temperature: float, keys: Any) -> mx.array:
            nonlocal weight
            codes = own(logits, temperature, keys)
            shares = mx.softmax(logits / temperature, axis=-1)
            weight = weight * mx.take_along_axis(shares, codes[..., None], axis=-1).prod()
            return codes

        sampling.choose_codes = watch
        try:
            proposal = super().propose(history, m)
        finally:
            sampling.choose_codes = own
        if proposal.q is None:
            return proposal
        return Proposal(proposal.tokens, proposal.q * weight if self.times_q else mx.ones_like(proposal.q) * weight)


class _JointMutant(_Mutant):
    times_q = True


MODEL = make_text_model(4, sharp=4.0, codebook_size=5)
SAMPLING = Sampling(0.8, seed=5)


def test_latents_matter_for_the_small_model() -> None:
    """Else the test below would show nothing about them: q_z differs from z to z by much."""
    drafter = NcmSampler(MODEL)
    rows = [np.array(SAMPLING.distribution(drafter.condition([1, 2, 3], 3, place, SAMPLING))) for place in range(12)]
    distances = [np.abs(a[1] - b[1]).sum() / 2 for a in rows for b in rows]
    assert max(distances) > 0.25


@pytest.mark.parametrize("kind", [NcmSampler, _Mutant, _JointMutant])
@pytest.mark.parametrize("decoder", ["context", "codec"])
def test_a_real_model_with_a_real_latent(kind: type[NcmSampler], decoder: Any) -> None:
    """The output is distributed as the target's own; a mutant's is not."""
    target, prompt = tiny_llama(1, vocab_size=8, layers=1, hidden=16), [1, 2, 3]
    generation = speculate(
        target, kind(MODEL, decoder), prompt, draft_length=3, max_tokens=450, temperature=0.8, seed=5
    )
    accepted = sum(each.accepted for each in generation)
    assert 30 < accepted
    deviation = deviate(generation.tokens, _score(target, prompt, generation.tokens, 0.8))
    assert deviation < LIMIT if kind is NcmSampler else deviation > LIMIT
