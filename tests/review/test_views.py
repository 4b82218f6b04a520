"""A view and its address are the same thing."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fragility.apps.review.views import (
    FieldFilter,
    FilterError,
    View,
    ViewError,
    read_name,
    read_numbers,
    read_values,
    write_name,
)


def test_an_address_gives_back_its_view():
    view = View(
        by="fds", budget="time", hours=2.5, rate=9645.0546875, confident=0.9999995, label="bad & good", k="2",
        group="a=b",
        where=(("duration", "12..36"), ("pürpose", "new car")), status="open", reviewer="Ana Lima", search="L0?7",
        sort="confidence", up=True, page=3, stay=True,
    )  # fmt: skip
    assert View.from_address(view.address()) == view
    assert View.from_address("") == View()
    assert View.from_address(view.address(page=4)) == replace(view, page=4)


def test_blank_words_of_a_form_say_nothing():
    assert View.from_address("label=&k=&field=&value=&hours=&search=") == View()
    assert View.from_address("field=a&value=&field=&value=b&field=c&value=d").where == (("c", "d"),)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        (
            "by=rcma",
            "by in the address must be one of exposure, fds, rehearsal, lost, wrong, noisy, stale, sentinel, outage, "
            "got 'rcma'",
        ),
        ("budget=7", "budget in the address must be one of"),
        ("status=done", "status in the address"),
        ("hours=many", "hours in the address must be a number from 0 to 10000, got 'many'"),
        ("hours=nan", "hours"),
        ("page=0", "page in the address must be a number from 1"),
        ("confident=1.5", "from 0 to 1"),
        ("field=a", "each with one value"),
        ("&".join(f"field=a{i}&value=1" for i in range(9)), "at most 8 fields"),
        ("&".join("x=1" for _ in range(199)), "too many words"),
    ],
)
def test_an_address_that_means_nothing_is_refused(query, sentence):
    with pytest.raises(ViewError, match=sentence.replace("(", r"\(")):
        View.from_address(query)


@pytest.mark.parametrize(
    "name",
    [" >50K", "a ", "", "a\nb", "a\r\nb", "\\n", "\\x0a", "\x00", "\u202eabc", "a&b=c;d", "ñ", "\u2028", "x" * 1500],
)
def test_names_of_any_characters_come_back(name):
    assert read_name(write_name(name)) == name and write_name(name)
    assert not re.search(r"[\x00-\x1f]", write_name(name))  # forms change line ends on their way
    view = View(label=name, group=name, reviewer=name, where=((name, "1"),))
    assert View.from_address(view.address()) == view


@given(st.text())
def test_every_name_comes_back(name):
    assert read_name(write_name(name)) == name


def test_texts_that_are_too_long_are_refused_not_cut():
    with pytest.raises(ViewError, match="label in the address has more than 2000 characters"):
        View.from_address(View(label="x" * 2001).address())
    with pytest.raises(ViewError, match="value in the address has more than 2000"):
        View.from_address(View(where=(("a", "x" * 2001),)).address())


# --- what was typed for a field -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("12", [12], [11.9, 12.1]),
        ("12..36", [12, 36], [11, 37]),
        ("12-36", [12, 24, 36], [11, 37]),
        ("12 – 36", [12], [37]),
        ("12 to 36", [36], [37]),
        ("-5--1", [-5, -1], [0, -6]),
        ("1e-3", [0.001], [1, -3]),
        (">=12", [12, 99], [11.99]),
        (">12", [12.01], [12]),
        ("<12", [-1], [12]),
        ("≤ 12", [12], [13]),
        ("3, 5, >9", [3, 5, 10], [4, 9]),
        ("-.5", [-0.5], [0.5]),
    ],
)
def test_numbers_are_read_as_they_are_written(text, inside, outside):
    wanted = read_numbers("age", text)

    def holds(value: float) -> bool:
        return any(
            (i.low < value or (i.low_included and i.low == value))
            and (value < i.high or (i.high_included and i.high == value))
            for i in wanted.intervals
        )

    assert all(holds(value) for value in inside) and not any(holds(value) for value in outside)
    assert not wanted.missing and wanted.in_words()


@pytest.mark.parametrize(
    "text", ["abc", "", "12,", "<", "12-", "--3", "1..2..3", "12 36", "nan", "inf", "=12", "0x10", "١٢x"]
)
def test_what_is_no_number_is_said_to_be_none(text):
    with pytest.raises(FilterError, match=r"'age' is a number, and .* cannot be read as one; write 12, <12"):
        read_numbers("age", text)


def test_other_numbers_that_cannot_be():
    with pytest.raises(FilterError, match="the range '36-12' for 'age' is empty; write the smaller number first"):
        read_numbers("age", "36-12")
    with pytest.raises(FilterError, match="too large"):
        read_numbers("age", "9" * 5000)


def test_values_are_found_as_they_are_before_they_are_taken_for_a_list():
    known = ["a", " b", "c, d", "d", "missing"]

    def read(text):
        return read_values("f", text, known.__contains__, lambda: known)

    assert read("c, d") == FieldFilter(values=("c, d",)) and read("a,d") == FieldFilter(values=("a", "d"))
    assert read(" b") == FieldFilter(values=(" b",)) and read("a ") == FieldFilter(values=("a",))
    assert read("missing") == FieldFilter(values=("missing",), missing=True)
    assert read_values("f", "missing, a", ["a"].__contains__, lambda: known) == FieldFilter(missing=True, values=("a",))
    with pytest.raises(FilterError, match="no row has 'e' in 'f'; it has 'a', ' b', 'c, d', 'd', 'missing'"):
        read("a, e")


def test_conditions_in_words():
    wanted = read_numbers("age", "12, 20-30, <5, >=60, missing")
    assert wanted.in_words() == "12 or 20 to 30 or less than 5 or 60 or more or missing"
    assert FieldFilter(values=("new car",), missing=True).in_words() == "“new car” or missing"
