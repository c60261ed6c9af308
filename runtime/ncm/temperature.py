"""Which temperatures make sense. No MLX is needed here."""

from __future__ import annotations

import math

COLDEST = 1e-30
"""Below, float32 logits over the temperature could overflow, and the draw would be among infinities."""
MEANT = f"0 (the most probable code) or a number from {COLDEST:g} up"


def is_temperature(value: float) -> bool:
    """Whether codes can be drawn at that temperature, or taken where it is 0."""
    return math.isfinite(value) and (value == 0 or value >= COLDEST)
