"""Small random models of every cache layout that mlx-lm has, built from its own classes: no download, seeded weights.

Windows and chunks are 16 positions and heads 32 wide (a group of quantised K/V), so that a short prompt wraps the one
and fits the other. `python -m tests.architectures` prints docs/targets.md.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.caches import Undo, require_undo
from runtime.caches.kinds import KINDS, REFUSED
from runtime.caches.quantising import Quantising
from runtime.targets import MlxTarget
from telemetry.errors import Unsupported

VOCABULARY = 64
WINDOW = 16
_HIDDEN, _HEADS, _KV_HEADS, _HEAD = 32, 2, 1, 32

_SIZES: dict[str, Any] = {
    "hidden_size": _HIDDEN,
    "intermediate_size": 64,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _KV_HEADS,
    "head_dim": _HEAD,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Architecture:
    """One model class of mlx-lm at a small size.

    module: of mlx_lm.models. options: what its ModelArgs gets besides the sizes above; those it has no field for are
    left out. text: the options make up its text_config. scale: spread of the weights, wide enough for an output that
    does not settle on one token. kv_bits: whether all its K/V can be quantised.
    """

    module: str
    options: dict[str, Any] = field(default_factory=dict)
    text: bool = False
    scale: float = 1.0
    kv_bits: bool = False

    def build(self, seed: int) -> MlxTarget:
        """The model with weights that depend on `seed` alone."""
        module = importlib.import_module(f"mlx_lm.models.{self.module}")
        options = {"model_type": self.module, **_SIZES, **self.options}
        if self.text:
            options = {"model_type": self.module, "text_config": options}
        model = module.Model(module.ModelArgs.from_dict(options))
        _seed_weights(model, seed, self.scale)
        return MlxTarget(f"{self.module}-{seed}", model)


def _seed_weights(model: Any, seed: int, scale: float) -> None:
    """Draw matrices, biases and decays; what is set by a rule (norms) stays as the class makes it."""
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_unflatten

    named: Any = tree_flatten(model.parameters())
    keys = mx.random.split(mx.random.key(seed), len(named))
    weights = []
    for (path, array), key in zip(named, keys, strict=True):
        if array.ndim > 1:
            array = mx.random.normal(array.shape, key=key) * (scale * array.shape[-1] ** -0.5)
        elif path.endswith("bias"):
            array = mx.random.normal(array.shape, key=key) * 0.1
        elif path.endswith("A_log"):
            array = mx.log(mx.random.uniform(1, 16, array.shape, key=key))
        weights.append((path, array))
    model.update(tree_unflatten(weights))
    model.eval()
    mx.eval(model.parameters())


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", {"num_hidden_layers": 2}, kv_bits=True, scale=2),
    "llama, sliding": Architecture(
        "llama",
        {"num_hidden_layers": 2, "layer_types": [_FULL, _SLIDING], "sliding_window": WINDOW},
        scale=2,
    ),
    "gemma3_text": Architecture(
        "gemma3_text",
        {
            "num_hidden_layers": 2,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": _HEAD,
        },
        scale=2,
    ),
    "gemma4_text": Architecture(
        "gemma4_text",
        {
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "global_head_dim": 2 * _HEAD,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 2,
        },
        scale=2,
    ),
    "gpt_oss": Architecture(
        "gpt_oss",
        {
            "num_hidden_layers": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "layer_types": [_SLIDING, _FULL],
        },
        scale=2,
    ),
    "qwen3_moe": Architecture("qwen3_moe", {"num_hidden_layers": 2, **_EXPERTS}, kv_bits=True, scale=4),
    "llama4": Architecture(
        "llama4",
        {
            "num_hidden_layers": 4,
            "attention_bias": False,
            "attention_chunk_size": WINDOW,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 64,
            "num_experts_per_tok": 1,
            "num_local_experts": 4,
            "rope_scaling": None,
            "use_qk_norm": True,
        },
        text=True,
        scale=2,
    ),
    "deepseek_v32": Architecture(
        "deepseek_v32",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": _HEADS,
            "index_head_dim": 16,
            "index_n_heads": 2,
            "index_topk": WINDOW,
            "moe_intermediate_size": 32,
            "n_shared_experts": 1,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
            "first_k_dense_replace": 1,
        },
        scale=4,
    ),
    "mamba2": Architecture(
        "mamba2",
        {
            "num_heads": 4,
            "head_dim": 16,
            "state_size": 16,
            "num_hidden_layers": 2,
            "layer_norm_epsilon": 1e-5,
            "conv_kernel": 4,
            "n_groups": 1,
            "use_bias": False,
            "use_conv_bias": True,
            "time_step_limit": (0.0, float("inf")),
            "time_step_rank": "auto",
        },
    ),
    "rwkv7": Architecture(
        "rwkv7",
        {
            "num_hidden_layers": 2,
            "norm_eps": 1e-5,
            "head_dim": 16,
            "a_low_rank_dim": 8,
            "v_low_rank_dim": 8,
            "gate_low_rank_dim": 8,
            "decay_low_rank_dim": 8,
        },
    ),
    "qwen3_next": Architecture(
        "qwen3_next",
        {
            "num_hidden_layers": 2,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_conv_kernel_dim": 4,
            **_EXPERTS,
            "shared_expert_intermediate_size": 32,
            "partial_rotary_factor": 0.5,
            "full_attention_interval": 2,
        },
        kv_bits=True,
    ),
    "recurrent_gemma": Architecture(
        "recurrent_gemma",
        {
            "num_hidden_layers": 2,
            "attention_bias": False,
            "conv1d_width": 4,
            "logits_soft_cap": 30.0,
            "attention_window_size": WINDOW,
            "block_types": ["recurrent", "attention"],
        },
        scale=2,
    ),
    "falcon_h1": Architecture(
        "falcon_h1",
        {
            "num_hidden_layers": 2,
            "mamba_d_head": 16,
            "mamba_d_ssm": 64,
            "mamba_d_state": 16,
            "mamba_n_heads": 4,
            "embedding_multiplier": 1.0,
            "lm_head_multiplier": 1.0,
        },
        scale=2,
    ),
    "deepseek_v41": Architecture(
        "deepseek_v41",
        {
            "num_hidden_layers": 2,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "o_groups": 2,
            "o_lora_rank": 16,
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "compress_ratios": (0, 0),
            "index_n_heads": 2,
            "index_head_dim": 16,
            "hc_mult": 2,
        },
    ),
}
"""By the name that docs/targets.md and the tests give it."""


def render_targets() -> str:
    """The text of docs/targets.md."""
    lines = _HEADER.splitlines()
    for name, architecture in ARCHITECTURES.items():
        layers = architecture.build(0).make_cache()
        target, drafter = _find_way(layers, stepwise=False), _find_way(layers, stepwise=True)
        verdict = "refused: ordinary decoding only" if target == "refused" else "equal"
        lines.append(_row(name, _describe(layers), target, drafter, _quantised(layers), verdict))
    lines += _KINDS_HEADER.splitlines()
    lines += [_row(f"`{name}`", _KIND_WORDS[type(kind).__name__]) for name, kind in KINDS.items()]
    lines.append(_row("`CacheList`", "as the caches in it"))
    lines += [_row(f"`{name}`", f"refused: {reason}") for name, reason in REFUSED.items()]
    lines.append(_row("any other", "`trim` if it says that it can be trimmed, checked every time; else refused"))
    return "\n".join(lines) + "\n"


_HEADER = """\
# Targets

