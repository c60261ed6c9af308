"""A smaller model that drafts for the target, without waiting for the device.

Each drafted token is the argmax of a forward that takes the previous argmax, unread, as its input: the chain is only
queued, and the target's verification queues behind it. The host learns what was drafted when it reads the result of
the verification (Leviathan, Kalman and Matias, arXiv:2211.17192). Where the target samples, so does the model, with the
same options, by a stream of its own; the distributions that it drew from go with the proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtime.caches import Undo, require_undo
from runtime.caches.kinds import flatten
from runtime.device import barrier, read, release_memory
from runtime.protocols import Proposal, Target
from runtime.sampling import Sampling, draw
from runtime.session import PREFILL_CHUNK
from runtime.vocabulary import check_same
from telemetry.fields import Way
from telemetry.logs import get_logger

if TYPE_CHECKING:
    import mlx.core as mx


class Assistant:
    """Drafts with `model`, a target of its own with the vocabulary of the one it drafts for.

    Its cache holds `length` positions of the history. The last token of a proposal is never fed, so after a wholly
    accepted round the cache lags by one, and by more after rounds of m = 0: whatever is missing goes into the first
    forward of the next proposal.
    """

    name = "assistant"
    prefix_consistent = True
    pure_in_history = True

    def __init__(self, model: Target) -> None:
        """Raises Unsupported, naming the layers, if rejected positions cannot be taken out of the model's cache."""
        self.model = model
        self._width = model.vocab_size
        self._checked: Target | None = None
        self._sampling: Sampling | None = None
        self._prompt_length = 0
        self._empty()
        require_undo(self._cache, "the draft model")

    def _empty(self) -> None:
        self._cache = self.model.make_cache()
        self._undo = Undo(self._cache, stepwise=True)
        self.length = 0
        self._base: int | None = None

    @property
    def way(self) -> Way:
        """How rejected positions leave the model's cache."""
        return self._undo.way

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of the states kept for the open round."""
        return self._undo.snapshot_bytes

    def check(self, target: Target) -> None:
        """Raise Unsupported if `target` has another vocabulary than the model."""
        if self._checked is not target:
            check_same(target, self.model)
            self._checked = target
            self._width = min(self.model.vocab_size, target.vocab_size)

    def sample_with(self, sampling: Sampling | None) -> None:
        """As in SamplingDrafter."""
        self._sampling = sampling

    def reset(self, prompt: Sequence[int]) -> None:
        """Fill a fresh cache with `prompt` less its last token, in chunks, and wait for it.

        A prompt that fills the model's positions is not taken in, and nothing is proposed for it.
        """
        self._empty()
        self._prompt_length = len(prompt)
        self.take_in(prompt)

    def take_in(self, prompt: Sequence[int]) -> None:
        """Feed what the cache lacks of `prompt` less its last token, as `reset` does."""
        if self.limit(len(prompt), 1) == 0:
            get_logger().warning(
                "assistant.prompt_too_long", prompt_tokens=len(prompt), positions=self.model.max_positions
            )
            return
        filling = prompt[:-1]
        for start in range(self.length, len(filling), PREFILL_CHUNK):
            part = filling[start : start + PREFILL_CHUNK]
            self._feed(self._upload(part))
            barrier([layer.state for layer in self._cache])
            self.length += len(part)
            if self.length < len(filling):
                release_memory()

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """At most `m` tokens as one lazy array: fewer where the model's positions end."""
        m = self.limit(len(history), m)
        if m == 0:
            return Proposal(())
        import mlx.core as mx

        self._undo.begin(self.length, len(history) - self.length + m - 1)
        self._base = self.length
        position = len(history) - self._prompt_length
        q: list[mx.array] = []
        token = self._draft(self._upload(history[self.length :]), position, q)
        tokens = [token]
        for step in range(1, m):
            token = self._draft(token, position + step, q)
            tokens.append(token)
        self.length = len(history) + m - 1
        return Proposal(mx.concatenate(tokens), mx.concatenate(q) if q else None)

    def commit(self, tokens: Sequence[int]) -> None:
        """Nothing to do: `propose` is given the history, and feeds what the cache lacks of it."""

    def rewind(self, length: int) -> None:
        """Bring the cache back to `length` positions, or to the shortest layer after a forward that failed half-way.

        By a snapshot it comes back to where the last proposal began; the next one feeds what is missing since. Raises
        CacheError if a layer does not follow.
        """
        if self._undo.way == "trim":
            length = min(length, *(layer.offset for layer in flatten(self._cache)))
        elif self._base is not None and length >= self._base:
            length = self._base
        elif self._base is None and length >= self.length:
            return
        else:
            self._empty()
            return
        self._undo.restore(length)
        self.length = length

    def predict(self, prompt: Sequence[int], output: Sequence[int]) -> list[int]:
        """What it would draft first at every position of `output`, the history being right until there; resets it."""
        import mlx.core as mx

        self.reset(prompt)
        predicted: list[int] = []
        history = [*prompt[-1:], *output[:-1]] if self.length == len(prompt) - 1 else []
        if self.model.max_positions is not None:
            history = history[: self.model.max_positions - self.length]
        for start in range(0, len(history), PREFILL_CHUNK):
            part = self._upload(history[start : start + PREFILL_CHUNK])
            predicted += read(mx.argmax(self._feed(part)[0, :, : self._width], axis=-1))[0]
        self._empty()
        return predicted + [-1] * (len(output) - len(predicted))

    def limit(self, history_length: int, m: int) -> int:
        """`m`, or what can be drafted before the model's positions end (the last drafted token takes none)."""
        positions = self.model.max_positions
        return m if positions is None else max(0, min(m, positions - history_length + 1))

    def _upload(self, tokens: Sequence[int]) -> mx.array:
        """`tokens` as an array; ids that only the target's wider padding has become the model's last one."""
        import mlx.core as mx

        last = self.model.vocab_size - 1
        return mx.array([min(token, last) for token in tokens], mx.uint32)

    def _draft(self, ids: mx.array, position: int, q: list[mx.array]) -> mx.array:
        """The token (1,) that the model says after `ids`, at `position` of the output, being computed.

        What it was drawn from, if it was, is added to `q`.
        """
        import mlx.core as mx

        logits = self._feed(ids)[:, -1, : self._width]
        if self._sampling is None:
            token = mx.argmax(logits, axis=-1)
        else:
            q.append(self._sampling.distribution(logits))
            token = draw(q[-1], self._sampling.keys("drafter", [position])[0])
        mx.async_eval(token)
        return token

    def _feed(self, ids: mx.array) -> mx.array:
        """Logits (1, n, vocab) of `ids` (n,), lazily."""
        return self.model.forward(ids[None], self._cache)
