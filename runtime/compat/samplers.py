"""mlx-lm's samplers as ours: what `make_sampler` was asked for is read back from what it returned.

Only that can be mapped: p and q have to be known for verification, and a function that returns tokens does not tell
them. Temperature, top-p, min-p and top-k mean the same in both; XTC draws at random what it removes, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import getclosurevars
from typing import Any

from runtime.device import read
from runtime.sampling import Sampling
from telemetry.errors import Unsupported

_MADE_BY = ("mlx_lm.sample_utils", "make_sampler.<locals>.sampler")
_READERS: dict[str, tuple[str, ...]] = {
    "apply_top_p": ("top_p",),
    "apply_min_p": ("min_p", "min_tokens_to_keep"),
    "apply_top_k": ("top_k",),
}


def read_sampler(sampler: Any) -> Sampling | None:
    """What a sampler of mlx-lm draws from; None for greedy decoding: no sampler, or the one for temperature 0.

    The seed comes from MLX's own state, so that `mx.random.seed` repeats a generation, as with mlx-lm. Raises
    Unsupported for any other sampler, and for options without a counterpart.
    """
    from mlx_lm.sample_utils import greedy_sampler

    if sampler is None or sampler is greedy_sampler:
        return None
    if (getattr(sampler, "__module__", None), getattr(sampler, "__qualname__", None)) != _MADE_BY:
        name = getattr(sampler, "__qualname__", type(sampler).__name__)
        raise Unsupported(
            f"the sampler {name} is refused: what it draws from cannot be known; take one of "
            "mlx_lm.sample_utils.make_sampler, with temp, top_p, min_p and top_k"
        )
    options: dict[str, Any] = {}
    found = getclosurevars(sampler).nonlocals
    for method in found.get("sampling_methods", ()):
        options |= _read_method(method)
    if options.pop("min_tokens_to_keep", 1) != 1:
        raise Unsupported("min_tokens_to_keep is refused: min-p keeps what has the share, and the likeliest token")
    return Sampling(found["temp"], **options, seed=_take_seed())


def _read_method(method: Callable[..., Any]) -> dict[str, Any]:
    """The options of one of the sampler's filters, by the function of mlx-lm that it calls."""
    found = getclosurevars(method)
    [name] = [each for each in found.globals if each.startswith("apply_")]
    if name not in _READERS:
        raise Unsupported(
            f"the sampler's {name.removeprefix('apply_').upper()} is refused: it removes tokens at random, so that p "
            "is not known; leave it out"
        )
    return {option: found.nonlocals[option] for option in _READERS[name]}


def _take_seed() -> int:
    import mlx.core as mx

    [[high, low]] = read(mx.random.randint(0, 2**31 - 1, shape=(2,)))
    return high << 31 | low