Generated by `python -m tests.architectures`; a test holds this file to it.

Models of these classes of mlx-lm are built at a small size, with random weights, and decoded on the CPU in float32
with drafters that are right, wrong, now and then right, and another model of the class: at draft lengths of 1, 4 and 8
(one of each kind of cache at every length from 0 to 8), from prompts longer than the window, over three turns, and with
K/V quantised from the start and from a threshold. *equal*: the committed ids are those of mlx-lm's ordinary loop, each
time.

The way back is how rejected tokens leave a cache: `trim` takes them out of every layer; `snapshot` puts the states from
before the round back and feeds the accepted tokens again, in front of the next round's. It is in each round's record.
A drafter feeds token by token, so that a window or a chunk loses in a round what a target could trim: it takes a
snapshot where the round would reach that far, and trims where not. Quantised K/V is refused where a
layer's class has no quantised form.

| architecture | caches | way back: target | way back: drafter | quantised K/V | speculation |
|---|---|---|---|---|---|"""

_KINDS_HEADER = """
## Cache classes

| class | way back |
|---|---|"""

_KIND_WORDS = {
    "Plain": "`trim`",
    "Concatenating": "`trim`, of the entries too: its own only moves the offset",
    "Rotating": "`trim` after a forward over several positions; `snapshot` where steps would overwrite; "
    "refused with `keep` above 0",
    "Chunked": "`trim` after a forward over several positions; `snapshot` where steps would cut the front",
    "Arrays": "`snapshot`",
}


def _find_way(layers: Sequence[Any], *, stepwise: bool) -> str:
    try:
        require_undo(layers, "it")
    except Unsupported:
        return "refused"
    return f"`{Undo(layers, stepwise=stepwise).way}`"


def _quantised(layers: Sequence[Any]) -> str:
    try:
        Quantising(8).check(layers)
    except Unsupported:
        return "refused"
    return "equal"


def _describe(layers: Sequence[Any]) -> str:
    counts = Counter(_name(layer) for layer in layers)
    return ", ".join(f"{count} `{name}`" for name, count in counts.items())


def _name(layer: Any) -> str:
    name = type(layer).__name__
    return f"{name}({', '.join(map(_name, layer.caches))})" if name == "CacheList" else name


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(render_targets(), end="")
