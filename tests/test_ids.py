"""Rows meet by id, compared as text."""

from fragility import ids
from fragility.ids import places_by_id


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
