"""mlx-lm's `stream_generate` and ours, asked the same: a tokenizer of 64 characters, small models, and their caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.compat import mlx_lm as ours
from runtime.targets import MlxTarget

PROMPT = [5, 9, 33, 5, 9, 33, 5, 9]
SECOND = [7, 11, 2]
CHARACTERS = [chr(ord("0") + index) for index in range(64)]


def make_tokenizer(eos: str | None = None) -> Any:
    """Ids 0 .. 63 as one character each; `eos` is the character that ends a text."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: index for index, character in enumerate(CHARACTERS)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="0"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    return TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos))


def show(responses: Any) -> list[tuple[Any, ...]]:
    """What must be equal in two lists of responses."""
    return [(r.text, r.token, r.from_draft, r.prompt_tokens, r.generation_tokens, r.finish_reason) for r in responses]


def ask_mlx_lm(target: MlxTarget, tokenizer: Any, prompt: Any, **options: Any) -> list[Any]:
    import mlx_lm

    return list(mlx_lm.stream_generate(target.model, tokenizer, prompt, **options))


def ask_ours(target: MlxTarget, tokenizer: Any, prompt: Any, **options: Any) -> list[Any]:
    return list(ours.stream_generate(target.model, tokenizer, prompt, **options))


def tokens_of(responses: Sequence[Any]) -> list[int]:
    return [response.token for response in responses]


def make_caches(target: MlxTarget, draft: MlxTarget | None = None) -> list[Any]:
    return [*target.make_cache(), *(draft.make_cache() if draft else [])]


def make_qwen(seed: int) -> MlxTarget:
    """A tiny model whose class leaves the making of its cache to mlx-lm."""
    import mlx.core as mx
    from mlx_lm.models.qwen2 import Model, ModelArgs

    mx.random.seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}
    return MlxTarget("tiny-qwen", Model(ModelArgs(model_type="qwen2", tie_word_embeddings=False, **sizes, **heads)))
