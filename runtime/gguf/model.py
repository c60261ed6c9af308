"""A llama model and its tokenizer out of one GGUF file, its weights quantised as they are in the file.

Whatever would be read wrongly is refused first, by what the file's own header says: MLX itself decodes some types
wrongly, drops others, and mlx-lm knows nothing of GGUF.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.gguf.header import Header, read_header
from runtime.gguf.tensors import OUTPUT, ROTATION_FACTORS, check_tensors, matrices, rename
from runtime.gguf.tokenizer import CURE, find_splitting, read_tokenizer
from telemetry.errors import RoundscopeError, Unsupported

GROUP_SIZE = 32


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model read from a GGUF file: `config` is what a config.json beside the same weights would say."""

    config: dict[str, Any]
    model: Any
    tokenizer: Any


def read_gguf(path: Path) -> GgufModel:
    """The llama model and byte-level BPE tokenizer in `path`; no weight is evaluated.

    Weights stay quantised as they are in the file (Q4_0, Q4_1 and Q8_0), the others become float16, as the scales are,
    so that activations stay in one type; float32 where every matrix is.

    Raises RoundscopeError for a damaged or incomplete file and Unsupported for another architecture, a tokenizer or
    tensor types that would not be read right, each naming what and the cure.
    """
    header = read_header(path)
    try:
        config = read_config(header)
        check_tensors(header, config["num_hidden_layers"])
        find_splitting(header.metadata)
    except Unsupported as error:
        raise Unsupported(f"{path.name} is refused: {error}") from error
    except RoundscopeError as error:
        raise RoundscopeError(f"{path.name} cannot be read: {error}") from error
    model = _load(path, header, config)
    return GgufModel(config, model, read_tokenizer(header.metadata))


def _load(path: Path, header: Header, config: dict[str, Any]) -> Any:
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize
    from mlx_lm.models.llama import Model, ModelArgs

    loaded: Any = mx.load(str(path))
    factors = loaded.pop(ROTATION_FACTORS, None)
    weights = {rename(name): tensor for name, tensor in loaded.items()}
    model = Model(ModelArgs.from_dict(config))
    if factors is not None:
        _stretch_rotations(model, config, factors)

    def describe_quantisation(layer: str, module: Any) -> bool | dict[str, int]:
        packed = weights.get(f"{layer}.weight")
        if packed is None or f"{layer}.scales" not in weights:
            return False
        return {"group_size": GROUP_SIZE, "bits": packed.shape[-1] * 32 // module.weight.shape[-1]}

    quantize(model, group_size=GROUP_SIZE, bits=4, class_predicate=describe_quantisation)
    try:
        model.load_weights(list(weights.items()))
    except ValueError as error:
        raise RoundscopeError(f"{path.name} does not fit its own metadata: {str(error).splitlines()[0]}") from error
    model.set_dtype(mx.float32 if set(matrices(header)) == {"F32"} else mx.float16)
    model.eval()
    quantised = {
        layer: {"group_size": module.group_size, "bits": module.bits}
        for layer, module in model.named_modules()
        if hasattr(module, "bits")
    }
    if quantised:
        config["quantization"] = {"group_size": GROUP_SIZE, "bits": 4, **quantised}
    return model


def _stretch_rotations(model: Any, config: dict[str, Any], factors: Any) -> None:
    """Multiply the wavelengths of the rotary positions by `factors` (head_dim / 2,): Llama 3.1's scaling as the file
    has it, worked out by the converter.
    """
    from mlx_lm.models.rope_utils import Llama3RoPE

    rope = Llama3RoPE(
        config["head_dim"],
        config["max_position_embeddings"],
        traditional=config["rope_traditional"],
        base=config["rope_theta"],
        scaling_config={"factor": 1.0},
    )
    rope._freqs = rope._freqs * factors
    for layer in model.layers:
        layer.self_attn.rope = rope


def read_config(header: Header) -> dict[str, Any]:
    """The configuration in mlx-lm's words.

    The converter of llama files permutes the rows of Q and K for rotation of neighbouring pairs, hence
    `rope_traditional`. Raises Unsupported for what is no plain llama and RoundscopeError for missing keys.
    """
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise Unsupported(f"its architecture is {architecture!r}, not 'llama': {CURE}")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise Unsupported(f"its positions are scaled ({scaling}): {CURE}")
    try:
        config = _translate(metadata)
    except KeyError as error:
        raise RoundscopeError(f"its metadata lack {error.args[0]}; get it again, whole") from error
    rotated = metadata.get("llama.rope.dimension_count", config["head_dim"])
    if rotated != config["head_dim"]:
        raise Unsupported(f"only {rotated} of {config['head_dim']} dimensions of a head are rotated: {CURE}")
    factors = header.tensors.get(ROTATION_FACTORS)
    if factors is not None and (factors.type, tuple(factors.shape)) != ("F32", (config["head_dim"] // 2,)):
        raise Unsupported(f"{ROTATION_FACTORS} is not one F32 number for each pair of a head's dimensions: {CURE}")
    config["tie_word_embeddings"] = OUTPUT not in header.tensors
    return config


def _translate(metadata: dict[str, Any]) -> dict[str, Any]:
    hidden, heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": metadata["llama.block_count"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": metadata.get("llama.attention.key_length", hidden // heads),
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": metadata.get("llama.rope.freq_base", 10000.0),
        "rope_traditional": True,
        "max_position_embeddings": metadata["llama.context_length"],
        "vocab_size": metadata.get("llama.vocab_size") or len(metadata["tokenizer.ggml.tokens"]),
    }
    named = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in named.items()}
    return config | {name: value for name, value in found.items() if value is not None}
