"""Choosing codes from logits.

Every draw belongs to a seed, a sample and a level: neither the cache nor who else is in the batch can change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import mlx.core as mx


def choose_codes(logits: mx.array, temperature: float, keys: mx.array | None) -> mx.array:
    """Codes (B, l) from logits (B, l, V): the most probable ones (the lowest on ties) at temperature 0, else drawn
    from the softmax of logits / temperature with each sample's key, (B, 2), by the Gumbel maximum.
    """
    if not temperature:
        return mx.argmax(logits, axis=-1)
    shape = tuple(logits.shape[1:])
    noise = mx.vmap(lambda key: mx.random.gumbel(shape, key=key))(keys)
    return mx.argmax(logits.astype(mx.float32) / temperature + noise, axis=-1)


def derive_keys(seed: int, samples: Sequence[int], level: int) -> mx.array:
    """A random key for each sample (by its id, whatever the batch) at a level: (len(samples), 2)."""
    digests = [sha256(f"{seed} {sample} {level}".encode()).digest() for sample in samples]
    words = [[int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")] for digest in digests]
    return mx.array(words, mx.uint32)
