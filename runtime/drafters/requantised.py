"""The target itself, requantised to fewer bits, as an assistant that needs no second model.

It has the target's vocabulary and, at 4 bits, mostly its opinion; what it saves is memory traffic. Where matmul is
not bound by that (a CPU without kernels for it) drafting costs about as much as the target does, and the records
show it.
"""

from __future__ import annotations

import copy
from typing import Any

from runtime.drafters.assistant import Assistant
from runtime.targets import MlxTarget
from telemetry.errors import Unsupported

GROUP_SIZES = (64, 32)


class Requantised(Assistant):
    """Drafts with a copy of `target` of `bits` bits; modules that cannot be quantised are shared with the target."""

    def __init__(self, target: Any, bits: int) -> None:
        """Raises Unsupported if `target` is no model of mlx-lm, or is of so few bits already."""
        name = f"self-q{bits}"
        if not isinstance(target, MlxTarget):
            raise Unsupported(f"the drafter {name} requantises a model of mlx-lm, and the target is none; take another")
        held = _find_bits(target.model)
        if held is not None and held <= bits:
            raise Unsupported(
                f"the drafter {name} would be the target over again: its weights have {held} bits already; take a "
                "drafter of fewer bits, or a target of more (dtype='float32')"
            )
        super().__init__(MlxTarget(f"{target.name} {bits}-bit", _requantise(target.model, bits), target.tokenizer))
        self.name = name


def _find_bits(model: Any) -> int | None:
    bits = [module.bits for module in model.modules() if hasattr(module, "bits")]
    return max(bits) if bits else None


def _requantise(model: Any, bits: int) -> Any:
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize

    smaller = copy.deepcopy(model)
    group_size = _choose_group_size(smaller)

    def quantises(path: str, module: Any) -> bool:
        return hasattr(module, "to_quantized") and module.weight.shape[-1] % group_size == 0

    quantize(smaller, group_size=group_size, bits=bits, class_predicate=quantises)
    smaller.eval()
    mx.eval(smaller.parameters())
    return smaller


def _choose_group_size(model: Any) -> int:
    widths = [module.weight.shape[-1] for module in model.modules() if hasattr(module, "to_quantized")]
    for size in GROUP_SIZES:
        if widths and all(width % size == 0 for width in widths):
            return size
    return GROUP_SIZES[-1]
