"""Rows meet by id, compared as text."""

import pytest

from fragility.base import ids
from fragility.base.ids import IdSpan, places_by_id


def test_places_follow_the_wanted_order_and_the_absent_are_named():
    places, missing = places_by_id(["7", "b", 8, "c"], [8, 7, "b"])
    assert places.tolist() == [1, 2, 0]
    assert missing == ["c"]


def test_ids_that_come_twice_are_found_among_many_parts(monkeypatch):
    monkeypatch.setattr(ids, "LONGEST_RUN", 500)
    seen = ids.SeenIds()
    assert all(seen.add(range(start, start + 70)) is None for start in range(0, 7000, 70))
    assert sum(map(len, seen._runs)) == 7000 and len(seen._runs) > 7
    assert seen.add([8000, 6999]) == 6999 and seen.add([9000, 9001, 9000]) == 9000
    assert seen.add(["12"]) == "12" and seen.add(["012", "x"]) is None


@pytest.mark.parametrize(
    ("parts", "span"),
    [
        ([], "none"),
        ([[9, 10], [-3]], "-3 to 10"),
        ([["9", "10"], [11]], "9 to 11"),  # a file may give back "9" for 9
        ([["L2", "L10"], ["K1"]], "'K1' to 'L2'"),
        ([[1], ["x\x1b[2J"]], "'1' to 'x\\x1b[2J'"),
        ([["1" * 5000]], f"'{'1' * 5000}' to '{'1' * 5000}'"),
    ],
)
def test_a_span_names_the_smallest_and_the_largest_id(parts: list[list[object]], span: str) -> None:
    found = IdSpan()
    for part in parts:
        found.add(part)
    assert str(found) == span
