"""The tokenizer in a GGUF file's metadata: byte-level BPE ("gpt2"), whose pre-tokenizer is named there.

The names are llama.cpp's. Each stands for the way in which text is split before merges apply; another way gives other
ids without any error, so a name that is not listed is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from telemetry.errors import RoundscopeError, Unsupported

CURE = "convert the original model with mlx_lm.convert and give that folder"
_CONTROL, _USER_DEFINED = 3, 4
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Splitting:
    """How text is split. pattern: the words, None for GPT-2's own. single_digits: digits are split off first.

    whole_words: a word that is a token needs no merges. nfc: text is composed first. bos: texts begin with the
    beginning token unless the metadata say otherwise.
    """

    pattern: str | None = None
    single_digits: bool = False
    whole_words: bool = False
    nfc: bool = False
    bos: bool = False


SPLITTINGS = {
    "gpt-2": Splitting(),
    "smollm": Splitting(single_digits=True),
    "llama-bpe": Splitting(pattern=_WORDS.format(digits="{1,3}"), whole_words=True, bos=True),
    "qwen2": Splitting(pattern=_WORDS.format(digits=""), nfc=True),
}


def find_splitting(metadata: dict[str, Any]) -> Splitting:
    """What the metadata name. Raises Unsupported, naming it, for a tokenizer or pre-tokenizer not known here."""
    model = metadata.get("tokenizer.ggml.model", "none")
    if model != "gpt2":
        raise Unsupported(f"its tokenizer is of the kind {model!r}, not the byte-level BPE 'gpt2': {CURE}")
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in SPLITTINGS:
        raise Unsupported(f"its pre-tokenizer {name!r} is not one of {', '.join(SPLITTINGS)}: {CURE}")
    for key in ("tokens", "token_type", "merges"):
        if not metadata.get(f"tokenizer.ggml.{key}"):
            raise RoundscopeError(f"its metadata lack tokenizer.ggml.{key}: {CURE}")
    return SPLITTINGS[name]


def read_tokenizer(metadata: dict[str, Any]) -> Any:
    """mlx-lm's wrapper around the tokenizer in the metadata."""
    from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    splitting = find_splitting(metadata)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=splitting.whole_words))
    if splitting.nfc:
        core.normalizer = normalizers.NFC()
    core.pre_tokenizer = _make_pre_tokenizer(splitting)
    core.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True):
        if kind in (_CONTROL, _USER_DEFINED):
            core.add_special_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False)])
    ids = _read_ids(metadata)
    if metadata.get("tokenizer.ggml.add_bos_token", splitting.bos) and "bos" in ids:
        _prepend(core, tokens[ids["bos"]], ids["bos"])
    named = {f"{name}_token": tokens[index] for name, index in ids.items() if name != "eot"}
    fast = PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **named)
    fast.chat_template = metadata.get("tokenizer.chat_template")
    ends = {ids[name] for name in ("eos", "eot") if name in ids}
    return TokenizerWrapper(fast, BPEStreamingDetokenizer, eos_token_ids=ends)


def _read_ids(metadata: dict[str, Any]) -> dict[str, int]:
    keys = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown", "eot": "eot"}
    found = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: int(index) for name, index in found.items() if index is not None}


def _make_pre_tokenizer(splitting: Splitting) -> Any:
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = []
    if splitting.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if splitting.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(splitting.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.pattern is None))
    return pre_tokenizers.Sequence(steps)


def _prepend(core: Any, token: str, index: int) -> None:
    from tokenizers import processors

    core.post_processor = processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, index)]
    )
