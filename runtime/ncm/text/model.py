"""A next-concept model of text: codec and generator as they are, and a decoder that sees the prefix too.

The codes of all levels but the last are the latent z: what the block is about. The last level's forward reads z and
the prefix, and its states give a normalised distribution over the frequent tokens at every position of the block. (The
codec has a decoder of its own, from codes alone. With the last level's codes in z it leaves hardly any choice, so what
is drawn from it is nearly a point mass; docs/ncm-drafter.md has the figures.)

On the prefix's side there are two ids more than frequent tokens: any other token, and the padding before a short text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, get_args

import mlx.core as mx
import mlx.nn as nn
import msgspec

from runtime.distillation.frequent_tokens import FrequentTokens
from runtime.ncm.config import NcmConfig
from runtime.ncm.model import NcmModel, draw_weights
from runtime.ncm.prefix_cache import PrefixCache
from telemetry.errors import UsageError

N_SPECIAL = 2
"""Ids of the prefix beyond the frequent tokens: another token, and padding."""

Decoder: TypeAlias = Literal["context", "codec"]
ChooseCodes: TypeAlias = Callable[[int, mx.array], mx.array]
"""Given a level and its logits (B, l, codebook_size): its codes (B, l)."""


def fit_config(tokens: FrequentTokens, base: NcmConfig) -> NcmConfig:
    """`base` with the vocabularies of that subset."""
    return msgspec.structs.replace(base, vocab=tokens.size, prefix_vocab=tokens.size + N_SPECIAL)


def parse_decoder(text: str) -> Decoder:
    """`text` as the name of a decoder; UsageError if it is none."""
    for name in get_args(Decoder):
        if text == name:
            found: Decoder = name
            return found
    raise UsageError(f"decoder must be one of {', '.join(get_args(Decoder))}, not {text!r}")


class TextModel(NcmModel):
    """Predicts blocks of `config.output_length` tokens out of `tokens` after `config.prefix_length` ones."""

    def __init__(self, config: NcmConfig, tokens: FrequentTokens) -> None:
        """UsageError unless the vocabularies of `config` are those of `tokens`."""
        if (config.vocab, config.prefix_vocab) != (tokens.size, tokens.size + N_SPECIAL):
            raise UsageError(
                f"configuration {config.name}: {tokens.size} frequent tokens need vocab {tokens.size} and prefix_vocab "
                f"{tokens.size + N_SPECIAL}, not {config.vocab} and {config.prefix_vocab}"
            )
        super().__init__(config)
        self.tokens = tokens
        self.decoder = nn.Linear(config.width, config.vocab)

    @property
    def padding(self) -> int:
        """The id that stands before a text shorter than the prefix."""
        return self.tokens.size + 1

    def take_window(self, history: Sequence[int]) -> list[int]:
        """The prefix, (P,): the last tokens of `history` (the target's ids), padded on the left."""
        length = self.config.prefix_length
        known: list[int] = self.tokens.to_subset(history[-length:]).tolist()
        return [self.padding] * (length - len(known)) + known


def init_text_model(config: NcmConfig, tokens: FrequentTokens, seed: int = 0) -> TextModel:
    """A model in evaluation mode with random weights by `seed`."""
    model = TextModel(config, tokens)
    draw_weights(model, seed)
    return model


def predict_block(
    model: TextModel, windows: list[list[int]], m: int, choose: ChooseCodes, decoder: Decoder = "context"
) -> mx.array:
    """Logits (B, m, size) over the frequent tokens at the first `m` positions of a block, lazily: K forwards.

    windows: prefixes (B, P). choose: makes the codes of a level of its logits. decoder: "context" reads the states of
    the last level's forward; "codec" reads the codes, of the last level too.
    """
    cache, codec, generator = PrefixCache(model, windows), model.codec, model.generator
    partial, last = codec.start(len(windows)), model.config.n_levels - 1
    try:
        for level in range(last + 1):
            cache.check(model, len(windows))
            prefix = None if cache.is_filled else mx.array(windows)
            states = generator.forward_states(level, codec.make_input(level, partial), prefix, cache)
            if level == last and decoder == "context":
                logits: mx.array = model.decoder(generator.final_norm(states[:, :m]))
                return logits
            partial = codec.add_level(level, partial, choose(level, generator.predict(states)))
        return codec.decode(partial)[:, :m]
    finally:
        cache.close()


def take_likeliest(level: int, logits: mx.array) -> mx.array:
    """The most probable codes: the mode of every level, one after another."""
    return mx.argmax(logits, axis=-1)
