"""A beginning for token embeddings: the principal components of the target's own.

They hold which tokens are alike before anything is trained, and what is trained from there is the model's own: the
drafter needs nothing of the target's later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from telemetry.errors import Unsupported

if TYPE_CHECKING:
    from runtime.ncm.text.model import TextModel


def read_embeddings(target: Any, ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """The rows (n, hidden) of the target's token embedding; Unsupported for a target without one that can be found."""
    modules = dict(target.model.named_modules()) if hasattr(target, "model") else {}
    found = [module for name, module in modules.items() if name.rsplit(".", 1)[-1] == "embed_tokens"]
    if not found:
        raise Unsupported("the target has no embedding that could be read: train with from_embeddings=0")
    return np.array(found[0](mx.array(ids)).astype(mx.float32))


def project(rows: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """The first principal components of `rows` (n, hidden), (n, width), scaled as random embeddings are; columns
    beyond what there is are zero.
    """
    centred = rows - rows.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    found = centred @ axes[:width].T
    found *= width**-0.5 / max(float(np.sqrt(np.mean(found**2))), 1e-12)
    return np.pad(found, ((0, 0), (0, width - found.shape[1]))).astype(np.float32)


def begin_from(model: TextModel, rows: NDArray[np.float32], counts: NDArray[np.int64]) -> None:
    """Put the target's embeddings (size, hidden) of the frequent tokens into `model`: prefix, codec and decoder.

    counts: how often each occurred, (size,), for the decoder's bias.
    """
    size, config = model.tokens.size, model.config
    prefix = np.array(model.generator.prefix_embedding.weight)
    prefix[:size] = project(rows, config.width)
    model.generator.prefix_embedding.weight = mx.array(prefix)
    model.codec.embedding.weight = mx.array(project(rows, config.codec_width))
    model.decoder.weight = mx.array(prefix[:size])
    shares = (counts + 1) / (counts.sum() + size)
    model.decoder.bias = mx.array(np.log(shares).astype(np.float32))
