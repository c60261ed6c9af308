"""The draft model of mlx-lm's speculation as a drafter: on layers that a caller holds, and flagging the last token.

mlx-lm drafts for every place of the budget; the loop here asks for one token fewer in the last round, since its last
token is the target's anyway. mlx-lm's `from_draft` tells whether the draft model had said that token too, so this
drafter keeps to itself what it would have proposed there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.caches import Undo, require_undo
from runtime.device import barrier, read
from runtime.drafters.assistant import Assistant
from runtime.protocols import Proposal, Target
from telemetry.errors import Unsupported
from telemetry.logs import get_logger


class HandedAssistant(Assistant):
    """An assistant whose layers hold `held` tokens already, of unknown ids."""

    def __init__(self, model: Target, layers: Sequence[Any], held: int, *, draft_length: int, end: int) -> None:
        super().__init__(model)
        require_undo(layers, "the draft model")
        self._cache = list(layers)
        self._undo = Undo(self._cache, stepwise=True)
        self.length = held
        self._draft_length = draft_length
        self._end = end
        self._last: Any = None

    def check(self, target: Target) -> None:
        """Raise Unsupported if a token of the tokenizer, which both models share, is none of the draft model's."""
        size = len(getattr(target, "tokenizer", ()))
        self._width = min(self.model.vocab_size, target.vocab_size)
        if self._width < size and self.model.vocab_size != target.vocab_size:
            raise Unsupported(
                f"the draft model has {self.model.vocab_size} token ids and the tokenizer {size}: "
                "take a draft model with the target's vocabulary, of the same family as a rule"
            )

    def reset(self, prompt: Sequence[int]) -> None:
        """Take in what the layers lack of `prompt` less its last token."""
        self.take_in(prompt)

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """As an assistant does; where the budget ends, what it would say at its last place is kept back."""
        self._last = None
        remaining = self._end - len(history)
        if remaining > self._draft_length or m != remaining - 1:
            return super().propose(history, m)
        whole = super().propose(history, m + 1)
        if len(whole) <= m:
            return whole
        self._last = whole.tokens[m:]
        return Proposal(whole.tokens[:m], None if whole.q is None else whole.q[:m])

    def said_last(self, token: int) -> bool:
        """Whether `token`, the last of the budget, is what the draft model said there."""
        if self._last is None:
            return False
        [[said]] = read(self._last)
        return said == token

    def settle(self, history: Sequence[int]) -> None:
        """Bring the layers to hold all of `history`."""
        excess = self.length - len(history)
        if excess < 0:
            barrier(self._feed(self._upload(history[excess:])))
        elif excess and self._undo.can_trim(excess):
            self._undo.trim(excess)
        elif excess:
            get_logger().warning("prompt_cache.ahead", tokens=excess, cure="read every response, or drop the cache")
        self.length = len(history)
