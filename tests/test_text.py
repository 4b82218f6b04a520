"""Aligned text tables."""

import math

from fragility.text import aligned, number


def test_words_to_the_left_and_numbers_to_the_right():
    table = [("score", "AUROC", "note"), ("margin", "0.5", ""), ("fds", "0.91", "on 4 rows")]
    assert aligned(table) == ["score   AUROC       note", "margin    0.5", "fds      0.91  on 4 rows"]
    assert aligned([("a", "bb", "1"), ("aa", "b", "22")], left=2) == ["a   bb   1", "aa  b   22"]


def test_an_undefined_number_is_a_dash():
    assert [number(0.12345), number(0.5, 1), number(math.nan)] == ["0.123", "0.5", "-"]
