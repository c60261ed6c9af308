"""`ar` and `blocks` as drafters: networks over the frequent tokens behind the target's vocabulary.

Both keep the K/V cache of their trunk. `ar` feeds its own drafts, as `Assistant` does; `blocks` feeds committed tokens
alone, so it never has anything to take back, and its positions are guessed apart from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from runtime.caches.kinds import flatten
from runtime.device import barrier, read_rows
from runtime.distillation import FrequentTokens
from runtime.drafters.assistant import Assistant
from runtime.protocols import Proposal, Target
from runtime.sampling import Sampling, draw
from runtime.session import PREFILL_CHUNK

if TYPE_CHECKING:
    from runtime.drafters.learned.checkpoints import Checkpoint
    from runtime.drafters.learned.network import Network


class _SubsetTarget:
    """A network of one head as the small target that `Assistant` drafts with; ids are the subset's."""

    eos: frozenset[int] = frozenset()
    max_positions: int | None = None

    def __init__(self, network: Network) -> None:
        self.network = network
        self.vocab_size = network.config.vocab

    def make_cache(self) -> list[Any]:
        return self.network.make_cache()

    def forward(self, ids: mx.array, cache: list[Any]) -> mx.array:
        return self.network.predict(self.network.walk(ids, cache))


class LearnedAssistant(Assistant):
    """`ar`: an assistant that speaks the frequent tokens; ids are translated where they come in and go out."""

    name = "ar"

    def __init__(self, network: Network, tokens: FrequentTokens, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(_SubsetTarget(network))
        self.network, self.tokens = network, tokens
        self._ids = mx.array(tokens.ids)
        self._checkpoint = checkpoint

    def check(self, target: Target) -> None:
        """Raise Unsupported if the network was trained for another target or tokenizer."""
        if self._checkpoint is not None and self._checked is not target:
            self._checkpoint.check(target)
            self._checked = target

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """At most `m` tokens as one lazy array of the target's ids."""
        proposal = super().propose(history, m)
        if not len(proposal):
            return proposal
        q = None if proposal.q is None else self.tokens.widen(proposal.q)
        return Proposal(self._ids[proposal.tokens], q)

    def predict(self, prompt: Sequence[int], output: Sequence[int]) -> list[int]:
        """As in Assistant, in the target's ids."""
        found = super().predict(prompt, output)
        return [int(self.tokens.ids[token]) if token >= 0 else -1 for token in found]

    def _upload(self, tokens: Sequence[int]) -> mx.array:
        return mx.array(self.tokens.to_subset(tokens))


class Blocks:
    """`blocks`: up to `block` tokens from the state after the last committed one."""

    name = "blocks"
    prefix_consistent = True
    pure_in_history = True

    def __init__(self, network: Network, tokens: FrequentTokens, checkpoint: Checkpoint | None = None) -> None:
        self.tokens, self.block = tokens, network.config.block
        self.network, self._checkpoint = network, checkpoint
        self._ids = mx.array(tokens.ids)
        self._sampling: Sampling | None = None
        self._checked: Target | None = None
        self._prompt_length = 0
        self._empty()

    def _empty(self) -> None:
        self._cache = self.network.make_cache()
        self.length = 0

    def check(self, target: Target) -> None:
        """Raise Unsupported if the network was trained for another target or tokenizer."""
        if self._checkpoint is not None and self._checked is not target:
            self._checkpoint.check(target)
            self._checked = target

    def sample_with(self, sampling: Sampling | None) -> None:
        """As in SamplingDrafter."""
        self._sampling = sampling

    def reset(self, prompt: Sequence[int]) -> None:
        """Fill a fresh cache with `prompt` less its last token, in chunks, and wait for it."""
        self._empty()
        self._prompt_length = len(prompt)
        for start in range(0, len(prompt) - 1, PREFILL_CHUNK):
            self._feed(prompt[start : min(start + PREFILL_CHUNK, len(prompt) - 1)])
            barrier([layer.state for layer in self._cache])
        self.length = len(prompt) - 1

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """At most `m` tokens, and at most a block, as one lazy array of the target's ids."""
        m = min(m, self.block)
        if m == 0:
            return Proposal(())
        # The last token is fed with what is missing, and stands in the cache from then on.
        state = self._feed(history[self.length :])[0, -1]
        self.length = len(history)
        logits = self.network.predict_block(state, m)
        if self._sampling is None:
            tokens, q = mx.argmax(logits, axis=-1), None
        else:
            position = len(history) - self._prompt_length
            wide = self._sampling.distribution(logits)
            keys = self._sampling.keys("drafter", range(position, position + m))
            tokens = mx.concatenate([draw(wide[j : j + 1], keys[j]) for j in range(m)])
            q = self.tokens.widen(wide)
        tokens = self._ids[tokens]
        mx.async_eval(tokens)
        return Proposal(tokens, q)

    def commit(self, tokens: Sequence[int]) -> None:
        """Nothing to do: `propose` is given the history, and feeds what the cache lacks of it."""

    def rewind(self, length: int) -> None:
        """Bring the cache back to `length` positions, or to the shortest layer after a forward that failed half-way."""
        length = min(length, *(layer.offset for layer in flatten(self._cache)), self.length)
        for layer in flatten(self._cache):
            layer.trim(layer.offset - length)
        self.length = length

    def predict_blocks(self, prompt: Sequence[int], output: Sequence[int]) -> list[list[int]]:
        """What it would propose at every position of `output`, the history being right until there; resets it."""
        self.reset(prompt)
        found: list[list[int]] = []
        history = [prompt[-1], *output[:-1]] if output else []
        for start in range(0, len(history), PREFILL_CHUNK):
            states = self._feed(history[start : start + PREFILL_CHUNK])[0]
            heads = [mx.argmax(self.network.predict(states, j), axis=-1) for j in range(self.block)]
            found += read_rows(self._ids[mx.stack(heads, axis=1)])[0]
        self._empty()
        return found

    def _feed(self, tokens: Sequence[int]) -> mx.array:
        """States (1, n, width) of `tokens`, lazily."""
        return self.network.walk(mx.array(self.tokens.to_subset(tokens))[None], self._cache)
