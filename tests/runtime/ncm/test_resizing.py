"""Resizing matrices and cell orders, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.ncm.cells import arrange_cells, invert, list_units
from runtime.ncm.config import CellOrder
from runtime.ncm.resizing import find_covered, resize_by_area, resize_linearly

LENGTHS = st.integers(1, 30)


@given(LENGTHS, LENGTHS)
def test_rows_are_weighted_means(source: int, target: int) -> None:
    for matrix in (resize_by_area(source, target), resize_linearly(source, target)):
        assert [sum(row) for row in matrix] == [1] * target
        assert all(len(row) == source and min(row) >= 0 for row in matrix)


@given(LENGTHS, LENGTHS)
def test_area_keeps_the_mean(source: int, target: int) -> None:
    columns = zip(*resize_by_area(source, target), strict=True)
    assert [sum(column) for column in columns] == [Fraction(target, source)] * source


@given(LENGTHS)
def test_the_same_length_changes_nothing(length: int) -> None:
    identity = [[Fraction(row == column) for column in range(length)] for row in range(length)]
    assert resize_by_area(length, length) == resize_linearly(length, length) == identity


def test_examples() -> None:
    third = Fraction(1, 3)
    assert resize_by_area(3, 2) == [[2 * third, third, 0], [0, third, 2 * third]]
    assert resize_linearly(2, 4) == [[1, 0], [Fraction(3, 4), Fraction(1, 4)], [Fraction(1, 4), Fraction(3, 4)], [0, 1]]
    assert find_covered(3, 2) == [[0, 1], [1, 2]]


@pytest.mark.parametrize("order", ["rows", "columns", "boxes"])
def test_orders_are_permutations_with_inverses(order: CellOrder) -> None:
    cells = arrange_cells(order, 81)
    assert sorted(cells) == list(range(81))
    assert [cells[place] for place in invert(cells)] == list(range(81))


def test_the_first_cells_of_each_order() -> None:
    assert arrange_cells("columns", 81)[:10] == [0, 9, 18, 27, 36, 45, 54, 63, 72, 1]
    assert arrange_cells("boxes", 81)[:10] == [0, 1, 2, 9, 10, 11, 18, 19, 20, 3]
    assert arrange_cells("rows", 3) == [0, 1, 2]


@pytest.mark.parametrize("order", ["rows", "columns", "boxes"])
def test_units_are_the_rows_columns_and_boxes_of_the_cells(order: CellOrder) -> None:
    cells = arrange_cells(order, 81)
    for positions, unit in zip(
        list_units(order),
        (lambda cell: cell // 9, lambda cell: cell % 9, lambda cell: (cell // 27, cell % 9 // 3)),
        strict=True,
    ):
        nines = [[cells[place] for place in positions[start : start + 9]] for start in range(0, 81, 9)]
        assert all(len({unit(cell) for cell in nine}) == 1 for nine in nines)
        assert sorted(cell for nine in nines for cell in nine) == list(range(81))
