"""Targets and drafters whose every word is known beforehand, for tests of the loop, of drafters and of
telemetry.

A scripted target answers from what its *cache* holds, not from what the loop believes: a position that was
not trimmed, or trimmed twice, changes its output. Costs are taken from a clock, which may be a fake one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from runtime.protocols import Proposal
from runtime.sampling import Sampling, draw

if TYPE_CHECKING:
    import mlx.core as mx

    from telemetry.testing import FakeClock

Cost: TypeAlias = "int | Callable[[int, int], int]"
CacheKind: TypeAlias = Literal["plain", "untrimmable", "sluggish"]
"""`untrimmable` says so; `sluggish` claims to be trimmable, removes one position fewer than asked and says nothing."""


class ScriptedFailure(RuntimeError):
    """What `fail_at` raises."""


class ScriptedLayer:
    """A cache layer that holds token ids instead of keys and values."""

    def __init__(self, kind: CacheKind) -> None:
        self.kind = kind
        self.tokens: list[int] = []

    @property
    def offset(self) -> int:
        """Positions held."""
        return len(self.tokens)

    @property
    def state(self) -> list[Any]:
        """No arrays."""
        return []

    @property
    def nbytes(self) -> int:
        """Eight bytes a token, as if."""
        return 8 * len(self.tokens)

    def is_trimmable(self) -> bool:
        """Whether it says that it can be trimmed."""
        return self.kind != "untrimmable"

    def trim(self, n: int) -> int:
        """Forget the newest `n` tokens, as far as its kind does."""
        removed = max(n - 1, 0) if self.kind == "sluggish" else n
        if removed:
            del self.tokens[-removed:]
        return removed


class ScriptedTarget:
    """A target that says what `next_token(history) -> id`, or `logits(history) -> vocab_size floats`, says.

    cost_ns: what a forward takes: nanoseconds, or a function of width and context. clock: a FakeClock that is
    advanced by it; without one, the cost is slept. fail_at: the forward, counted from 0, that raises after
    the first layer has grown. Its text has a letter for each of the ids 0 to 25 and `<id>` for others.
    """

    n_layers = 2

    def __init__(
        self,
        next_token: Callable[[Sequence[int]], int] | None = None,
        *,
        logits: Callable[[Sequence[int]], Sequence[float]] | None = None,
        vocab_size: int,
        eos: Collection[int] = (),
        cache: CacheKind = "plain",
        cost_ns: Cost | None = None,
        clock: FakeClock | None = None,
        fail_at: int | None = None,
        max_positions: int | None = None,
    ) -> None:
        if (next_token is None) == (logits is None):
            raise ValueError("give either next_token or logits")
        self.name = "scripted"
        self.vocab_size = vocab_size
        self.eos = frozenset(eos)
        self.max_positions = max_positions
        self.widths: list[int] = []
        self._next_token = next_token
        self._logits = logits
        self._kind: CacheKind = cache
        self._spend = _Spending(cost_ns, clock)
        self._fail_at = fail_at

    def make_cache(self) -> list[ScriptedLayer]:
        """Fresh layers of the kind asked for."""
        return [ScriptedLayer(self._kind) for _ in range(self.n_layers)]

    def forward(self, ids: mx.array, cache: list[ScriptedLayer]) -> mx.array:
        """Logits (1, n, vocab_size); the script sees the history as the last layer holds it."""
        import mlx.core as mx

        # Stands for work on the device, so this read is not the loop's and is not counted as one.
        [tokens] = cast("list[list[int]]", ids.tolist())
        cache[0].tokens.extend(tokens)
        if len(self.widths) == self._fail_at:
            self.widths.append(len(tokens))
            raise ScriptedFailure(f"forward {self._fail_at} failed as scripted")
        self.widths.append(len(tokens))
        for layer in cache[1:]:
            layer.tokens.extend(tokens)
        held = cache[-1].tokens
        first = len(held) - len(tokens) + 1
        self._spend(len(tokens), len(held))
        return mx.array([[self._row(held[:end]) for end in range(first, len(held) + 1)]])

    def _row(self, history: Sequence[int]) -> list[float]:
        if self._logits is not None:
            return [float(value) for value in self._logits(history)]
        assert self._next_token is not None
        row = [0.0] * self.vocab_size
        row[self._next_token(history)] = 1.0
        return row

    def encode(self, text: str) -> list[int]:
        """Ids of the letters a to z."""
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        """Letters of ids 0 to 25; others in angle brackets."""
        return "".join(chr(ord("a") + token) if token < 26 else f"<{token}>" for token in ids)


class ScriptedDrafter:
    """A drafter that proposes what `propose(history, m) -> ids` says.

    prefix_consistent, on_host: as in Drafter. lazy: propose an `mx.array` instead of ints. cost_ns,
    clock: as in ScriptedTarget, by tokens asked for and history. fail_at: the proposal, counted from 0, that
    raises.
    """

    def __init__(
        self,
        propose: Callable[[Sequence[int], int], Sequence[int]],
        *,
        prefix_consistent: bool = True,
        lazy: bool = False,
        on_host: bool = False,
        cost_ns: Cost | None = None,
        clock: FakeClock | None = None,
        fail_at: int | None = None,
    ) -> None:
        self.name = "scripted"
        self.on_host = on_host
        self.length = 0
        self.prefix_consistent = prefix_consistent
        self.committed: list[int] = []
        self.calls = 0
        self._propose = propose
        self._lazy = lazy
        self._spend = _Spending(cost_ns, clock)
        self._fail_at = fail_at

    def reset(self, prompt: Sequence[int]) -> None:
        """Start anew with `prompt` less its last token."""
        self.length = len(prompt) - 1
        self.committed = []

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """What the script says."""
        call, self.calls = self.calls, self.calls + 1
        if call == self._fail_at:
            raise ScriptedFailure(f"proposal {call} failed as scripted")
        tokens = list(self._propose(history, m))
        self._spend(m, len(history))
        if self._lazy and tokens:
            import mlx.core as mx

            return Proposal(mx.array(tokens))
        return Proposal(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        """Remember them."""
        self.committed.extend(tokens)
        self.length += len(tokens)

    def rewind(self, length: int) -> None:
        """Be no longer than `length`."""
        self.length = min(self.length, length)


class ScriptedSampler(ScriptedDrafter):
    """A drafter that draws from what `q(history) -> vocab_size probabilities` says, and gives that q with its proposal.

    The rest is as in ScriptedDrafter. Greedily it proposes the likeliest tokens.
    """

    def __init__(
        self,
        q: Callable[[Sequence[int]], Sequence[float]],
        *,
        lazy: bool = False,
        cost_ns: Cost | None = None,
        clock: FakeClock | None = None,
        fail_at: int | None = None,
    ) -> None:
        super().__init__(self._draw, lazy=lazy, cost_ns=cost_ns, clock=clock, fail_at=fail_at)
        self._q = q
        self._rows: list[Sequence[float]] = []
        self._sampling: Sampling | None = None
        self._prompt_length = 0

    def sample_with(self, sampling: Sampling | None) -> None:
        """As in SamplingDrafter; of the options only the seed acts, since q is what the script says."""
        self._sampling = sampling

    def reset(self, prompt: Sequence[int]) -> None:
        """Start anew with `prompt` less its last token."""
        super().reset(prompt)
        self._prompt_length = len(prompt)

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """Tokens drawn one after another, and what each was drawn from."""
        drawn = super().propose(history, m)
        return Proposal(drawn.tokens, None if self._sampling is None else self._rows)

    def _draw(self, history: Sequence[int], m: int) -> Sequence[int]:
        import mlx.core as mx

        seen, self._rows = list(history), []
        for _ in range(m):
            row = mx.array([self._q(seen)], mx.float32)
            position = len(seen) - self._prompt_length
            sampling = self._sampling
            said = mx.argmax(row, axis=-1) if sampling is None else draw(row, sampling.keys("drafter", [position])[0])
            self._rows.append(cast("list[float]", row[0].tolist()))  # the very numbers it was drawn from
            seen.append(cast("list[int]", said.tolist())[0])
        return seen[len(history) :]


class _Spending:
    """Lets time pass: on a fake clock, or for real."""

    def __init__(self, cost_ns: Cost | None, clock: FakeClock | None) -> None:
        self._cost_ns = cost_ns
        self._clock = clock

    def __call__(self, width: int, context: int) -> None:
        if self._cost_ns is None:
            return
        ns = self._cost_ns if isinstance(self._cost_ns, int) else self._cost_ns(width, context)
        if self._clock is None:
            time.sleep(ns / 1e9)
        else:
            self._clock.advance(ns)
