"""Configurations of next-concept models: what a model is, checked before anything is built.

A configuration is frozen; unknown keys are refused, and so is whatever could not be computed as it stands, by name and
reason. Those that come with the package are JSON files in `configs/`. No MLX is needed here.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from telemetry.errors import Unsupported, UsageError
from telemetry.fields import LevelAttention, Policy, PrefixAttention

CellOrder: TypeAlias = Literal["rows", "columns", "boxes"]
Upsampling: TypeAlias = Literal["linear", "area"]
Dtype: TypeAlias = Literal["float32", "float16", "bfloat16"]

FOLDER = Path(__file__).parent / "configs"
CELLS = 81
UNIT_KINDS = 3


class NcmConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A next-concept model: a codec from tokens to levels of codes, and a generator of those codes from a prefix.

    prefix_length: positions of the conditioning (P). lengths: positions of each level (l[k]), coarse to fine; the last
    is the length of the output (N). prefix_vocab, vocab: tokens of conditioning and output.
    n_layers: layer applications; n_blocks: different blocks, application j uses block j % n_blocks; level_blocks:
    blocks for the levels' positions alone, used in the same way, 0: the prefix's.
    rotary_dims: how much of a head is rotated by position, restarting at zero in every level.
    prefix_attention: "all", or "units": heads see in turn the row, column and box of their cell of a 9 x 9 grid.
    level_attention: "all" of the prefix, or the "cells" that the query's position covers. Both see all of their level.
    cell_order: how the cells of a 9 x 9 grid are laid out along the sequence, in prefix and output alike.
    codec_width: hidden width of the codec's encoder and decoder. upsampling: from a level to full length.
    dropout: of the generator, in training only.

    Raises UsageError for values that make no sense, Unsupported for combinations that are not computed.
    """

    name: str
    prefix_length: int
    lengths: tuple[int, ...]
    prefix_vocab: int
    vocab: int
    width: int
    n_layers: int
    n_heads: int
    ffn_width: int
    rotary_dims: int
    codebook_size: int
    code_dim: int
    codec_width: int
    n_blocks: int
    level_blocks: int = 0
    rotary_base: float = 10000.0
    dropout: float = 0.0
    policy: Policy = "block_diagonal"
    dtype: Dtype = "float32"
    cell_order: CellOrder = "rows"
    prefix_attention: PrefixAttention = "all"
    level_attention: LevelAttention = "all"
    upsampling: Upsampling = "linear"

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_grid(self)
        _check_policy(self)

    @property
    def n_levels(self) -> int:
        """Levels of the hierarchy (K)."""
        return len(self.lengths)

    @property
    def output_length(self) -> int:
        """Positions of the output (N): the last level's."""
        return self.lengths[-1]

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.width // self.n_heads

    @property
    def digest(self) -> str:
        """sha256 over the canonical JSON: keys sorted, no spaces, every field there."""
        return sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


def load_config(name_or_path: str | Path) -> NcmConfig:
    """The configuration of that name that comes with the package, or the one in that JSON file.

    Raises UsageError where there is none, it is no JSON, or it has unknown, missing or wrong keys; Unsupported as
    `NcmConfig` does.
    """
    path = Path(name_or_path)
    if path.suffix != ".json":
        path = FOLDER / f"{name_or_path}.json"
    try:
        data = path.read_bytes()
    except OSError as error:
        known = ", ".join(config_names())
        raise UsageError(f"no configuration {name_or_path}: take one of {known}, or a .json file") from error
    return parse_config(data, str(name_or_path))


def parse_config(data: bytes, origin: str) -> NcmConfig:
    """The configuration in `data` (JSON); `origin` is named where it is refused, by UsageError or Unsupported."""
    try:
        return msgspec.json.decode(data, type=NcmConfig)
    except msgspec.DecodeError as error:
        cause = error.__cause__
        kind = Unsupported if isinstance(cause, Unsupported) else UsageError
        raise kind(f"configuration {origin}: {cause or error}") from error


def config_names() -> list[str]:
    """Names of the configurations that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def _check_sizes(config: NcmConfig) -> None:
    positive = (
        "prefix_length prefix_vocab vocab width n_layers n_heads ffn_width codebook_size code_dim codec_width n_blocks"
    )
    for field in positive.split():
        _require(getattr(config, field) >= 1, f"{field} must be at least 1, not {getattr(config, field)}")
    lengths = config.lengths
    _require(bool(lengths) and min(lengths) >= 1, f"lengths must name at least one level of positions, not {lengths}")
    _require(tuple(sorted(lengths)) == lengths, f"lengths must not shrink from level to level: {lengths}")
    _require(config.width % config.n_heads == 0, f"width {config.width} must be a multiple of n_heads {config.n_heads}")
    _require(config.head_dim % 2 == 0, f"a head must have an even width to be rotated, not {config.head_dim}")
    rotary = config.rotary_dims
    _require(
        rotary % 2 == 0 and 0 <= rotary <= config.head_dim,
        f"rotary_dims must be even and at most a head's {config.head_dim}, not {rotary}",
    )
    for field in ("n_blocks", "level_blocks"):
        blocks = getattr(config, field)
        _require(blocks >= 0, f"{field} must not be negative, not {blocks}")
        _require(
            blocks == 0 or config.n_layers % blocks == 0,
            f"n_layers {config.n_layers} must be a multiple of {field} {blocks}",
        )
    _require(config.rotary_base > 1, f"rotary_base must be above 1, not {config.rotary_base}")
    _require(0 <= config.dropout < 1, f"dropout must be at least 0 and below 1, not {config.dropout}")


def _check_grid(config: NcmConfig) -> None:
    of_grid = config.prefix_length == CELLS
    if config.prefix_attention == "units" and not (of_grid and config.n_heads % UNIT_KINDS == 0):
        raise Unsupported(
            f"prefix_attention units: heads take turns at the rows, columns and boxes of {CELLS} cells, so it needs "
            f"prefix_length {CELLS} (not {config.prefix_length}) and n_heads divisible by 3 (not {config.n_heads})"
        )
    if config.cell_order != "rows" and not (of_grid and config.output_length == CELLS):
        raise Unsupported(
            f"cell_order {config.cell_order}: only a 9 x 9 grid has it, so prefix_length and the last of lengths must "
            f"be {CELLS}, not {config.prefix_length} and {config.output_length}"
        )
    if config.level_attention == "cells" and config.prefix_length != config.output_length:
        raise Unsupported(
            "level_attention cells: a level's position covers cells of the prefix only where prefix and output are "
            f"as long, not {config.prefix_length} and {config.output_length}"
        )


def _check_policy(config: NcmConfig) -> None:
    if config.policy == "block_causal" and config.level_attention == "cells":
        raise Unsupported(
            "level_attention cells with policy block_causal: what a position may see of earlier levels is not defined"
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
