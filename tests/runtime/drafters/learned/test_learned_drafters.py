"""`ar` and `blocks` on random networks: their contract, and that the output stays ordinary decoding's."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime import decode, speculate
from runtime.drafters.learned.drafters import Blocks, LearnedAssistant
from runtime.sampling import Sampling
from tests.runtime.drafters.learned.tiny import make_network, make_target, make_tokens

TARGET = make_target()
TOKENS = make_tokens()
MAKERS = {"ar": LearnedAssistant, "blocks": Blocks}
NETWORKS = {kind: make_network(kind) for kind in MAKERS}
PROMPTS = st.lists(st.integers(0, 63), min_size=1, max_size=12)
KINDS = st.sampled_from(sorted(MAKERS))


def make(kind):
    return MAKERS[kind](NETWORKS[kind], TOKENS)


def draft(drafter, history, m):
    tokens = drafter.propose(history, m).tokens
    return tokens.tolist() if isinstance(tokens, mx.array) else list(tokens)


def say(kind, history, m):
    """What the network says, by forwards over everything that is known, without a cache."""
    network, ids = NETWORKS[kind], TOKENS.to_subset(history).tolist()
    found = []
    for j in range(min(m, network.config.block if kind == "blocks" else m)):
        states = network.walk(mx.array([ids], mx.int32))[0, -1]
        logits = network.predict(states, j if kind == "blocks" else 0)
        found.append(int(mx.argmax(logits)))
        if kind == "ar":
            ids.append(found[-1])
    return TOKENS.to_target(found).tolist()


@settings(max_examples=40)
@given(KINDS, PROMPTS, st.integers(0, 6), st.data())
def test_any_round_proposes_what_a_fresh_forward_says(kind, prompt, m, data):
    drafter, history = make(kind), list(prompt)
    drafter.reset(prompt)
    assert drafter.length == len(prompt) - 1
    for _ in range(3):
        proposed = draft(drafter, history, m)
        assert proposed == say(kind, history, m)
        committed = [*proposed[: data.draw(st.integers(0, m))], data.draw(st.integers(0, 63))]
        drafter.commit(committed)
        history += committed
        if drafter.length > len(history) - 1:
            drafter.rewind(len(history) - 1)
        assert drafter.length <= len(history) - 1


@settings(max_examples=25)
@given(KINDS, PROMPTS, st.integers(0, 5))
def test_it_is_prefix_consistent(kind, prompt, m):
    drafter = make(kind)
    drafter.reset(prompt)
    shorter = draft(drafter, prompt, m)
    drafter.rewind(len(prompt) - 1)
    longer = draft(drafter, prompt, m + 1)
    assert longer[: len(shorter)] == shorter
    assert drafter.prefix_consistent


@settings(max_examples=25)
@given(KINDS, PROMPTS, st.integers(0, 8))
def test_a_rewind_forgets_everything_from_there_on(kind, prompt, length):
    drafter = make(kind)
    drafter.reset(prompt)
    draft(drafter, prompt, 3)
    drafter.rewind(min(length, len(prompt) - 1))
    assert drafter.length <= min(length, len(prompt) - 1)
    other = [*prompt[: drafter.length + 1], 5, 6]
    assert draft(drafter, other, 3) == say(kind, other, 3)


@settings(max_examples=25)
@given(KINDS, PROMPTS, st.integers(0, 6))
def test_the_output_is_ordinary_decodings(kind, prompt, m):
    with decode(TARGET, prompt, max_tokens=24) as ordinary:
        ordinary.drain()
    with speculate(TARGET, make(kind), prompt, draft_length=m, max_tokens=24) as generation:
        generation.drain()
    assert generation.tokens == ordinary.tokens


def test_no_more_than_a_block_is_proposed():
    drafter = make("blocks")
    drafter.reset([1, 2])
    assert len(draft(drafter, [1, 2], 9)) == 3


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_tokens_outside_the_subset_are_taken_in_and_never_proposed(kind):
    drafter, history = make(kind), [0, 1, 2, 4]
    assert TOKENS.coverage(history) == 0
    drafter.reset(history)
    assert set(draft(drafter, history, 3)) <= set(TOKENS.ids.tolist())


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_a_drawn_proposal_comes_with_the_distribution_it_was_drawn_from(kind):
    drafter, sampling = make(kind), Sampling(0.8, top_k=6, seed=3)
    drafter.sample_with(sampling)
    drafter.reset([1, 2, 3])
    proposal = drafter.propose([1, 2, 3], 3)
    tokens, q = proposal.tokens.tolist(), np.array(proposal.q)
    assert q.shape == (3, 64)
    assert q.sum(axis=1) == pytest.approx(np.ones(3), abs=1e-5)
    assert all(q[i, token] > 0 for i, token in enumerate(tokens))
    assert not q[:, np.setdiff1d(np.arange(64), TOKENS.ids)].any()
    assert set(np.count_nonzero(q, axis=1)) == {6}


@settings(max_examples=10)
@given(KINDS, PROMPTS, st.integers(1, 4), st.integers(0, 10**6))
def test_sampled_decoding_runs_through_and_repeats(kind, prompt, m, seed):
    outputs = []
    for _ in range(2):
        with speculate(
            TARGET, make(kind), prompt, draft_length=m, max_tokens=12, temperature=1.0, seed=seed
        ) as generation:
            generation.drain()
        outputs.append(generation.tokens)
    assert outputs[0] == outputs[1]


@settings(max_examples=15)
@given(PROMPTS, st.lists(st.integers(0, 63), min_size=1, max_size=10))
def test_predictions_of_a_whole_output_are_the_proposals(prompt, output):
    ar, blocks = make("ar"), make("blocks")
    histories = [[*prompt, *output[:i]] for i in range(len(output))]
    assert ar.predict(prompt, output) == [say("ar", history, 1)[0] for history in histories]
    assert blocks.predict_blocks(prompt, output) == [say("blocks", history, 3) for history in histories]
