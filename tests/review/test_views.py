"""A view and its address are the same thing."""

from dataclasses import replace

import pytest

from fragility.review.views import View, ViewError, wanted_value


def test_an_address_gives_back_its_view():
    view = View(
        by="fds", budget="time", hours=2.5, rate=30.0, confident=0.8, label="bad & good", k="2", group="a=b",
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
        ("by=rcma", "by in the address must be one of exposure, fds, got 'rcma'"),
        ("budget=7", "budget in the address must be one of"),
        ("status=done", "status in the address"),
        ("hours=many", "hours in the address must be a number from 0 to 10000, got 'many'"),
        ("hours=nan", "hours"),
        ("page=0", "page in the address must be a number from 1"),
        ("confident=1.5", "from 0 to 1"),
        ("field=a", "each with one value"),
        ("&".join(f"field=a{i}&value=1" for i in range(9)), "at most 8 fields"),
        ("&".join("x=1" for _ in range(99)), "too many words"),
    ],
)
def test_an_address_that_means_nothing_is_refused(query, sentence):
    with pytest.raises(ViewError, match=sentence.replace("(", r"\(")):
        View.from_address(query)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("12..36", 12, 36), (">=12", 12, None), ("<= -3.5", None, -3.5), ("12", None, None), ("a..b", None, None)],
)
def test_what_a_field_must_be(text, low, high):
    wanted = wanted_value(text)
    assert (wanted.low, wanted.high) == (low, high)
    assert wanted.is_range == (low is not None or high is not None)
