"""The drafter `ncm` in the loop: greedy output, what it reads, its blocks, its draws, and which target it is for."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from runtime.device import syncs
from runtime.drafters.learned.checkpoints import TrainedFor
from runtime.drafters.ncm import NcmDrafter, NcmSampler
from runtime.generate import decode, speculate
from runtime.protocols import SamplingDrafter
from runtime.sampling import Sampling
from telemetry.errors import Unsupported, UsageError
from telemetry.recorder import Recorder
from telemetry.records import GenerationRecord, RoundRecord
from tests.models import tiny_llama
from tests.runtime.ncm.text.tiny_text import make_text_model, make_tokens
from tests.runtime.scripted import drain_checked, rows

PROMPT = [7, 1, 4, 0, 5]
MODEL = make_text_model(2, sharp=3.0)


def _target() -> Any:
    return tiny_llama(1, vocab_size=8, layers=1, hidden=16)


@pytest.mark.parametrize("timing", ["fused", "attributed"])
@pytest.mark.parametrize("decoder", ["context", "codec"])
@pytest.mark.parametrize("m", [1, 2, 5])
def test_greedy_output_is_ordinary_decodings(m: int, decoder: Any, timing: Any) -> None:
    target = _target()
    wanted = decode(target, PROMPT, max_tokens=24).drain().tokens
    generation = speculate(target, NcmSampler(MODEL, decoder), PROMPT, draft_length=m, max_tokens=24, timing=timing)
    rounds = drain_checked(generation, PROMPT, draft_length=m)
    assert generation.tokens == wanted
    assert max(each.proposed for each in rounds) == min(m, 3)
    if timing == "fused":
        assert {each.syncs for each in rounds} == {1}


def test_some_of_it_is_accepted() -> None:
    """Or the equality above would say little: a drafter that has learned the output is accepted wholly."""
    target = _target()
    output = decode(target, PROMPT, max_tokens=24).drain().tokens
    model = make_text_model(2, make_tokens(8))
    common = max(set(output), key=output.count)
    model.decoder.bias = mx.array([100.0 * (model.tokens.ids[i] == common) for i in range(8)])
    generation = speculate(target, NcmSampler(model), PROMPT, draft_length=3, max_tokens=24)
    assert sum(each.accepted for each in generation) > 0


@pytest.mark.parametrize("sampling", [None, Sampling(0.9, seed=3), Sampling(0.9, top_k=2, seed=3)])
def test_proposals_are_lazy_consistent_and_pure(sampling: Sampling | None) -> None:
    """Nothing is read from the device; a shorter proposal is a longer one's beginning; another object says the same."""
    drafter, other = NcmSampler(MODEL), NcmSampler(MODEL)
    for each in (drafter, other):
        each.sample_with(sampling)
        each.reset(PROMPT)
    history = [*PROMPT, 6, 2, 2]
    before = syncs()
    longest = drafter.propose(history, 9)
    assert isinstance(longest.tokens, mx.array)
    assert len(longest) == 3
    drafter.commit([6, 2, 2])
    assert syncs() == before
    for m in (1, 2, 3):
        again = other.propose(history, m)
        assert again.tokens.tolist() == longest.tokens.tolist()[:m]
        assert (again.q is None) == (sampling is None)
        if again.q is not None:
            assert np.array_equal(np.array(again.q), np.array(longest.q[:m]))
    assert len(drafter.propose(history, 0)) == 0
    assert drafter.length == 7


def test_q_is_a_distribution_over_the_subset() -> None:
    drafter = NcmSampler(MODEL)
    drafter.sample_with(Sampling(1.0, seed=1))
    drafter.reset(PROMPT)
    proposal = drafter.propose(PROMPT, 3)
    q = np.array(proposal.q)
    assert q.shape == (3, 8)
    assert np.allclose(q.sum(axis=1), 1, atol=1e-6)
    assert not q[:, [0, 1]].any()
    assert (q[:, 2:] > 0).all()
    assert all(q[j, token] > 0 for j, token in enumerate(proposal.tokens.tolist()))


