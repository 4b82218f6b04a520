"""Aligned text tables."""

import math

from fragility.base.text import align_columns, format_number


def test_words_to_the_left_and_numbers_to_the_right():
    table = [("score", "AUROC", "note"), ("margin", "0.5", ""), ("fds", "0.91", "on 4 rows")]
    assert align_columns(table) == ["score   AUROC       note", "margin    0.5", "fds      0.91  on 4 rows"]
    assert align_columns([("a", "bb", "1"), ("aa", "b", "22")], left=2) == ["a   bb   1", "aa  b   22"]


def test_an_undefined_number_is_a_dash():
    assert [format_number(0.12345), format_number(0.5, 1), format_number(math.nan)] == ["0.123", "0.5", "-"]
