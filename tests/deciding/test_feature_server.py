"""Responses of a feature server: every status, ages against a declared maximum, and what is no response."""

import datetime as dt

import pytest

import fragility as fg
from fragility.deciding import read_feature_response

NOW = dt.datetime(2026, 5, 17, 12, tzinfo=dt.UTC)
FIELDS = ["duration", "age", "purpose"]


def result(values, statuses, times=None):
    times = ["2026-05-17T11:59:00Z"] * len(values) if times is None else times
    return {"values": values, "statuses": statuses, "event_timestamps": times}


def response(*results, names=("duration", "age", "purpose")):
    return {"metadata": {"feature_names": {"val": list(names)}}, "results": list(results)}


FULL = response(
    result([12, 24, None], ["PRESENT", "OUTSIDE_MAX_AGE", "NULL_VALUE"]),
    result([33, 44, None], ["PRESENT", "PRESENT", "OUTSIDE_MAX_AGE"], ["2026-05-17T10:00:00Z"] * 3),
    result(["car", None, "tv"], ["PRESENT", "NOT_FOUND", "INVALID"]),
)


def test_each_status_is_read():
    served = read_feature_response(FULL, FIELDS, now=NOW)
    assert served.rows[0] == {"duration": 12, "age": 33, "purpose": "car"}
    assert served.missing == [(), ("purpose",), ("duration", "age", "purpose")]
    assert served.stale == [(), ("duration",), ()]


@pytest.mark.parametrize(
    ("max_age", "stale"),
    [
        (3600, [("age",), ("duration", "age"), ()]),
        (dt.timedelta(hours=3), [(), ("duration",), ()]),
        ({"age": 7200}, [(), ("duration",), ()]),  # exactly as old as it may be
        ({"age": 7199.9}, [("age",), ("duration", "age"), ()]),
        (0, [("duration", "age", "purpose"), ("duration", "age"), ()]),
    ],
)
def test_event_timestamps_are_held_against_the_maximum_age(max_age, stale):
    assert read_feature_response(FULL, FIELDS, now=NOW, max_age=max_age).stale == stale


def test_values_without_a_time_have_no_age():
    given = response(result([1], ["PRESENT"], ["1970-01-01T00:00:00Z"]), names=["duration"])
    assert read_feature_response(given, ["duration"], now=NOW, max_age=1).stale == [()]
    given["results"][0].pop("event_timestamps")
    assert read_feature_response(given, ["duration"], now=NOW, max_age=1).stale == [()]


def test_the_shapes_of_protobuf_are_read():
    given = {
        "metadata": {"featureNames": ["driver__duration", "entity"]},
        "results": [
            {
                "values": {"val": [{"int64Val": "12"}, {"double_val": 2.5}, {}]},
                "statuses": [1, "OUTSIDE_MAX_AGE", 3],
                "eventTimestamps": [{"seconds": NOW.timestamp()}, NOW.timestamp(), None],
            },
            result([1, 2, 3], ["PRESENT"] * 3),
        ],
    }
    served = read_feature_response(given, ["duration"], now=NOW, max_age=60, names={"driver__duration": "duration"})
    assert served == (
        [{"duration": 12}, {"duration": 2.5}, {"duration": None}],
        [(), (), ("duration",)],
        [(), ("duration",), ()],
    )


def test_lists_by_feature_are_read_with_and_without_timestamps():
    given = {"duration": [12, None], "age": [33, 44], "age__ts": [NOW.timestamp() - 100, NOW.timestamp()]}
    served = read_feature_response(given, ["duration", "age"], now=NOW, max_age=60)
    assert served.missing == [(), ("duration",)] and served.stale == [("age",), ()]


def test_numbers_that_protobuf_writes_as_text_are_numbers():
    values = [{"doubleVal": "NaN"}, {"double_val": "1.5"}, {"int64Val": "-3"}]
    served = read_feature_response(response(result(values, ["PRESENT"] * 3), names=["age"]), ["age"], now=NOW)
    assert [row["age"] for row in served.rows[1:]] == [1.5, -3] and served.missing == [("age",), (), ()]


