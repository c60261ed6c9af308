"""The assistant on small real models: what it proposes, and that its cache is always that of the committed history."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.caches import CacheError
from runtime.device import syncs
from runtime.drafters.assistant import Assistant
from runtime.testing import ScriptedTarget
from telemetry.errors import Unsupported
from tests.models import greedy, tiny_llama
from tests.runtime.recurrent import tiny_mamba

MODEL = tiny_llama(1)
PROMPTS = st.lists(st.integers(0, 63), min_size=1, max_size=12)


class LayerFailure(Exception):
    """Raised by a layer that was told to."""


class FragileLayer:
    """A layer of a model that raises at its `fail_at`-th call, counted from 0 since it was armed."""

    def __init__(self, layer):
        self._layer, self._calls, self.fail_at = layer, 0, None
        self.use_sliding = layer.use_sliding

    def arm(self, fail_at):
        self._calls, self.fail_at = 0, fail_at

    def __call__(self, *args, **kwargs):
        self._calls += 1
        if self._calls - 1 == self.fail_at:
            raise LayerFailure
        return self._layer(*args, **kwargs)


class Counted:
    """A target that notes the width of each forward."""

    def __init__(self, target):
        self._target, self.widths = target, []

    def __getattr__(self, name):
        return getattr(self._target, name)

    def forward(self, ids, cache):
        self.widths.append(ids.shape[1])
        return self._target.forward(ids, cache)


def draft(drafter: Assistant, history: list[int], m: int) -> list[int]:
    tokens = drafter.propose(history, m).tokens
    return tokens.tolist() if isinstance(tokens, mx.array) else list(tokens)


def check_cache(drafter: Assistant, history: list[int]) -> None:
    """The cache holds history[:length] and nothing else: every layer as long, and as a fresh prefill would have it."""
    fresh = Assistant(drafter.model)
    fresh.reset(history[: drafter.length + 1])
    assert [layer.offset for layer in drafter._cache] == [drafter.length] * len(drafter._cache)
    for layer, other in zip(drafter._cache, fresh._cache, strict=True):
        for part, expected in ((layer.keys, other.keys), (layer.values, other.values)) if drafter.length else ():
            held, wanted = part[..., : drafter.length, :], expected[..., : drafter.length, :]
            assert mx.allclose(held, wanted, rtol=1e-4, atol=1e-5)


def end_round(drafter: Assistant, history: list[int], committed: list[int]) -> None:
    drafter.commit(committed)
    history += committed
    drafter.rewind(len(history) - 1)


def test_it_proposes_what_its_model_says_by_itself():
    drafter, prompt = Assistant(MODEL), [5, 6, 7, 8]
    drafter.reset(prompt)
    assert draft(drafter, prompt, 12) == greedy(MODEL, prompt, 12)


@given(prompt=PROMPTS, m=st.integers(0, 5))
def test_a_shorter_proposal_is_the_beginning_of_a_longer_one(prompt, m):
    drafter = Assistant(MODEL)
    drafter.reset(prompt)
    longer = draft(drafter, prompt, m + 1)
    drafter.rewind(len(prompt) - 1)
    assert draft(drafter, prompt, m) == longer[:m]


ROUNDS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from(["correction", "stop", "nothing"])), max_size=6
)


@given(prompt=PROMPTS, rounds=ROUNDS)
def test_after_every_round_it_holds_the_committed_history(prompt, rounds):
    """Rounds with any m and acceptance, ended by the target's token, by a stop inside the proposal, or cancelled."""
    drafter, history = Assistant(MODEL), list(prompt)
    drafter.reset(history)
    check_cache(drafter, history)
    covered = drafter.length
    for m, accepted, end in rounds:
        proposed = draft(drafter, history, m)
        assert len(proposed) == m
        fed = len(history) + m - 1 if m else covered
        accepted = min(accepted, m)
        committed = [] if end == "nothing" else proposed[:accepted]
        if end == "correction":
            wrong = (proposed[accepted] + 1) % 64 if accepted < m else 9
            committed = [*committed, wrong]
        end_round(drafter, history, committed)
        covered = min(fed, len(history) - 1)
        assert drafter.length == covered
        check_cache(drafter, history)


@given(prompt=PROMPTS, missing=st.integers(0, 3), m=st.integers(1, 4), layer=st.integers(0, 1), data=st.data())
def test_after_a_failure_in_any_layer_of_any_step_it_holds_the_history_again(prompt, missing, m, layer, data):
    target = tiny_llama(1)
    fragile = target.model.layers[layer] = FragileLayer(target.model.layers[layer])
    drafter, history = Assistant(target), list(prompt)
    drafter.reset(history)
    for token in range(missing):
        draft(drafter, history, 0)
        end_round(drafter, history, [token])
    step = data.draw(st.integers(0, m - 1), label="failing step")
    fragile.arm(step)
    with pytest.raises(LayerFailure):
        drafter.propose(history, m)
    fragile.arm(None)
    drafter.rewind(len(history) - 1)
    assert drafter.length == (len(prompt) if step == 0 else len(history)) - 1
    check_cache(drafter, history)
    assert draft(drafter, history, m) == greedy(target, history, m)


