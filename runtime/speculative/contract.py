"""What a drafter must keep to, checked where its answer comes in."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.protocols import Drafter, Proposal
from telemetry.errors import RoundscopeError


class DrafterError(RoundscopeError):
    """A drafter broke its contract; the message names it."""

    def __init__(self, drafter: Drafter, fault: str) -> None:
        super().__init__(f"drafter {drafter.name!r} {fault}")


def check_length(drafter: Drafter, proposal: Proposal, requested: int) -> None:
    """Raise DrafterError if more was proposed than was asked for."""
    if len(proposal) > requested:
        raise DrafterError(drafter, f"proposed {len(proposal)} tokens where {requested} were asked for")


def check_ids(drafter: Drafter, tokens: Sequence[int], vocab_size: int) -> None:
    """Raise DrafterError if a proposed id is none of the target's."""
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise DrafterError(
                drafter, f"proposed token {token}, which is not in the target's vocabulary of {vocab_size}"
            )
