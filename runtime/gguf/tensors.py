"""Which tensors a llama file must hold, of which types MLX reads right, and what mlx-lm calls them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from runtime.gguf.header import BLOCKS, Header
from telemetry.errors import RoundscopeError, Unsupported
from telemetry.logs import get_logger

_CURE = "take the file of type Q8_0, Q4_1, Q4_0 or F16, or convert the original model with mlx_lm.convert"
_FAULTS = {
    "Q4_K": "MLX decodes it wrongly without an error",
    **dict.fromkeys(("Q5_0", "Q5_1", "Q3_K", "Q5_K"), "MLX cannot load it"),
    **dict.fromkeys(("MXFP4", "TQ1_0", "TQ2_0"), "MLX drops such tensors without an error"),
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROTATION_FACTORS = "rope_freqs.weight"
"""Present where rotary wavelengths are stretched (Llama 3.1 and later)."""
OUTPUT = "output.weight"
"""Absent where the output's weights are those of the embedding."""


def check_tensors(header: Header, layers: int) -> None:
    """Raise RoundscopeError for tensors that are missing, Unsupported for types and tensors that are not read right."""
    _check_types(header)
    wanted = {f"{name}.weight" for name in _TOP} | {f"blk.{i}.{name}.weight" for i in range(layers) for name in _BLOCK}
    missing = wanted - header.tensors.keys() - {OUTPUT}
    if missing:
        raise RoundscopeError(f"it lacks {_list(missing)}, which a llama of {layers} layers has; get it again, whole")
    unexpected = header.tensors.keys() - wanted - {ROTATION_FACTORS}
    if unexpected:
        raise Unsupported(
            f"it holds {_list(unexpected)}, which are no plain llama's and would be ignored: "
            "convert the original model with mlx_lm.convert and give that folder"
        )


def _check_types(header: Header) -> None:
    by_type: dict[str, list[str]] = {}
    for name, tensor in header.tensors.items():
        by_type.setdefault(tensor.type, []).append(name)
    for kind in sorted(by_type.keys() - BLOCKS.keys()):
        fault = _FAULTS.get(kind, "MLX is not known to read it")
        raise Unsupported(f"{_list(by_type[kind])} are of type {kind}: {fault}; {_CURE}")
    if "BF16" in by_type:
        get_logger().warning("gguf.bfloat16", tensors=len(by_type["BF16"]), effect="MLX reads them as float16")


def _list(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (f" and {len(ordered) - 3} more" if len(ordered) > 3 else "")


def rename(name: str) -> str:
    """mlx-lm's name of the tensor that MLX loads as `name` ("blk.3.attn_q.scales", "output_norm.weight")."""
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name)
    if block:
        return f"model.layers.{block[1]}.{_BLOCK[block[2]]}.{block[3]}"
    module, kind = name.rsplit(".", 1)
    return f"{_TOP[module]}.{kind}"


def matrices(header: Header) -> Iterator[str]:
    """The types of the weights that are no vectors."""
    return (tensor.type for tensor in header.tensors.values() if len(tensor.shape) > 1)
