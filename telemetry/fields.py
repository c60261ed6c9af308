"""The values that fields of records take, and what is said about a field."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

Timing: TypeAlias = Literal["fused", "attributed"]
Drawing: TypeAlias = Literal["greedy", "stochastic", "relaxed"]
Coupling: TypeAlias = Literal["residual", "equality"]
ProposalSource: TypeAlias = Literal["point", "drafter"]
Basis: TypeAlias = Literal["host", "host_launch", "host_wait", "barrier"]
Outcome: TypeAlias = Literal["correction", "bonus", "step", "stop", "cancelled", "error"]
StopKind: TypeAlias = Literal["eos", "stop_id", "stop_string"]
RunKind: TypeAlias = Literal["speculation", "ncm"]
RunOutcome: TypeAlias = Literal["complete", "interrupted", "error", "incomplete"]
RankFinish: TypeAlias = Literal["complete", "interrupted", "error"]
FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]
Power: TypeAlias = Literal["mains", "battery"]
Way: TypeAlias = Literal["none", "trim", "snapshot"]
NcmFinish: TypeAlias = Literal["complete", "exited", "cancelled", "error"]
Exit: TypeAlias = Literal["none", "verified"]
Reason: TypeAlias = Literal["prior", "best", "probe", "budget", "landing", "last"]
Policy: TypeAlias = Literal["block_diagonal", "block_causal"]
PrefixAttention: TypeAlias = Literal["all", "units"]
LevelAttention: TypeAlias = Literal["all", "cells"]

COMMITS_ONE_MORE: tuple[Outcome, ...] = ("correction", "bonus", "step")
"""Outcomes whose round commits one token of the target's beyond the accepted ones."""

STAGES = ("draft", "verify", "synchronize", "trim", "rewind")
"""The stages of a round, in their order."""

LEVEL_STAGES = ("forward", "sample", "reconstruct", "decode", "check")
"""The stages of a level, in their order. What a level's forward launches may be waited for in a later stage."""


Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A number that cannot be negative and fits a BIGINT."""


def about(meaning: str, unit: str | None = None) -> Meta:
    """Metadata of one field: what it means, and its unit."""
    return Meta(description=meaning, extra={"unit": unit})
