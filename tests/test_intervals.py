"""Intervals of shares and of differences: their slow twins, published examples, and what must hold for all counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_intervals import paired_interval, share_interval
from scipy.stats import binomtest, norm

from fragility.base.shares import Z95, difference_of, normal_quantile, paired_difference, share_of


@st.composite
def paired_counts(draw) -> tuple[int, int, int]:
    rows = draw(st.integers(1, 300))
    first = draw(st.integers(0, rows))
    return first, draw(st.integers(0, rows - first)), rows


@pytest.mark.parametrize(("count", "rows"), [(0, 10), (3, 10), (10, 10), (7, 211)])
def test_the_interval_of_a_share_is_wilsons(count: int, rows: int) -> None:
    found = share_of(count, rows)
    exact = binomtest(count, rows).proportion_ci(method="wilson")
    assert (found.lower, found.upper) == pytest.approx((exact.low, exact.high), abs=1e-12)
    assert (found.lower, found.upper) == pytest.approx(share_interval(count, rows, Z95), abs=1e-7)
    assert found.value == count / rows


def test_the_interval_of_a_share_that_is_at_least_so_large_covers_all_it_can_be() -> None:
    found = share_of(12, 40, unsettled=5)
    assert (found.value, found.exact) == (12 / 40, False)
    assert found.lower == share_of(12, 40).lower and found.upper == share_of(17, 40).upper


def test_a_share_of_no_rows_says_nothing() -> None:
    found = share_of(0, 0)
    assert math.isnan(found.value) and (found.lower, found.upper) == (0.0, 1.0)
    assert math.isnan(difference_of(found, share_of(1, 2)).value)
    paired = paired_difference(0, 0, 0)
    assert math.isnan(paired.value) and (paired.lower, paired.upper) == (-1.0, 1.0)


def test_the_interval_of_a_difference_is_newcombes() -> None:
    """The worked example of Newcombe (1998), table II a: 56/70 - 48/80."""
    found = difference_of(share_of(56, 70), share_of(48, 80))
    assert (found.value, found.lower, found.upper) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    assert not found.paired


@settings(deadline=None, max_examples=60)
@given(paired_counts())
def test_the_interval_of_a_paired_difference_is_its_slow_twin(counts: tuple[int, int, int]) -> None:
    found = paired_difference(*counts)
    assert (found.lower, found.upper) == pytest.approx(paired_interval(*counts, Z95), abs=2e-5)
    assert found.lower <= found.value <= found.upper and found.paired


@given(paired_counts())
def test_a_paired_difference_turned_round_is_its_negative(counts: tuple[int, int, int]) -> None:
    first, second, rows = counts
    found, other = paired_difference(first, second, rows), paired_difference(second, first, rows)
    assert (found.value, found.lower, found.upper) == pytest.approx(
        (-other.value, -other.upper, -other.lower), abs=1e-9
    )


@given(paired_counts())
def test_the_paired_interval_excludes_zero_where_mcnemars_test_rejects(counts: tuple[int, int, int]) -> None:
    """At D = 0 the score test is McNemar's: (b - c)^2 > z^2 (b + c)."""
    first, second, rows = counts
    found = paired_difference(first, second, rows)
    rejected = (first - second) ** 2 - Z95**2 * (first + second)
    if abs(rejected) > 1e-6:
        assert (found.lower > 0 or found.upper < 0) == (rejected > 0)


def test_more_rows_narrow_the_interval_and_a_higher_level_widens_it() -> None:
    few, many = paired_difference(8, 2, 50), paired_difference(80, 20, 500)
    assert many.upper - many.lower < few.upper - few.lower
    wide = paired_difference(8, 2, 50, normal_quantile(0.99))
    assert wide.lower < few.lower and wide.upper > few.upper
    assert share_of(3, 10, normal_quantile(0.99)).upper > share_of(3, 10).upper
    assert normal_quantile(0.95) == pytest.approx(Z95, abs=1e-12) and normal_quantile(0.9) == pytest.approx(
        norm.ppf(0.95)
    )
