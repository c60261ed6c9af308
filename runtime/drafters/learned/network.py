"""The networks of `ar` and `blocks`: one small causal transformer over the frequent tokens, with one or more heads.

The trunk is mlx-lm's llama. Head 0 says the next token; head j, the one j tokens further, from the same state: a
residual layer each before the common output matrix, after Stern, Shazeer and Uszkoreit, "Blockwise Parallel Decoding"
(arXiv:1811.03115). An autoregressive assistant is a network of one head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import mlx.core as mx
import msgspec
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import KVCache
from mlx_lm.models.llama import LlamaModel, ModelArgs

from runtime.device import barrier
from runtime.distillation import FrequentTokens
from telemetry.errors import UsageError

if TYPE_CHECKING:
    from runtime.targets import MlxTarget

Kind: TypeAlias = Literal["ar", "blocks"]


class LearnedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of a network. UsageError for one that cannot be.

    vocab: frequent tokens it speaks. width, layers, heads, ffn: of the trunk. block: tokens it says at once, 1 for ar.
    """

    kind: Kind
    vocab: int
    width: int = 256
    layers: int = 2
    heads: int = 4
    ffn: int = 768
    block: int = 1

    def __post_init__(self) -> None:
        for name in ("vocab", "width", "layers", "heads", "ffn", "block"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.width % (2 * self.heads):
            raise UsageError(f"width is {self.width}; it must be a multiple of twice the {self.heads} heads")
        if self.kind == "ar" and self.block != 1:
            raise UsageError(f"block is {self.block}; ar says one token at a time: take blocks")


class Network(nn.Module):
    """Input ids are of the subset, `vocab` standing for every other token."""

    def __init__(self, config: LearnedConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.config = config
        self.trunk = LlamaModel(
            ModelArgs(
                model_type="llama",
                hidden_size=config.width,
                num_hidden_layers=config.layers,
                intermediate_size=config.ffn,
                num_attention_heads=config.heads,
                rms_norm_eps=1e-5,
                vocab_size=config.vocab + 1,
            )
        )
        self.later = [nn.Linear(config.width, config.width) for _ in range(config.block - 1)]
        self.output = nn.Linear(config.width, config.vocab)

    def make_cache(self) -> list[Any]:
        """An empty K/V cache for the trunk."""
        return [KVCache() for _ in self.trunk.layers]

    def walk(self, ids: mx.array, cache: list[Any] | None = None) -> mx.array:
        """States (B, n, width) after ids (B, n)."""
        states: mx.array = self.trunk(ids, cache=cache)
        return states

    def predict(self, states: mx.array, head: int = 0) -> mx.array:
        """Logits (..., vocab) for the token that head `head` is for, from states (..., width)."""
        if head:
            turned = self.later[head - 1](states)
            states = states + nn.relu(turned) ** 2
        logits: mx.array = self.output(states)
        return logits

    def predict_block(self, states: mx.array, m: int) -> mx.array:
        """Logits (m, vocab) of the first `m` heads from one state (width,)."""
        turned = [states, *(states + nn.relu(layer(states)) ** 2 for layer in self.later[: m - 1])]
        logits: mx.array = self.output(mx.stack(turned))
        return logits


def init_network(config: LearnedConfig, seed: int = 0) -> Network:
    """A network whose weights depend on `config` and `seed` alone, not on MLX's global seed."""
    network = Network(config)
    key = mx.random.key(seed)
    drawn = []
    for name, weight in list_weights(network):
        key, use = mx.random.split(key)
        if weight.ndim == 2:
            drawn.append((name, mx.random.normal(weight.shape, key=use) * weight.shape[-1] ** -0.5))
        else:
            drawn.append((name, mx.ones_like(weight) if "norm" in name else mx.zeros_like(weight)))
    network.update(tree_unflatten(drawn))
    barrier(dict(list_weights(network)))
    return network


def take_over_embeddings(network: Network, target: MlxTarget, tokens: FrequentTokens) -> bool:
    """Start input and output matrices from the principal components of the target's token embeddings.

    So tokens that the target holds to be alike are alike from the start, though few are seen in training. Returns
    False, leaving the network as it is, where the target has no embeddings of the usual name.
    """
    embed = getattr(getattr(target.model, "model", None), "embed_tokens", None)
    if embed is None:
        return False
    rows: Any = embed(mx.array(tokens.ids)).astype(mx.float32)
    barrier(rows)
    table = np.array(rows)
    _, _, directions = np.linalg.svd(table - table.mean(axis=0), full_matrices=False)
    width = network.config.width
    parts = (table - table.mean(axis=0)) @ directions[:width].T
    parts = np.pad(parts, ((0, 0), (0, width - parts.shape[1])))
    parts = (parts / parts.std()).astype(np.float32)
    # Inputs of unit size, as the trunk's first normalisation makes them anyway; outputs small, so that training begins
    # near a uniform distribution.
    network.trunk.embed_tokens.weight = mx.array(np.append(parts, np.zeros((1, width), np.float32), axis=0))
    network.output.weight = mx.array(parts * (0.5 * width**-0.5))
    barrier(dict(list_weights(network)))
    return True


def list_weights(network: nn.Module) -> list[tuple[str, mx.array]]:
    """The parameters by name, in a fixed order."""
    named: Any = tree_flatten(network.parameters())
    return list(named)
