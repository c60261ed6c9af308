"""What the training of a text model does besides its configuration, checked, and kept inside the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from runtime.ncm.config import NcmConfig, load_config
from telemetry.errors import UsageError

CONFIG = Path(__file__).parent / "configs" / "text-draft.json"


class TextRecipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a text model is trained. Whoever has it, the configuration, the data and the machine's arithmetic gets the
    same weights.

    n_tokens: size of the frequent-token subset. batch, generator_batch: blocks a step. *_steps, *_rate: of codec,
    causal stage and generator, both for greedy agreement, and of the generator's training for sampled acceptance; rates
    are peaks, reached after `warm_up` steps, then a cosine down to a twentieth.
    keep_all: share of blocks for which the codec keeps all levels. position_decay: weight of each position's token over
    that of the one before: only what follows right tokens is ever accepted. code_weight: of the codes' loss beside the
    tokens'. own_share: share of blocks that go on from the model's own codes, as a drafter has to, instead of the
    codec's; drawn_share: part of those whose codes are drawn; the rest takes the likeliest. greedy_share: share of
    blocks out of greedy outputs, None: as many as there are. hidden: share of the prefixes' tokens that training
    replaces by "another token". with_prompts: whether the causal stage learns the prompts' text too. from_embeddings:
    whether token embeddings begin as principal components of the target's. The rest changes the configuration's fields
    of the same names.
    """

    seed: int = 0
    n_tokens: int = 4096
    batch: int = 256
    generator_batch: int = 64
    codec_steps: int = 300
    causal_steps: int = 700
    generator_steps: int = 900
    alignment_steps: int = 150
    codec_rate: float = 2e-3
    causal_rate: float = 2e-3
    generator_rate: float = 1e-3
    alignment_rate: float = 3e-4
    warm_up: int = 50
    weight_decay: float = 0.05
    keep_all: float = 0.5
    position_decay: float = 0.7
    code_weight: float = 0.25
    own_share: float = 0.75
    drawn_share: float = 0.25
    greedy_share: float | None = None
    hidden: float = 0.1
    with_prompts: bool = True
    from_embeddings: bool = True
    prefix_length: int = 32
    lengths: tuple[int, ...] = (1, 8)
    width: int = 192
    ffn_width: int = 512
    n_layers: int = 2
    codebook_size: int = 1024
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for field in ("n_tokens", "batch", "generator_batch", "warm_up"):
            _require(getattr(self, field) >= 1, f"{field} must be at least 1, not {getattr(self, field)}")
        for field in ("seed", "codec_steps", "causal_steps", "generator_steps", "alignment_steps"):
            _require(getattr(self, field) >= 0, f"{field} must not be negative, not {getattr(self, field)}")
        for field in ("codec_rate", "causal_rate", "generator_rate", "alignment_rate", "position_decay"):
            _require(getattr(self, field) > 0, f"{field} must be above 0, not {getattr(self, field)}")
        for field in ("weight_decay", "keep_all", "code_weight", "own_share", "drawn_share", "greedy_share", "hidden"):
            value = getattr(self, field)
            _require(value is None or 0 <= value <= 1, f"{field} must be from 0 to 1, not {value}")

    def change_config(self) -> NcmConfig:
        """The configuration that comes with the package, with this recipe's shapes; raises as `NcmConfig` does."""
        base = load_config(CONFIG)
        return msgspec.structs.replace(
            base,
            rotary_dims=self.width // base.n_heads,
            prefix_length=self.prefix_length,
            lengths=self.lengths,
            width=self.width,
            ffn_width=self.ffn_width,
            n_layers=self.n_layers,
            n_blocks=self.n_layers,
            level_blocks=self.n_layers,
            codebook_size=self.codebook_size,
            dropout=self.dropout,
        )


def change_recipe(changes: dict[str, str]) -> TextRecipe:
    """The recipe with `changes`, as text (lengths as in 1-2-4-8). UsageError for an unknown field or a wrong value."""
    wanted: dict[str, Any] = dict(changes)
    if "lengths" in wanted:
        wanted["lengths"] = wanted["lengths"].split("-")
    try:
        return msgspec.convert(wanted, TextRecipe, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(field.name for field in msgspec.structs.fields(TextRecipe))
        raise UsageError(f"--set: {error}. A recipe has the fields {known}") from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(f"recipe: {message}")
