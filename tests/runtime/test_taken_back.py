"""Failures, interrupts, hand-overs on caches that only a snapshot brings back: the next turn is warm what it is cold.

Nothing in a recurrent layer says how many positions it has seen, so what these tests look at is what it says next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from runtime.caches import KeptCache
from runtime.drafters.base import HostDrafter
from runtime.generate import decode, speculate
from runtime.protocols import Proposal
from telemetry.recorder import Recorder
from telemetry.records import RoundRecord
from tests.architectures import ARCHITECTURES
from tests.runtime.scripted import rows
from tests.runtime.test_architectures import (
    LIMIT,
    PROMPT,
    RECURRENT,
    SUPPORTED,
    WINDOWED,
    _build,
    _reference,
    make_drafter,
    ordinary,
)


class Faltering(HostDrafter):
    """Right but for its second token in two of three rounds, so that the cache falls behind; fails at one `commit`."""

    name = "faltering"

    def __init__(self, expected: Sequence[int], fails_at: int, error: BaseException) -> None:
        super().__init__()
        self._expected, self._fails_at, self._error = expected, fails_at, error
        self._n_proposals = self._n_commits = 0

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        done = len(history) - len(PROMPT)
        right = list(self._expected[done : done + m])
        if self._n_proposals % 3 < 2 and len(right) > 1:
            right[1] = (right[1] + 1) % 64
        self._n_proposals += 1
        return Proposal(tuple(right))

    def commit(self, tokens: Sequence[int]) -> None:
        self._n_commits += 1
        if self._n_commits == self._fails_at:
            raise self._error
        super().commit(tokens)


def check_next_turn(name: str, history: Sequence[int], cache: KeptCache) -> None:
    """What the cache says it holds is the history's, and what follows is what mlx-lm says to the history."""
    cache.check_integrity()
    assert cache.tokens == list(history[: len(cache.tokens)])
    turn = [*history, 5, 9]
    assert decode(_build(name), turn, max_tokens=6, eos=(), cache=cache).drain().tokens == ordinary(name, turn, 6)


@pytest.mark.parametrize("error", [RuntimeError("failed"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("fails_at", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_drafter_that_fails_after_the_target_has_moved(name: str, fails_at: int, error: BaseException) -> None:
    """Whether the round was rejected or wholly accepted, with the cache behind or not: as if it had not been."""
    recorder = Recorder()
    drafter = Faltering(_reference(name), fails_at, error)
    generation = speculate(_build(name), drafter, PROMPT, draft_length=3, max_tokens=LIMIT, eos=(), recorder=recorder)
    with pytest.raises(type(error)):
        generation.drain()
    assert generation.tokens == list(_reference(name)[: len(generation.tokens)])
    history = [*PROMPT, *generation.tokens]
    assert generation.cache.tokens == history[:-1]
    assert rows(recorder.records, RoundRecord)[-1].cache_length == len(history) - 1
    check_next_turn(name, history, generation.cache)


@pytest.mark.parametrize("name", [*RECURRENT, "llama, sliding", "llama4"])
@pytest.mark.parametrize("n_rounds", [1, 2, 3, 4])
def test_a_turn_closed_early_is_followed_by_an_interrupted_prefill(
    name: str, n_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was kept for a round of the first turn may come back in the second."""
    first = speculate(
        _build(name), Faltering(_reference(name), 0, RuntimeError()), PROMPT, draft_length=3, max_tokens=LIMIT, eos=()
    )
    for _ in range(n_rounds):
        next(first)
    first.close()
    cache, history = first.cache, [*PROMPT, *first.tokens]
    assert cache.undo.snapshot_bytes == 0
    target = _build(name)
    with monkeypatch.context() as patched:
        patched.setattr(target, "forward", interrupt_after(target.forward))
        second = decode(target, [*history, 7, 8, 9], max_tokens=4, eos=(), cache=cache)
        with pytest.raises(KeyboardInterrupt):
            next(second)
    check_next_turn(name, history, cache)


def interrupt_after(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that is interrupted when the cache has taken it in."""

    def interrupted(*arguments: Any) -> Any:
        forward(*arguments)
        raise KeyboardInterrupt

    return interrupted


@pytest.mark.parametrize("name", ["llama, sliding", "qwen3_next", "recurrent_gemma", "mamba2"])
def test_a_cancelled_round_without_a_proposal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single step overwrites the oldest entry of a full window for good; the token that it fed was committed."""
    target = _build(name)
    generation = speculate(target, "none", PROMPT, draft_length=3, max_tokens=LIMIT, eos=())
    for _ in range(2):
        next(generation)
    forward = target.forward

    def cancelling(*arguments: Any) -> Any:
        generation.cancel()
        return forward(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(target, "forward", cancelling)
        generation.drain()
    assert (generation.finish_reason, len(generation.tokens)) == ("cancelled", 2)
    check_next_turn(name, [*PROMPT, *generation.tokens], generation.cache)


@pytest.mark.parametrize("kind", ["ordinary", "mixed"])
@pytest.mark.parametrize("name", sorted({*RECURRENT, *WINDOWED, "llama"} & set(SUPPORTED)))
def test_another_thread_takes_the_next_turn(name: str, kind: str) -> None:
    """MLX's streams belong to threads: nothing of a kept cache may be left to compute when its generation has ended."""
    target, found = ARCHITECTURES[name].build(0), []
    if kind == "ordinary":
        first = decode(target, PROMPT, max_tokens=8, eos=())
    else:
        drafter = make_drafter(kind, name, _reference(name))
        first = speculate(target, drafter, PROMPT, draft_length=3, max_tokens=LIMIT, eos=())
    for _ in range(4):
        next(first)
    first.close()
    turn = [*PROMPT, *first.tokens, 5, 9]

    def follow() -> None:
        found.append(decode(target, turn, max_tokens=6, eos=(), cache=first.cache).drain().tokens)

    thread = threading.Thread(target=follow)
    thread.start()
    thread.join()
    assert found == [ordinary(name, turn, 6)]


def test_a_refused_speculation_leaves_a_kept_cache_as_it_was() -> None:
    target = _build("deepseek_v41")
    cache = decode(target, PROMPT, max_tokens=4, eos=()).drain().cache
    held = list(cache.tokens)
    with pytest.raises(ValueError, match="neither trimmed nor restored"):
        speculate(target, "none", [1, 2, 3], draft_length=2, max_tokens=4, cache=cache)
    assert cache.tokens == held
