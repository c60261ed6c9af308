"""What a generation works on: the target and its cache, the history, the budget, the stops and the sampling.

The history is prompt + committed tokens. It only ever grows by whole rounds; `roll_back` undoes what a failed
round added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runtime.caches import KeptCache
from runtime.caches.quantising import Quantising
from runtime.device import barrier, drain, release_memory
from runtime.penalty import Penalty
from runtime.processing import LogitsProcessor, Rows
from runtime.protocols import Target, can_decode
from runtime.rounds import OpenRound
from runtime.sampling import Sampling
from runtime.stopping import Stop, Stopper
from telemetry.errors import Unsupported

PREFILL_CHUNK = 2048
"""Positions a prefill forward takes at most (as mlx-lm's ordinary loop, whose numerics this keeps)."""


class Session:
    """The state that every way of decoding shares.

    Set before the first round by those who want it otherwise: `prefill_chunk`, positions a prefill forward takes at
    most; `on_prefill`, called with the number of positions after each; `rows`, a queue to keep every token's logits in.
    """

    def __init__(
        self,
        target: Target,
        cache: KeptCache,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        stopper: Stopper,
        processors: Sequence[LogitsProcessor] = (),
        quantising: Quantising | None = None,
        sampling: Sampling | None = None,
        penalty: Penalty | None = None,
    ) -> None:
        self.target = target
        self.cache = cache
        self.history: list[int] = list(prompt)
        self.prompt_length = len(prompt)
        self.max_tokens = max_tokens
        self.stopper = stopper
        self.penalty = penalty
        self.processors = (*(() if penalty is None else (penalty.make_processor(),)), *processors)
        self.quantising = quantising
        self.sampling = sampling
        self.stop: Stop | None = None
        self.cancelled = False
        self.snapshot_bytes = 0
        self.prefill_chunk = PREFILL_CHUNK
        self.on_prefill: Callable[[int], None] | None = None
        self.rows: Rows | None = None
        self._sound = len(self.history)
        self._held: int | None = None
        self._is_filled = False

    @property
    def output(self) -> list[int]:
        """The committed tokens."""
        return self.history[self.prompt_length :]

    @property
    def position(self) -> int:
        """Where in the output the next token comes."""
        return len(self.history) - self.prompt_length

    @property
    def remaining(self) -> int:
        """How many tokens may still be committed."""
        return self.max_tokens - (len(self.history) - self.prompt_length)

    @property
    def finished(self) -> bool:
        """Whether a stop was found or the budget is spent."""
        return self.stop is not None or self.remaining <= 0

    def prefill(self) -> None:
        """Fill the target's cache with the prompt less its last token, and wait; a cancellation ends it early."""
        import mlx.core as mx

        chunk = self.prefill_chunk
        wanted = self.history[:-1]
        while (done := self.cache.length) < len(wanted) and not self.cancelled:
            part = wanted[done : done + chunk]
            self.begin_round()
            self.forward(mx.array(part))
            barrier([layer.state for layer in self.cache.layers])
            self.cache.hold(part)
            if self.on_prefill is not None:
                self.on_prefill(len(part))
            if done + chunk < len(wanted):
                release_memory()
        self._end_round()
        self._is_filled = not self.cancelled

    def forward(self, ids: Any, *, tentative: bool = False) -> Any:
        """Logits (n, vocab) of ids (n,), lazily; the cache's layers grow by n.

        tentative: some of the positions may be taken back; `settle` follows once it is known which.
        """
        logits = self.target.forward(ids[None], self.cache.layers)[0]
        if not tentative:
            self.settle()
        return logits

    def settle(self) -> None:
        """All that the layers hold is committed: quantise those that hold enough."""
        if self.quantising is not None:
            self.quantising.apply(self.cache.layers)

    def limit_proposal(self, draft_length: int) -> int:
        """How many tokens to ask for: `draft_length`, less where the budget or a quantising threshold comes first."""
        limit = min(draft_length, self.remaining - 1)
        width = None if self.quantising is None else self.quantising.limit_width(self.cache.length)
        return limit if width is None else min(limit, width - 1)

    def text(self) -> str:
        """The output as text: without the id that ended it, and cut before a stop string.

        Raises Unsupported if the target has no tokenizer.
        """
        if not can_decode(self.target):
            raise Unsupported("this target has no tokenizer; read `tokens` instead")
        ended_by_id = self.stop is not None and self.stop.kind != "stop_string"
        tokens = self.output[:-1] if ended_by_id else self.output
        return self.stopper.text_before(self.target.decode(tokens), self.stop)

    def end_at_stop(self, open_round: OpenRound, tokens: list[int]) -> int | None:
        """Look for a stop in the next output `tokens`; note it, and return its index."""
        found = self.stopper.find(tokens)
        if found is None:
            return None
        index, self.stop = found
        open_round.stop = self.stop
        return index

    def begin_round(self) -> None:
        """What the cache holds now is what `roll_back` brings it back to."""
        self._held = self.cache.length
        self.cache.undo.begin(self._held)

    def accept_round(self) -> None:
        """The round is whole: what it added to the history is committed for good."""
        self._sound = len(self.history)
        self._end_round()

    def _end_round(self) -> None:
        self._held = None
        self.cache.undo.end()

    def roll_back(self) -> None:
        """Undo what the open round did to history and cache."""
        self.stop = None
        del self.history[self._sound :]
        self.cache.restore(len(self.history) - 1 if self._held is None else self._held)

    def catch_up(self) -> None:
        """Feed what rounds took back and the cache lacks of the history less its last token, in one forward.

        A failure changes nothing.
        """
        import mlx.core as mx

        lacking = self.history[self.cache.length : -1] if self._is_filled else []
        if not lacking:
            return
        self.cache.undo.begin(self.cache.length)
        try:
            self.forward(mx.array(lacking))
        except BaseException:
            self.cache.restore(self.cache.length)
            raise
        self.cache.hold(lacking)

    def settle_device(self) -> None:
        """Wait until the cache is computed and the device idle: another thread may take the cache up."""
        if self.cache.length:
            barrier([layer.state for layer in self.cache.layers])
        drain()
