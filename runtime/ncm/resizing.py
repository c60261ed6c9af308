"""Resizing along a sequence as constant matrices, exact in fractions: their rows sum to one.

Area: a position of the result is the mean over the stretch of the source that it covers. Linear: interpolated between
the centres of the source's positions, held constant beyond the outermost ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import mlx.core as mx

Matrix: TypeAlias = list[list[Fraction]]
"""A row for each position of the result, a column for each of the source."""


def resize_by_area(source: int, target: int) -> Matrix:
    """The matrix (target, source) that averages over covered stretches."""
    stretch = Fraction(source, target)
    return [
        [_overlap(row * stretch, (row + 1) * stretch, column) / stretch for column in range(source)]
        for row in range(target)
    ]


def resize_linearly(source: int, target: int) -> Matrix:
    """The matrix (target, source) that interpolates between centres."""
    matrix = []
    for row in range(target):
        place = Fraction(2 * row + 1, 2 * target) * source - Fraction(1, 2)
        place = min(max(place, Fraction(0)), Fraction(source - 1))
        matrix.append([max(Fraction(0), 1 - abs(place - column)) for column in range(source)])
    return matrix


def find_covered(source: int, target: int) -> list[list[int]]:
    """For each position of the result, the source's positions that it covers, wholly or in part."""
    return [[column for column, share in enumerate(row) if share] for row in resize_by_area(source, target)]


def to_array(matrix: Sequence[Sequence[Fraction]], dtype: Any) -> mx.array:
    """`matrix` as an array of `dtype`."""
    import mlx.core as mx

    return mx.array([[float(value) for value in row] for row in matrix]).astype(dtype)


def _overlap(start: Fraction, end: Fraction, position: int) -> Fraction:
    """How much of the source's `position` lies between `start` and `end`."""
    return max(Fraction(0), min(end, Fraction(position + 1)) - max(start, Fraction(position)))
