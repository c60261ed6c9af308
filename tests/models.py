"""Small random llama models for tests, built from mlx-lm's own classes: real layers, real caches, no download.

Untied by default: a tiny random model whose embeddings are tied collapses to one repeated token, so that nothing a
drafter proposes from it would ever be rejected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runtime.targets import MlxTarget


def tiny_llama(
    seed: int,
    vocab_size: int = 64,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    *,
    tied: bool = False,
    eos: Iterable[int] = (),
    max_positions: int | None = 512,
    sliding_window: int | None = None,
    tokenizer: Any = None,
) -> MlxTarget:
    """A llama of `layers` layers in float32 whose weights depend on `seed` and the sizes alone.

    Equal arguments give bitwise equal weights, and the global random state of mlx plays no part in them. With
    `sliding_window` every second layer attends to that many positions and has a rotating cache.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_unflatten
    from mlx_lm.models.llama import Model, ModelArgs

    kinds = ["full_attention", "sliding_attention" if sliding_window else "full_attention"]
    model = Model(
        ModelArgs(
            model_type="llama",
            hidden_size=hidden,
            num_hidden_layers=layers,
            intermediate_size=2 * hidden,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            rms_norm_eps=1e-5,
            vocab_size=vocab_size,
            max_position_embeddings=max_positions,
            rope_theta=10000,
            tie_word_embeddings=tied,
            layer_types=[kinds[i % 2] for i in range(layers)],
            sliding_window=sliding_window,
        )
    )
    shapes = [(path, array.shape) for path, array in tree_flatten(model.parameters())]
    keys = mx.random.split(mx.random.key(seed), len(shapes))
    weights = [
        (path, mx.ones(shape) if len(shape) == 1 else mx.random.normal(shape, key=key) * shape[-1] ** -0.5)
        for (path, shape), key in zip(shapes, keys, strict=True)
    ]
    model.update(tree_unflatten(weights))
    model.eval()
    mx.eval(model.parameters())
    return MlxTarget(f"tiny-llama-{seed}", model, tokenizer, eos=eos)


def greedy(target: MlxTarget, prompt: list[int], count: int) -> list[int]:
    """Ordinary decoding at its plainest: one token a forward, lowest id on ties, up to an end of text."""
    import mlx.core as mx

    cache, output, ids = target.make_cache(), [], prompt
    while len(output) < count and not target.eos & set(output[-1:]):
        [token] = mx.argmax(target.forward(mx.array([ids]), cache)[:, -1], axis=-1).tolist()
        output.append(token)
        ids = [token]
    return output
