"""How many rows fit into a number of bytes."""

import pytest

from fragility.base.arrays import rows_within


@pytest.mark.parametrize(
    ("budget", "cells", "copies", "rows"),
    [(8000, 10, 1, 100), (8000, 10, 4, 25), (8079, 10, 1, 100), (79, 10, 1, 1), (0, 10, 1, 1), (80, 0, 1, 10)],
)
def test_rows_that_fit(budget, cells, copies, rows):
    assert rows_within(budget, cells, copies) == rows


def test_bounds_hold_whatever_the_budget():
    assert rows_within(8000, 10, least=512) == 512
    assert rows_within(8000, 10, most=30) == 30
    assert rows_within(0, 10, least=512, most=100) == 100
