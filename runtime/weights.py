"""What type a model's weights are, what type they should be on this machine, and the change from one to the other.

On Linux CPUs only float32 matmul goes through BLAS, where verifying several tokens costs little more than one:
float16, bfloat16 and quantised matmul run on kernels whose cost grows with every token, so float32 is the default
there. Elsewhere models stay as they are.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from runtime.device import barrier
from telemetry.errors import UsageError
from telemetry.logs import get_logger

FLOATS = ("float32", "float16", "bfloat16")
AS_STORED = "quantized"
_MEMORY_SHARE = 0.8


def check_dtype(dtype: str | None) -> None:
    """Raise UsageError, listing the names, unless `dtype` is one that `settle_weights` takes."""
    if dtype is None or dtype in FLOATS or _keeps_quantised(dtype):
        return
    known = ", ".join((*FLOATS, AS_STORED, "4-bit"))
    raise UsageError(f"dtype {dtype!r} is unknown: take one of {known} (and 2-bit to 8-bit where so quantised)")


def describe_weights(model: Any) -> str:
    """What most of the weights of `model` are: an mlx dtype's name, or "4-bit" and the like where quantised."""
    kinds = _count_parameters(model)
    return kinds.most_common(1)[0][0] if kinds else "none"


def count_bytes(model: Any) -> int:
    """Bytes that the parameters of `model` take."""
    from mlx.utils import tree_reduce

    return int(tree_reduce(lambda total, array: total + array.nbytes, model.parameters(), 0))


def settle_weights(model: Any, dtype: str | None, name: str) -> None:
    """Bring the weights of `model` to `dtype` in place, and load them into memory.

    `dtype` None: float32 on Linux CPUs if it fits into the free memory, else as they are. A quantised model that stays
    so on a Linux CPU computes in float32: its kernels there sum up in the type of the activations, and in float16
    the output turns to nonsense. Raises UsageError where `dtype` asks for a quantised model and this one is not so.
    """
    import mlx.core as mx

    kind = describe_weights(model)
    wanted = dtype or (_choose_default(model, kind, name) if _on_linux_cpu() else None)
    if wanted is not None and _keeps_quantised(wanted):
        _require_quantised(kind, wanted, name)
        wanted = None
    if wanted is not None:
        _convert(model, getattr(mx, wanted))
    elif kind.endswith("-bit") and _on_linux_cpu():
        _cast(model, mx.float32)
    barrier(model.parameters())


def _choose_default(model: Any, kind: str, name: str) -> str | None:
    """ "float32", or None where the weights stay what they are."""
    if kind == "float32":
        return None
    needed = 4 * _count_parameters(model).total()
    free = _read_free_memory()
    if free is not None and needed > _MEMORY_SHARE * free:
        get_logger().warning(
            "weights.kept",
            target=name,
            dtype=kind,
            reason=f"in float32 they would take {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free",
            effect="verifying n tokens costs about n ordinary steps",
            cure="take a smaller model, or insist with dtype float32",
        )
        return None
    return "float32"


def _on_linux_cpu() -> bool:
    import mlx.core as mx

    return sys.platform == "linux" and mx.default_device() == mx.Device(mx.cpu)


def _read_free_memory() -> int | None:
    """Bytes that processes can still get, as Linux tells; None where it does not."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _keeps_quantised(dtype: str) -> bool:
    return dtype == AS_STORED or re.fullmatch(r"[2-8]-bit", dtype) is not None


def _require_quantised(kind: str, wanted: str, name: str) -> None:
    if kind.endswith("-bit") and wanted in (AS_STORED, kind):
        return
    raise UsageError(f"the weights of {name} are {kind}, so dtype {wanted!r} cannot be had: leave dtype out")


def _count_parameters(model: Any) -> Counter[str]:
    """How many parameters there are of each kind, packed ones counted as what they stand for."""
    import mlx.core as mx

    counts: Counter[str] = Counter()
    for module in model.modules():
        bits = getattr(module, "bits", None)
        for key, array in module.items():
            if not isinstance(array, mx.array) or key.startswith("_"):
                continue
            if bits is None:
                counts[str(array.dtype).removeprefix("mlx.core.")] += array.size
            elif key == "weight":
                counts[f"{bits}-bit"] += array.size * 32 // bits
    return counts


def _convert(model: Any, dtype: Any) -> None:
    """Dequantise what is quantised, in float32 so that nothing is rounded twice, and cast to `dtype`."""
    import mlx.core as mx
    from mlx_lm.utils import dequantize_model

    if any(kind.endswith("-bit") for kind in _count_parameters(model)):
        _cast(model, mx.float32)
        dequantize_model(model)
    _cast(model, dtype)


def _cast(model: Any, dtype: Any) -> None:
    """Turn the floating-point parameters into `dtype`, less those that the model says it needs as they are."""
    import mlx.core as mx
    from mlx.utils import tree_map_with_path

    may_cast = getattr(model, "cast_predicate", lambda _: True)

    def cast(path: str, array: Any) -> Any:
        return array.astype(dtype) if may_cast(path) and mx.issubdtype(array.dtype, mx.floating) else array

    model.update(tree_map_with_path(cast, model.parameters()))