def test_what_is_missing_goes_into_the_first_forward_of_the_next_proposal():
    target, history = Counted(tiny_llama(1)), [1, 2, 3]
    drafter = Assistant(target)
    drafter.reset(history)
    end_round(drafter, history, [*draft(drafter, history, 3), 9])
    lagging = drafter.length
    end_round(drafter, history, [*draft(drafter, history, 2), 9])
    for token in (4, 5):
        end_round(drafter, history, [*draft(drafter, history, 0), token])
    draft(drafter, history, 2)
    prefill, first, second, third = [2], [1, 1, 1], [2, 1], [4, 1]
    assert (lagging, target.widths) == (5, prefill + first + second + third)


def test_drafting_waits_for_nothing():
    drafter, history = Assistant(MODEL), [1, 2, 3]
    drafter.reset(history)
    before = syncs()
    proposal = drafter.propose(history, 4)
    drafter.commit([1, 2])
    drafter.rewind(4)
    assert syncs() == before
    assert (type(proposal.tokens), proposal.tokens.shape, len(proposal)) == (mx.array, (4,), 4)


def test_a_long_prompt_is_taken_in_by_chunks(monkeypatch):
    monkeypatch.setattr("runtime.drafters.assistant.PREFILL_CHUNK", 4)
    target, prompt = Counted(tiny_llama(1)), list(range(11))
    drafter = Assistant(target)
    drafter.reset(prompt)
    assert (target.widths, drafter.length) == ([4, 4, 2], 10)
    check_cache(drafter, prompt)


def test_a_cache_that_cannot_be_brought_back_is_refused_by_name():
    with pytest.raises(
        Unsupported, match=r"draft model has a cache .* neither trimmed nor restored: layer 0 \(Scripted"
    ):
        Assistant(ScriptedTarget(len, vocab_size=8, cache="untrimmable"))


SNAPSHOT = {"window": tiny_llama(1, sliding_window=8), "recurrent": tiny_mamba()}


@pytest.mark.parametrize("name", SNAPSHOT)
@given(prompt=st.lists(st.integers(0, 39), min_size=1, max_size=12), rounds=ROUNDS)
def test_a_model_without_trim_comes_back_by_snapshot(name, prompt, rounds):
    """mlx-lm#846: after any round, and any acceptance, it says what it would have said to that history afresh."""
    drafter, history = Assistant(SNAPSHOT[name]), list(prompt)
    drafter.reset(history)
    for m, accepted, end in rounds:
        proposed = draft(drafter, history, m)
        assert proposed == (greedy(drafter.model, history, m) if m else [])
        committed = [] if end == "nothing" else proposed[: min(accepted, m)]
        if end == "correction":
            committed = [*committed, (proposed[accepted] + 1) % 40 if accepted < m else 9]
        end_round(drafter, history, committed)
        assert drafter.length < len(history)
    assert draft(drafter, history, 3) == greedy(drafter.model, history, 3)
    # A window of 8 that is not full has lost nothing.
    assert drafter.way == ("trim" if name == "window" and len(history) + 2 <= 8 else "snapshot")


def test_a_layer_that_forgets_less_than_asked_is_an_error():
    drafter = Assistant(MODEL)
    drafter.reset([1, 2, 3, 4])
    drafter._cache[1].trim = lambda n: 0
    with pytest.raises(CacheError, match="layer 1"):
        drafter.rewind(1)


def test_it_proposes_only_as_far_as_its_positions_go(capsys):
    target = tiny_llama(1, max_positions=8)
    drafter, history = Assistant(target), [1, 2, 3, 4, 5]
    drafter.reset(history)
    assert draft(drafter, history, 9) == greedy(target, history, 4)
    drafter.reset(list(range(9)))
    assert (draft(drafter, list(range(9)), 3), drafter.length) == ([], 0)
    assert "assistant.prompt_too_long" in capsys.readouterr().err


@pytest.mark.parametrize(("drafter_vocabulary", "target_vocabulary"), [(64, 32), (32, 64)])
def test_padded_vocabularies_neither_leave_the_target_nor_the_model(drafter_vocabulary, target_vocabulary, monkeypatch):
    monkeypatch.setattr("runtime.drafters.assistant.check_same", lambda target, model: None)
    drafter = Assistant(tiny_llama(1, drafter_vocabulary))
    drafter.check(tiny_llama(2, target_vocabulary))
    history = list(range(target_vocabulary))
    drafter.reset(history)
    assert max(draft(drafter, history, 16)) < 32