def test_known_values_come_from_elsewhere_and_the_rest_is_missing():
    given = response(result([12], ["PRESENT"]), names=["duration"])
    served = read_feature_response(given, FIELDS, now=NOW, known=[{"age": 33, "purpose": None}])
    assert served.rows == [{"duration": 12, "age": 33, "purpose": None}] and served.missing == [("purpose",)]
    assert read_feature_response(given, FIELDS, now=NOW).missing == [("age", "purpose")]


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        (FULL, {"now": dt.datetime(2026, 1, 1)}, "now must be a datetime with a time zone"),
        (FULL, {"max_age": -1}, r"max_age of 'duration' must be a timedelta or seconds from 0 to 1e\+13, got -1"),
        (FULL, {"max_age": 1e30}, r"must be a timedelta or seconds from 0 to 1e\+13, got 1e\+30"),
        (FULL, {"max_age": {"agee": 1}}, "max_age names 'agee', which is not among the fields duration, age, purpose"),
        (FULL, {"known": [{}]}, "the response has 3 rows, known 1"),
        (FULL, {"known": {"age": 3}}, "known must be a list with one mapping per row, got {'age': 3}"),
        (FULL, {"known": 5}, "known must be a list with one mapping per row, got 5"),
        (FULL, {"names": ["age"]}, "names must be a mapping from features to fields, got list"),
        (
            FULL,
            {"names": {"view__age": "age"}},
            "names has 'view__age', which the response lacks; it has",
        ),
        (FULL, {"names": {"age": "agee"}}, "names gives 'agee', which is not among the fields duration, age, purpose"),
        (FULL, {"names": {"age": "duration"}}, "two features of the response are the field 'duration'"),
        ({"view__age": [3]}, {}, "has none of the fields 'duration', 'age', 'purpose', only 'view__age'; say by names"),
        ({3: [3]}, {}, "has none of the fields 'duration', 'age', 'purpose', only '3'"),
        ({"age": [3], "age__ts": None}, {}, "'age' must have an event timestamp for each of its values"),
        (response(*[result([1], ["PRESENT"])] * 2, names=["age"] * 2), {}, "feature_names must be distinct"),
        (response(result([1], ["PRESENT"], [{"seconds": "x"}]), names=["age"]), {}, "seconds since 1970, got .*'x'"),
        (response(result([{"int64_val": "x"}], ["PRESENT"]), names=["age"]), {}, "'age' must be plain, or one such as"),
        (response(result([{3: "x"}], ["PRESENT"]), names=["age"]), {}, "'age' must be plain, or one such as"),
        ([], {}, "must be an object with 'metadata' and 'results', or lists of values by feature, got list"),
        ({"results": []}, {}, "one entry of 'results' for each of metadata.feature_names, got no names and 0 results"),
        (response(result([1], ["PRESENT"])), {}, "got 3 names and 1 results"),
        (response(result([1], ["FRESH"]), names=["age"]), {}, "'age' must be one of INVALID, PRESENT.*got 'FRESH'"),
        (response(result([1, 2], ["PRESENT"]), names=["age"]), {}, "'age' must have a status for each of its values"),
        (response(result([1], ["PRESENT"], []), names=["age"]), {}, "'age' must have an event timestamp for each"),
        (response(result([1], ["PRESENT"], ["soon"]), names=["age"]), {}, "ISO text or seconds since 1970, got 'soon'"),
        (response(result([{"a": 1, "b": 2}], ["PRESENT"]), names=["age"]), {}, "must be plain, or one such as"),
        (response(result([], []), names=["age"]), {}, "as many values, at least one, of every feature, got age 0"),
        ({"age": 3}, {}, "'age' must be a list with one value per row, got int"),
    ],
)
def test_what_is_no_response_is_refused_in_a_sentence(given, settings, message):
    with pytest.raises(fg.DataError, match=message):
        read_feature_response(given, FIELDS, **{"now": NOW, **settings})
