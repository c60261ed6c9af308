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
        """Raises Unsupported if `target` is no model of mlx-lm, is of so few bits already, or cannot be quantised."""
        name = f"self-q{bits}"
        if not isinstance(target, MlxTarget):
            raise Unsupported(f"the drafter {name} requantises a model of mlx-lm, and the target is none; take another")
        if target.dtype.endswith("-bit") and int(target.dtype.removesuffix("-bit")) <= bits:
            raise Unsupported(
                f"the drafter {name} would be the target over again: its weights are {target.dtype} already; take a "
                "drafter of fewer bits, or a target of more (dtype='float32')"
            )
        model = _requantise(target.model, bits)
        if not any(hasattr(module, "bits") for module in model.modules()):
            raise Unsupported(
                f"the drafter {name} would be the target over again: none of its weights has rows of a multiple of "
                f"{GROUP_SIZES[-1]} numbers, as quantising needs; take another drafter"
            )
        super().__init__(MlxTarget(f"{target.name} {bits}-bit", model, target.tokenizer))
        self.name = name


def _requantise(model: Any, bits: int) -> Any:
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize
    from mlx_lm.utils import dequantize_model

    smaller = dequantize_model(copy.deepcopy(model))
    group_size = _choose_group_size(smaller)
    own_choice = getattr(smaller, "quant_predicate", None)

    def quantises(path: str, module: Any) -> Any:
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % group_size:
            return False
        return True if own_choice is None else own_choice(path, module)

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
