"""How a learned drafter is trained: the shape of its network and the steps of its training."""

from __future__ import annotations

from typing import Any

import msgspec

from telemetry.errors import UsageError


class LearnedRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whoever has it, the data and the machine's arithmetic gets the same weights. UsageError for what makes no sense.

    vocab: the most frequent tokens that are spoken. width, layers, heads, ffn: of the trunk. block: tokens said at
    once. steps, alignment_steps: of training for greedy agreement, and then for sampled acceptance; rate,
    alignment_rate: their peak learning rates, reached after `warm_up` steps, then a cosine down to a twentieth. batch:
    answers a step; positions: of them, those whose tokens are learned in that step. context: prompt tokens before an
    answer that are kept. dropout: share of input tokens that are replaced by "any other token".
    """

    vocab: int = 4096
    width: int = 256
    layers: int = 2
    heads: int = 4
    ffn: int = 768
    block: int = 1
    steps: int = 1200
    alignment_steps: int = 150
    batch: int = 8
    positions: int = 2048
    context: int = 96
    rate: float = 2e-3
    alignment_rate: float = 3e-4
    warm_up: int = 100
    weight_decay: float = 0.05
    dropout: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "positions", "context", "warm_up"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.alignment_steps < 0:
            raise UsageError(f"alignment_steps is {self.alignment_steps}; it must not be negative")
        for name in ("rate", "alignment_rate"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("dropout", "weight_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be from 0 to below 1")


RECIPES = {
    "ar": LearnedRecipe(),
    "blocks": LearnedRecipe(block=4),
}
"""By name of the drafter: the same trunk and the same steps."""


def change_recipe(name: str, changes: dict[str, str]) -> LearnedRecipe:
    """The recipe of the drafter `name` with `changes`, as text. UsageError for an unknown field or a wrong value."""
    try:
        wanted: dict[str, Any] = msgspec.convert(changes, dict[str, float], strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"--set: {error}: give numbers") from error
    known = {field.name: field.type for field in msgspec.structs.fields(LearnedRecipe)}
    unknown = [field for field in wanted if field not in known]
    if unknown:
        raise UsageError(f"--set {unknown[0]}: a recipe has no such field, but {', '.join(known)}")
    whole = [f for f, value in wanted.items() if known[f] in (int, "int") and value != int(value)]
    if whole:
        raise UsageError(f"--set {whole[0]}: it must be a whole number")
    settled = {f: int(value) if known[f] in (int, "int") else value for f, value in wanted.items()}
    return msgspec.structs.replace(RECIPES[name], **settled)
