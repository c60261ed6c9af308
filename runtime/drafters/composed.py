"""Two drafters as one: what the first proposes, if it proposes anything, else what the second does.

`prompt-lookup+ar` looks up first, which costs next to nothing and is right for long where text repeats, and asks the
model where there is nothing to look up. Each round's record says who proposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.protocols import Drafter, Proposal, SamplingDrafter, Target
from runtime.sampling import Sampling
from telemetry.errors import UsageError
from telemetry.fields import Way


class Composed:
    """`first` before `second`. `proposer`: the name of the one that made the last proposal, None if nobody did."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        """UsageError for a drafter that has to be told ordinary decoding's output: it is for bounds, not for use."""
        for part in (first, second):
            if hasattr(part, "learn"):
                raise UsageError(f"the drafter {part.name} knows the output beforehand: it cannot be part of another")
        self.parts = (first, second)
        self.name = f"{first.name}+{second.name}"
        self.prefix_consistent = first.prefix_consistent and second.prefix_consistent
        self.pure_in_history = all(getattr(part, "pure_in_history", False) for part in self.parts)
        self.proposer: str | None = None
        self.length = 0

    def _settle(self) -> None:
        """`length` is what the longer state covers, so that the loop rewinds where either has to be."""
        self.length = max(part.length for part in self.parts)

    @property
    def way(self) -> Way:
        """How rejected positions leave the states: the one that is dearest."""
        ways: list[Way] = [getattr(part, "way", "trim") for part in self.parts]
        return "snapshot" if "snapshot" in ways else "trim"

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of the states kept for the open round."""
        return sum(getattr(part, "snapshot_bytes", 0) for part in self.parts)

    def check(self, target: Target) -> None:
        """Raise what either raises if it cannot work for `target`."""
        for part in self.parts:
            check = getattr(part, "check", None)
            if check is not None:
                check(target)

    def sample_with(self, sampling: Sampling | None) -> None:
        """As in SamplingDrafter, for those that draw."""
        for part in self.parts:
            if isinstance(part, SamplingDrafter):
                part.sample_with(sampling)

    def reset(self, prompt: Sequence[int]) -> None:
        """Reset both."""
        self.proposer = None
        for part in self.parts:
            part.reset(prompt)
        self._settle()

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """The first proposal that is not empty."""
        self.proposer = None
        if m:
            for part in self.parts:
                proposal = part.propose(history, m)
                if len(proposal):
                    self.proposer = part.name
                    self._settle()
                    return proposal
        return Proposal(())

    def commit(self, tokens: Sequence[int]) -> None:
        """Tell both."""
        for part in self.parts:
            part.commit(tokens)
        self._settle()

    def rewind(self, length: int) -> None:
        """Rewind those that are further than `length`."""
        for part in self.parts:
            if part.length > length:
                part.rewind(length)
        self._settle()
