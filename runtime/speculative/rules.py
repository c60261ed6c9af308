"""The rules of acceptance, each in two halves: what is made of the target's logits on the device, and what that comes
to once it was read.

A rule is applied to a whole block, or token by token where processors have to see every history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from runtime.protocols import Drafter, Proposal, SamplingDrafter
from runtime.sampling import Sampling
from runtime.session import Session
from runtime.speculative.contract import DrafterError
from runtime.speculative.overlap import OverlapMeter
from runtime.speculative.relaxed import Relaxed, judge_relaxed
from runtime.speculative.stochastic import judge, take_q
from runtime.speculative.verification import count_accepted


class Rule(Protocol):
    """How much of a proposal stands, and which token follows."""

    def judge(self, proposal: Proposal, part: slice, logits: Any) -> tuple[Any, ...]:
        """What is to be read to settle that part of the proposal, lazily.

        logits: (n + 1, vocab) for n proposed tokens, or (1, vocab) for one of them.
        """

    def settle(self, drafted: Sequence[int], found: Sequence[Sequence[int]]) -> tuple[int, list[int]]:
        """How many of `drafted` stand, and the tokens that are committed, from what was read of `judge`'s arrays.

        After one of one token the list has what follows it, which only counts where its logits were there.
        """


class OwnTokens:
    """The target's own tokens are accepted: its argmax, or at a temperature its draw, as ordinary decoding has them."""

    def __init__(self, session: Session, meter: OverlapMeter | None) -> None:
        self._session, self._meter = session, meter

    def judge(self, proposal: Proposal, part: slice, logits: Any) -> tuple[Any, ...]:
        """The target's token (n,) of every row."""
        import mlx.core as mx

        sampling = self._session.sampling
        if sampling is None:
            return (mx.argmax(logits, axis=-1),)  # the lowest id on ties
        _note(self._meter, logits)
        place = self._session.position + (part.start or 0)
        rows = range(logits.shape[0])
        return (mx.concatenate([sampling.choose(logits[i : i + 1], place + i) for i in rows]),)

    def settle(self, drafted: Sequence[int], found: Sequence[Sequence[int]]) -> tuple[int, list[int]]:
        """The longest common prefix stands."""
        [own] = found
        accepted = count_accepted(drafted, own)
        return accepted, list(own[: accepted + 1])


class _Drawn:
    """What the two rules share whose verdict is made on the device."""

    def __init__(self, session: Session, drafter: Drafter) -> None:
        self._session, self._drafter = session, drafter

    def _place(self, proposal: Proposal, part: slice) -> tuple[Any, int]:
        """That part's tokens as an array, and its position in the output."""
        import mlx.core as mx

        tokens = proposal.tokens
        if isinstance(tokens, (list, tuple)):
            tokens = mx.array(tokens, mx.int32)
        return tokens[part], self._session.position + (part.start or 0)

    def settle(self, drafted: Sequence[int], found: Sequence[Sequence[int]]) -> tuple[int, list[int]]:
        """As the verdict says; DrafterError where it says that q is not what was drawn from."""
        [accepted], [token], [is_sound] = found
        if not is_sound:
            raise DrafterError(
                self._drafter,
                "proposed a token that its own q gives no mass: q must be the distribution that the token was drawn "
                "from",
            )
        return accepted, [*drafted[:accepted], token]


class Residual(_Drawn):
    """Accept by p and q, and correct from the positive part of p - q."""

    def __init__(self, session: Session, drafter: Drafter, sampling: Sampling, meter: OverlapMeter | None) -> None:
        super().__init__(session, drafter)
        self._sampling, self._meter = sampling, meter

    def judge(self, proposal: Proposal, part: slice, logits: Any) -> tuple[Any, ...]:
        """A verdict's arrays."""
        tokens, place = self._place(proposal, part)
        _note(self._meter, logits)
        if proposal.q is not None and not isinstance(self._drafter, SamplingDrafter):
            raise DrafterError(self._drafter, "gave a q, but has no sample_with(sampling): one that draws needs it")
        try:
            q = take_q(proposal.q, len(proposal), logits.shape[-1])
        except ValueError as error:
            raise DrafterError(self._drafter, f"gave {error}") from None
        return judge(logits, tokens, None if q is None else q[part], self._sampling, place).arrays


class Limits(_Drawn):
    """Relaxed acceptance: tokens stand whose mass is above a limit. Not exact."""

    def __init__(self, session: Session, drafter: Drafter, relaxed: Relaxed) -> None:
        super().__init__(session, drafter)
        self._relaxed = relaxed

    def judge(self, proposal: Proposal, part: slice, logits: Any) -> tuple[Any, ...]:
        """A verdict's arrays."""
        tokens, place = self._place(proposal, part)
        return judge_relaxed(logits, tokens, self._relaxed, self._session.sampling, place).arrays


def _note(meter: OverlapMeter | None, logits: Any) -> None:
    if meter is not None:
        meter.note(logits)
