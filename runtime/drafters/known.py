"""Drafters whose acceptance is known beforehand: the two ends between which every real drafter lies.

`none` proposes nothing, `oracle` is always right and `wrong` never is. They bound what speculation can gain and lose on
a machine, and show a fault in the loop that a drafter of middling acceptance would hide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runtime.drafters.base import HostDrafter
from runtime.protocols import Proposal
from telemetry.errors import RoundscopeError, UsageError


class NoDrafter(HostDrafter):
    """Proposes nothing: every round is an ordinary step of the speculative loop."""

    name = "none"

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """An empty proposal."""
        return Proposal(())


class Oracle(HostDrafter):
    """Proposes what ordinary decoding said, which it has to be told for each prompt before that is decoded."""

    name = "oracle"

    def __init__(self, outputs: Mapping[tuple[int, ...], Sequence[int]] | None = None) -> None:
        """`outputs`: ordinary's output by prompt, as `learn` takes them one by one."""
        super().__init__()
        self._outputs: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._output: tuple[int, ...] = ()
        self._prompt_length = 0
        for prompt, output in (outputs or {}).items():
            self.learn(prompt, output)

    def learn(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Remember that ordinary decoding answers `prompt` with `output`."""
        self._outputs[tuple(prompt)] = tuple(output)

    def reset(self, prompt: Sequence[int]) -> None:
        """Look up the output for `prompt`; RoundscopeError if it was never told."""
        output = self._outputs.get(tuple(prompt))
        if output is None:
            raise RoundscopeError(
                f"the drafter {self.name} was never told what ordinary decoding says to this prompt of {len(prompt)} "
                "tokens: decode it ordinarily first and call learn(prompt, output)"
            )
        super().reset(prompt)
        self._output = output
        self._prompt_length = len(prompt)

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """The next `m` tokens of the output, fewer at its end."""
        done = len(history) - self._prompt_length
        return Proposal(self._output[done : done + m])


class Wrong(Oracle):
    """Proposes, for each token of ordinary's output, its successor in the vocabulary: never right.

    Beyond the output it was told nothing is sure to be wrong, so it proposes nothing there.
    """

    name = "wrong"

    def __init__(self, vocab_size: int, outputs: Mapping[tuple[int, ...], Sequence[int]] | None = None) -> None:
        """`vocab_size`: of the target; at least 2, since a vocabulary of one token has no wrong one."""
        if vocab_size < 2:
            raise UsageError(f"a vocabulary of {vocab_size} has no wrong token to propose")
        self._vocab_size = vocab_size
        super().__init__(outputs)

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """As many tokens as the oracle would propose, each another than the true one."""
        right = super().propose(history, m).tokens
        return Proposal(tuple((token + 1) % self._vocab_size for token in right))
