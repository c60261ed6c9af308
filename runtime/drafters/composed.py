"""Several drafters as one: what the first proposes, if it proposes anything, else what the next one does.

`prompt-lookup+ar` looks up first, which costs next to nothing and is right for long where text repeats, and asks the
model where there is nothing to look up. Each round's record says who proposed. A controller asks the part that it
expects most of (`propose_by`); all parts follow the output, so whichever is asked next is up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from runtime.protocols import Drafter, Proposal, SamplingDrafter, Target
from runtime.sampling import Sampling
from telemetry.errors import UsageError
from telemetry.fields import Way


class Composed:
    """`parts` in their order, those of a composed one in its place.

    `proposer`: the name of the part that made the last proposal, or that alone was asked for it; None: nobody made one.
    """

    def __init__(self, *parts: Drafter) -> None:
        """UsageError for a drafter that has to be told ordinary decoding's output: it is for bounds, not for use."""
        for part in parts:
            if hasattr(part, "learn"):
                raise UsageError(f"the drafter {part.name} knows the output beforehand: it cannot be part of another")
        self.parts: Sequence[Drafter] = tuple(
            chain.from_iterable(part.parts if isinstance(part, Composed) else (part,) for part in parts)
        )
        self.name = "+".join(part.name for part in self.parts)
        self.prefix_consistent = all(part.prefix_consistent for part in self.parts)
        self.pure_in_history = all(getattr(part, "pure_in_history", False) for part in self.parts)
        self.proposer: str | None = None
        self.length = 0

    def _settle(self) -> None:
        """`length` is what the longer state covers, so that the loop rewinds where any has to be."""
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
        """Raise what any of them raises if it cannot work for `target`."""
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
        """Reset all."""
        self.proposer = None
        for part in self.parts:
            part.reset(prompt)
        self._settle()

    def propose(self, history: Sequence[int], m: int) -> Proposal:
        """The first proposal that is not empty."""
        if m:
            for index in range(len(self.parts)):
                proposal = self.propose_by(index, history, m)
                if len(proposal):
                    return proposal
        self.proposer = None
        return Proposal(())

    def propose_by(self, index: int, history: Sequence[int], m: int) -> Proposal:
        """What that part proposes, the others not being asked."""
        part = self.parts[index]
        self.proposer = part.name
        proposal = part.propose(history, m)
        self._settle()
        return proposal

    def commit(self, tokens: Sequence[int]) -> None:
        """Tell all."""
        for part in self.parts:
            part.commit(tokens)
        self._settle()

    def rewind(self, length: int) -> None:
        """Rewind those that are further than `length`."""
        for part in self.parts:
            if part.length > length:
                part.rewind(length)
        self._settle()
