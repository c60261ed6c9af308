"""The seams of the runtime: what a target, a cache layer and a drafter must offer.

Anything with these methods can be run, timed and compared: mlx-lm's models through `runtime.targets`,
scripted ones through `runtime.testing`, and a user's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

from runtime.sampling import Sampling

if TYPE_CHECKING:
    import mlx.core as mx

Prompt: TypeAlias = "str | Sequence[int]"
"""Text, which the target tokenises as it stands, or token ids."""


class Cache(Protocol):
    """One layer's K/V cache, as mlx-lm defines it; `offset` counts the positions it holds."""

    offset: int

    def is_trimmable(self) -> bool:
        """Whether `trim` can take the newest positions back."""

    def trim(self, n: int) -> int:
        """Forget the newest `n` positions; return how many were forgotten."""

    @property
    def state(self) -> Any:
        """The arrays (and scalars) that hold the layer's state."""


class Target(Protocol):
    """The autoregressive model whose output is wanted."""

    vocab_size: int
    eos: frozenset[int]
    max_positions: int | None

    def make_cache(self) -> list[Any]:
        """A fresh, empty list of cache layers (as many as the model wants, not as many as it has layers)."""

    def forward(self, ids: mx.array, cache: list[Any]) -> mx.array:
        """Logits (1, n, vocab_size) for ids (1, n), lazily; every cache layer grows by n positions."""


@runtime_checkable
class Textual(Protocol):
    """A target that can also turn text into ids and back."""

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` as it stands: no template, special tokens as the tokenizer adds them."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included."""


def can_decode(target: Target) -> TypeGuard[Textual]:
    """Whether `target` can turn ids into text: it has the methods, and a tokenizer where it keeps one."""
    return isinstance(target, Textual) and getattr(target, "tokenizer", target) is not None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a drafter offers for one round.

    `tokens`: the proposed ids in order, either Python ints or a lazy 1-D `mx.array` that nobody has read yet.
    `q`: the distribution each token was drawn from, (n, vocab) as an array or as rows of floats, the very numbers that
    were drawn from; or None for a point mass. Only verification at a temperature looks at it.
    """

    tokens: Any
    q: Any = None

    def __len__(self) -> int:
        return len(self.tokens) if isinstance(self.tokens, (list, tuple)) else int(self.tokens.shape[0])


class Drafter(Protocol):
    """Whatever proposes. `length` counts the positions of the history that its state covers.

    `prefix_consistent`: propose(history, m) is the beginning of propose(history, m + 1).

    One that can sample also has `sample_with` (see `SamplingDrafter`). One with `on_host = True` proposes on the host
    in microseconds and has no state but the history: a controller asks it while steps are made, and watches.
    """

    name: str
    length: int
    prefix_consistent: bool

    def reset(self, prompt: Sequence[int]) -> None:
        """Forget everything and take in `prompt` less its last token (the prefill of the drafter)."""

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """At most `m` tokens to follow `history` (prompt + committed; read only)."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Take note of what became output since the last call."""

    def rewind(self, length: int) -> None:
        """Forget every position of the state from `length` on; a state that is shorter already stays."""


@runtime_checkable
class SamplingDrafter(Protocol):
    """A drafter that draws its proposals and gives the q that it drew them from."""

    def sample_with(self, sampling: Sampling | None) -> None:
        """Draw like that from now on, by the drafter's stream and the position in the output; None: greedily.

        Called before every `reset`, for the generation that begins with it.
        """


@runtime_checkable
class CompositeDrafter(Protocol):
    """A drafter of several parts, all of which follow the output, whoever proposes."""

    parts: Sequence[Drafter]

    def propose_by(self, index: int, history: Sequence[int], m: int) -> Proposal:
        """What that part alone proposes; else as in Drafter."""
