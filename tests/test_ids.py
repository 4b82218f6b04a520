"""Rows meet by id, compared as text."""

from fragility.ids import places_by_id


def test_places_follow_the_wanted_order_and_the_absent_are_named():
    places, missing = places_by_id(["7", "b", 8, "c"], [8, 7, "b"])
    assert places.tolist() == [1, 2, 0]
    assert missing == ["c"]
