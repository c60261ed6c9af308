"""The direct network: the generator's prefix stack with a head for tokens, one pass, no levels and no codes.

It is the baseline that the generator is measured against, on the same data; and since it trains the generator's own
layers, the generator's training goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
from mlx import nn

from runtime.ncm.attention import Units, attend
from runtime.ncm.cells import arrange_cells, invert
from runtime.ncm.layouts import Layouts
from runtime.ncm.tally import Tally

if TYPE_CHECKING:
    from runtime.ncm.config import NcmConfig
    from runtime.ncm.model import Generator


class DirectNetwork(nn.Module):
    """Predicts the token at every position of the prefix, with the embedding and the blocks of `generator` itself.

    For configurations whose output is as long as their prefix.
    """

    def __init__(self, config: NcmConfig, generator: Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.prefix_embedding, self.blocks = generator.prefix_embedding, generator.blocks
        self.final_norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab)
        self.head.weight = mx.zeros_like(self.head.weight)
        self.head.bias = mx.zeros_like(self.head.bias)
        self.n_layers = config.n_layers
        self._layouts = Layouts(config)
        self._attend = Units(config).attend if config.prefix_attention == "units" else attend
        order = arrange_cells(config.cell_order, config.prefix_length)
        self._order, self._back = mx.array(order), mx.array(invert(order))

    def __call__(self, conditioning: mx.array, n_layers: int | None = None) -> mx.array:
        """Logits (A, B, P, vocab) after each application of the second half, for conditioning (B, P).

        n_layers: applications, if not the configuration's.
        """
        n_layers = self.n_layers if n_layers is None else n_layers
        layout = self._layouts.get((), prefix=True)
        x = self.prefix_embedding(conditioning[:, self._order])
        states = []
        for layer in range(n_layers):
            block = self.blocks[layer % len(self.blocks)]
            queries, keys, values = block.make_heads(x, layout)
            x = block.finish(x, self._attend(queries, keys, values, Tally()).swapaxes(1, 2))
            if layer >= n_layers // 2:
                states.append(x)
        logits: mx.array = self.head(self.final_norm(mx.stack(states)))
        return logits[:, :, self._back]
