"""Scripts for targets and drafters, and an independent model of what decoding must give.

`expect` is the reference: plain Python over the script alone, with no cache, no rounds and no loop of the package.
`drain_checked` runs a generation and holds every round to the invariants.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.generation import Generation
from runtime.protocols import Proposal
from runtime.rounds import Round
from runtime.speculative.trimming import MOST_BEHIND
from runtime.testing import ScriptedFailure, ScriptedTarget

Script = Callable[[Sequence[int]], int]
Propose = Callable[[Sequence[int], int], list[int]]


def draw(*parts: object) -> int:
    """A number that depends on `parts` alone, the same in every process."""
    return zlib.crc32(repr(parts).encode())


def hashed(seed: int, vocab_size: int, order: int) -> Script:
    """A next token that depends on the last `order` tokens: any function of the history, as far as a loop can tell."""
    return lambda history: draw(seed, tuple(history[-order:])) % vocab_size


def counting(vocab_size: int) -> Script:
    """Every token is followed by the next higher one."""
    return lambda history: (history[-1] + 1) % vocab_size


def recite(ids: Sequence[int], start: int = 1) -> Script:
    """Say `ids` in order after a prompt of `start` tokens, whatever was said before."""
    return lambda history: ids[(len(history) - start) % len(ids)]


def guessing(script: Script, vocab_size: int, *, percent: int, seed: int = 0, shape: str = "full") -> Propose:
    """A drafter whose tokens are right with a probability of `percent`.

    shape: `full`, as many as asked; `short`, any number up to that; `empty`, nothing in every second history;
    `periodic`, the last tokens of the history over again.
    """

    def propose(history: Sequence[int], m: int) -> list[int]:
        if shape == "periodic":
            period = list(history[-3:])
            return (period * m)[:m]
        if shape == "short":
            m = draw(seed, "length", len(history)) % (m + 1)
        if shape == "empty" and len(history) % 2:
            m = 0
        seen = list(history)
        for position in range(m):
            token = script(seen)
            if draw(seed, "right", len(history), position) % 100 >= percent:
                token = (token + 1) % vocab_size
            seen.append(token)
        return seen[len(history) :]

    return propose


class KeepingDrafter:
    """A drafter with a state of its own, as one with a K/V cache has, that notices when it is led astray.

    It covers what it was fed: the history, then its own proposal less the last token. So it is ahead after a
    rejection and one behind after a wholly accepted proposal. fails: method -> the call, from 0, that raises `error`.
    """

    name = "keeping"
    prefix_consistent = True

    def __init__(self, propose: Propose, *, fails: dict[str, int] | None = None, error: BaseException | None = None):
        self.held: list[int] = []
        self._propose = propose
        self._fails = dict(fails or {})
        self._error = error or ScriptedFailure("the drafter failed as scripted")

    @property
    def length(self) -> int:
        """Positions covered."""
        return len(self.held)

    def reset(self, prompt: Sequence[int]) -> None:
        """As in Drafter."""
        self._fail("reset")
        self.held = list(prompt[:-1])

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """As in Drafter; the state must be a beginning of the history, at most one token short of what is needed."""
        assert self.held == list(history[: len(self.held)])
        assert len(history) - len(self.held) in (1, 2)
        tokens = self._propose(history, m)
        self.held = [*history, *tokens][:-1]
        self._fail("propose")
        return Proposal(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        """As in Drafter."""
        self._fail("commit")

    def rewind(self, length: int) -> None:
        """As in Drafter."""
        self._fail("rewind")
        del self.held[length:]

    def _fail(self, method: str) -> None:
        left = self._fails.get(method)
        if left is not None:
            self._fails[method] = left - 1
        if left == 0:
            raise self._error


def always(ids: Sequence[int]) -> Propose:
    """Propose the beginning of `ids`, whatever the history."""
    return lambda history, m: list(ids[:m])


@dataclass(frozen=True)
class Output:
    """What a generation gave: committed ids, text, why it ended, and what stopped it."""

    tokens: list[int]
    text: str
    finish_reason: str | None
    stop: int | str | None


def spell(ids: Sequence[int]) -> str:
    """The text of `ids`, as a scripted target decodes them."""
    return "".join(chr(ord("a") + token) if token < 26 else f"<{token}>" for token in ids)


def expect(
    script: Script,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    eos: Collection[int] = (),
    stop: Collection[int | str] = (),
) -> Output:
    """What greedy decoding of `script` gives."""
    strings = [item for item in stop if isinstance(item, str)]
    ids = {*eos, *(item for item in stop if not isinstance(item, str))}
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        tokens.append(script([*prompt, *tokens]))
        if tokens[-1] in ids:
            return Output(tokens, spell(tokens[:-1]), "stop", tokens[-1])
        text = spell(tokens)
        found = [(text.find(string), string) for string in strings if string in text]
        if found:
            start, string = min(found)
            return Output(tokens, text[:start], "stop", string)
    return Output(tokens, spell(tokens), "length", None)


def describe(generation: Generation, rounds: Sequence[Round]) -> Output:
    """The output of a generation that is over, from what its caller got."""
    tokens = [token for entry in rounds for token in entry.tokens]
    assert generation.tokens == tokens
    stops = [entry.stop for entry in rounds if entry.stop is not None]
    assert [entry.stop for entry in rounds[:-1]] == [None] * (len(rounds) - 1)
    return Output(tokens, generation.text, generation.finish_reason, stops[0] if stops else None)


def drain_checked(
    generation: Generation, prompt: Sequence[int], *, draft_length: int = 0, max_tokens: int | None = None
) -> list[Round]:
    """Run to the end; after every round hold its numbers, and a scripted cache to the history less its last token."""
    history = list(prompt)
    rounds: list[Round] = []
    for entry in generation:
        budget = None if max_tokens is None else max_tokens - (len(history) - len(prompt))
        check_counts(entry, draft_length, budget)
        assert entry.index == len(rounds)
        history.extend(entry.tokens)
        rounds.append(entry)
        ahead = entry.cache_length - (len(history) - 1) if generation.finish_reason is None else 0
        if ahead < 0:
            assert (generation.cache.undo.way, -ahead <= max(MOST_BEHIND, draft_length)) == ("snapshot", True)
        assert ahead <= 1
        generation.cache.check_integrity(max(ahead, 0))
        check_layers(generation, history, ahead)
    assert generation.tokens == history[len(prompt) :]
    assert not generation.cache.in_use
    generation.cache.check_integrity()
    check_layers(generation, history, 0)
    return rounds


def check_layers(generation: Generation, history: Sequence[int], ahead: int) -> None:
    """The target's cache holds the history less its last token, in every layer; ahead: positions more, or fewer."""
    cache = generation.cache
    expected = list(history[: len(history) - 1 + min(ahead, 0)])
    assert cache.tokens == expected
    if not isinstance(cache.target, ScriptedTarget):
        return
    for layer in cache.layers:
        assert layer.tokens[: len(layer.tokens) - max(ahead, 0)] == expected


def check_counts(entry: Round, draft_length: int, budget: int | None = None) -> None:
    """The numbers of one round agree with each other, and with the budget before it.

    sglang PR#11572: accepted tokens never outnumber proposed ones, nor these the requested.
    """
    assert 0 <= entry.accepted
    assert 0 <= entry.cut
    assert entry.accepted + entry.cut <= entry.proposed <= entry.requested <= draft_length
    assert entry.committed == len(entry.tokens) == entry.accepted + (entry.outcome in ("correction", "bonus", "step"))
    if budget is not None and entry.width and draft_length:
        assert entry.requested == min(draft_length, budget - 1)
    if entry.outcome == "bonus":
        assert 0 < entry.accepted == entry.proposed
    if entry.outcome == "step":
        assert (entry.proposed, entry.accepted) == (0, 0)
    if entry.outcome == "correction":
        assert entry.accepted < entry.proposed
    assert sum(ns for ns, _ in entry.stages.values()) <= entry.t_round_ns
    assert not entry.width or 0 <= entry.width - (entry.proposed + 1) <= entry.replayed


def rows(records: Sequence[Any], kind: type) -> list[Any]:
    """The records of one kind, in order."""
    return [record for record in records if isinstance(record, kind)]
