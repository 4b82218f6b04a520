"""Moments: means, spreads and medians of training columns, the same for every order of the rows.

Sums are exact, so no order of adding can change them. A mean is then rounded to ``BASELINE_DIGITS`` significant digits
of the larger of its magnitude and the column's spread: what lies below is rounding noise of the data, and a tree that
splits a standardised column at 0 must not be sent left or right by a mean of 1e-17.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.sparse as sp

from fragility.arrays import Booleans, Floats

BASELINE_DIGITS = 12


def exact_sum(values: Floats) -> Fraction:
    """Return the sum of finite float64 values without any rounding.

    Each pass takes off the leading bits of all values, cut at one common place so that float64 adds them exactly in
    any order, and leaves the rest for the next pass.
    """
    total, rest = Fraction(0), values
    headroom = math.ceil(math.log2(len(values) + 2))
    while len(rest) and (largest := float(np.abs(rest).max())) > 0.0:
        exponent = math.frexp(largest)[1] + headroom
        if exponent >= 1024:  # too large for the common place; rare enough to add one by one
            return total + sum(map(Fraction, rest.tolist()), Fraction(0))
        place = math.ldexp(1.0, exponent)
        leading = (place + rest) - place
        total += Fraction(float(leading.sum()))
        rest = rest - leading
        rest = rest[rest != 0.0]
    return total


def mean_and_spread(values: Floats, zeros: int = 0) -> tuple[float, float]:
    """Return the mean and the standard deviation of the known values and of ``zeros`` cells that hold 0."""
    known = values[~np.isnan(values)]
    n = len(known) + zeros
    if n == 0:
        return math.nan, math.nan
    mean = float(exact_sum(known) / n)
    apart = known - mean
    widest = max(float(np.abs(apart).max(initial=0.0)), abs(mean) if zeros else 0.0)
    unit = math.ldexp(1.0, min(math.frexp(widest)[1], 1000))  # a power of two: squares neither overflow nor vanish
    squares = exact_sum((apart / unit) ** 2) + zeros * Fraction((mean / unit) ** 2)
    spread = unit * math.sqrt(squares / n)
    return rounded(mean, spread), rounded(spread)


def rounded(value: float, scale: float = 0.0) -> float:
    """Return ``value`` at ``BASELINE_DIGITS`` significant digits of the larger of itself and ``scale``."""
    size = max(abs(value), scale)
    if size == 0.0 or not math.isfinite(size):
        return value
    # Adding 0.0 turns -0.0 into 0.0.
    return round(value, BASELINE_DIGITS - 1 - math.floor(math.log10(size))) + 0.0


def column_moments(matrix: Any) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation of each column of a dense or CSR matrix; NaN where it has no value."""
    moments = np.array([mean_and_spread(values, zeros) for values, zeros in _columns(matrix)])
    return moments[:, 0], moments[:, 1]


def are_whole(values: Floats) -> bool:
    """True if the known values are whole numbers."""
    known = values[~np.isnan(values)]
    return bool((known == np.rint(known)).all())


def whole_columns(matrix: Any) -> Booleans:
    """Return which columns of a dense or CSR matrix hold whole numbers only."""
    return np.array([are_whole(values) for values, _ in _columns(matrix)], dtype=bool)


def column_medians(matrix: Any) -> Floats:
    if not sp.issparse(matrix):
        with warnings.catch_warnings():
            # A column without any value has no median; NaN is the right answer and numpy's warning is noise.
            warnings.simplefilter("ignore", RuntimeWarning)
            return np.asarray(np.nanmedian(np.asarray(matrix, dtype=np.float64), axis=0), dtype=np.float64)
    by_column = matrix.tocsc()
    # Where most cells are 0, so is the one in the middle; wide sparse matrices have hardly any other columns.
    mostly_zero = 2 * np.diff(by_column.indptr) < matrix.shape[0]
    return np.array([0.0 if zero else np.median(by_column[:, [j]].toarray()) for j, zero in enumerate(mostly_zero)])


def _columns(matrix: Any) -> Iterator[tuple[Floats, int]]:
    """Yield each column's stored values in float64, and how many cells beside them hold 0."""
    if sp.issparse(matrix):
        by_column = matrix.tocsc()
        for start, stop in zip(by_column.indptr[:-1], by_column.indptr[1:], strict=True):
            yield by_column.data[start:stop].astype(np.float64), matrix.shape[0] - int(stop - start)
        return
    cells = np.asarray(matrix)  # a table of numbers too
    for j in range(cells.shape[1]):
        yield np.array(cells[:, j], dtype=np.float64), 0
