"""Values as DuckDB gives them, as those that JSON knows and as text for people."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

NULL_SIGN = "-"


def simplify(value: Any) -> Any:
    """A value of the kinds that JSON knows; NULL, and a number that JSON cannot hold, is None."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, Decimal)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [simplify(item) for item in value]
    if isinstance(value, dict):
        return {str(key): simplify(item) for key, item in value.items()}
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def encode(value: Any) -> str:
    """A value of the kinds that JSON knows as JSON."""
    return json.dumps(value, ensure_ascii=False)


def write_cell(value: Any) -> str:
    """A value as text: lists and structs as JSON, all else as one would write it alone."""
    if isinstance(value, (float, Decimal)):
        return str(value)
    plain = simplify(value)
    return plain if isinstance(plain, str) else encode(plain)


def show(value: Any) -> str:
    """A value for reading: NULL is `-`, doubles have six digits, which is more than a measurement is good for."""
    if value is None:
        return NULL_SIGN
    return f"{value:.6g}" if isinstance(value, float) else write_cell(value)


def are_numbers(values: Sequence[Any]) -> bool:
    """Whether a column holds numbers, and NULL at most beside them."""
    found = [value for value in values if value is not None]
    return bool(found) and all(isinstance(v, (int, float, Decimal)) and not isinstance(v, bool) for v in found)