def test_the_latent_is_drawn_by_seed_and_place_and_fixed_for_the_round() -> None:
    """Seed and place determine it, so the record does; other places and seeds draw other ones, the mode is one."""

    def condition(seed: int, position: int, temperature: float | None = 1.0) -> bytes:
        drafter = NcmSampler(MODEL, latent_temperature=temperature)
        return np.array(drafter.condition(PROMPT, 3, position, Sampling(1.0, seed=seed))).tobytes()

    assert condition(1, 4) == condition(1, 4)
    assert len({condition(1, position) for position in range(12)}) > 3
    assert len({condition(seed, 4) for seed in range(12)}) > 3
    assert len({condition(seed, 4, 0.0) for seed in range(5)}) == 1
    with pytest.raises(UsageError, match="latent_temperature must be 0"):
        NcmSampler(MODEL, latent_temperature=-1.0)


def test_a_sampled_generation_can_be_repeated() -> None:
    target, drafter = _target(), NcmSampler(MODEL)
    shared: dict[str, Any] = {"draft_length": 3, "max_tokens": 30, "temperature": 0.8, "seed": 5}

    def run(drafter: Any) -> list[Any]:
        return [(each.tokens, each.accepted) for each in speculate(target, drafter, PROMPT, **shared)]

    first = run(drafter)
    speculate(target, drafter, PROMPT, draft_length=3, max_tokens=30).drain()
    assert run(drafter) == run(NcmSampler(MODEL)) == first


def test_the_records_alone_give_the_same_proposals() -> None:
    """Another object, with the recorded temperature and seed, asked at every round's place in the recorded output."""
    recorder = Recorder(record_text=True)
    speculate(
        _target(), NcmSampler(MODEL), PROMPT, draft_length=3, max_tokens=20, temperature=0.8, recorder=recorder
    ).drain()
    [record], rounds = rows(recorder.records, GenerationRecord), rows(recorder.records, RoundRecord)
    prompt, temperature, seed = record.prompt_ids, record.temperature, record.seed
    assert prompt is not None
    assert temperature is not None
    assert seed is not None

    def draw(seed: int) -> list[list[int]]:
        drafter, history, drawn = NcmSampler(MODEL), prompt[:], []
        drafter.sample_with(Sampling(temperature, seed=seed))
        drafter.reset(history)
        for each in rounds:
            drawn.append(mx.array(drafter.propose(history, each.requested).tokens).tolist())
            history += each.tokens or []
        return drawn

    recorded = [each.proposal for each in rounds]
    assert draw(seed) == recorded
    assert draw(seed + 1) != recorded


@pytest.mark.parametrize(("kind", "source"), [(NcmSampler, "drafter"), (NcmDrafter, "point")])
def test_the_record_says_whose_q(kind: Any, source: str) -> None:
    recorder = Recorder()
    speculate(_target(), kind(MODEL), PROMPT, draft_length=2, max_tokens=8, temperature=0.7, recorder=recorder).drain()
    [record] = rows(recorder.records, GenerationRecord)
    assert (record.q_source, record.arm) == (source, "ncm m=2")
    assert isinstance(kind(MODEL), SamplingDrafter) == (source == "drafter")


def test_another_target_is_refused() -> None:
    drafter = NcmSampler(MODEL)
    drafter.check(_target())
    with pytest.raises(Unsupported, match="speaks a vocabulary of 8 ids, and the target has 64"):
        speculate(tiny_llama(1), drafter, PROMPT, draft_length=2, max_tokens=4)
    trained = TrainedFor(target="other", target_digest="a", tokenizer_digest="b", vocab_size=8)
    with pytest.raises(Unsupported, match=r"the drafter ncm was trained for other, and .* has another tokenizer"):
        NcmSampler(MODEL, trained_for=trained).check(_target())
