"""How far the values of a case may move: what pages show, what-if with other values, and the search on demand."""

import datetime as dt
import json
import re
import threading
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from workbench import Audit, keys, reviewer, saved_audit, stranger, workbench

import fragility as fg
from fragility.apps.review.queries import CaseIndex
from fragility.apps.review.searches import SearchTooLongError, StabilitySearch, show_fields
from fragility.apps.review.views import View
from fragility.base.errors import DataError
from fragility.pages.terms import BRACKETED, MODE_WORDS
from fragility.questions.modes.intervals import intervals_of_rows
from fragility.questions.modes.stability import Flip, StabilityInterval

WAIT = 60.0
EVERYTHING = View.from_address("budget=all&confident=0")


def day_number(days):
    return days.apply(lambda column: pd.to_datetime(column).astype("datetime64[s]").astype("int64") / 86400.0)


@pytest.fixture(scope="module")
def dated(tmp_path_factory) -> Audit:
    """A linear model of a day, a whole number, a decimal and a category."""
    chance = np.random.default_rng(0)
    day = pd.Series(pd.to_datetime("2021-01-01") + pd.to_timedelta(chance.integers(0, 700, 400), unit="D"))
    X = pd.DataFrame(
        {
            "day": day,
            "visits": chance.integers(0, 30, 400),
            "weight": chance.normal(size=400),
            "colour": chance.choice(["red", "green", "blue"], 400),
        }
    )
    y = np.where(day_number(X[["day"]])["day"] / 100 + X["visits"] / 3 + 3 * (X["colour"] == "red") > 195, "yes", "no")
    numbers = FunctionTransformer(day_number, feature_names_out="one-to-one")
    encode = make_column_transformer(
        (make_pipeline(numbers, StandardScaler()), ["day"]), (OneHotEncoder(), ["colour"]),
        (StandardScaler(), ["visits", "weight"]),
    )  # fmt: skip
    model = make_pipeline(encode, LogisticRegression()).fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    return saved_audit(tmp_path_factory.mktemp("fields") / "dated", model, X[:30], protocol, modes=10)


@pytest.fixture
def bench(dated, tmp_path):
    with workbench(dated, tmp_path / "review.sqlite") as made:
        yield made


def find(bench, place: int) -> dict[str, StabilityInterval]:
    found = bench.stability.find(place, WAIT)
    assert found is not None
    return {one.field: one for one in found}


def test_what_if_holds_within_an_interval_and_flips_where_it_says(bench, dated):
    seen = set()
    for place in range(0, 12, 3):
        before = bench.whatif.ask(place, {})
        for name, one in find(bench, place).items():
            flips = one.categories if one.nominal else [f for f in (one.flips_below, one.flips_above) if f]
            for flip in flips:
                answer = bench.whatif.ask(place, {}, {name: flip.value})
                assert answer.flipped and answer.predicted == flip.predicted, (name, flip)
                assert answer.original == before.original and answer.margin_before == pytest.approx(before.margin)
                seen.add(name)
            for end in (one.low, one.high) if not one.nominal else ():
                assert not bench.whatif.ask(place, {}, {name: end}).flipped
    assert seen == {"day", "visits", "colour"}  # the weight says nothing


def test_another_value_is_what_the_model_answers_for_it(bench, dated):
    row = dated.X.iloc[[3]].assign(visits=29, day=pd.Timestamp("2022-06-01"), colour="green")
    answer = bench.whatif.ask(3, {}, {"visits": 29, "day": "2022-06-01", "colour": "green"})
    expected = dict(zip(dated.model.classes_, dated.model.predict_proba(row)[0], strict=True))
    assert answer.probabilities == pytest.approx(expected)
    both = bench.whatif.ask(3, {"visits": 1.0}, {"colour": "green"})
    lost = bench.whatif.ask(3, {"visits": 1.0}, {})
    assert both.margin != lost.margin and both.margin_before == lost.margin_before


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"income": 1}, "the rows have no field 'income'"),
        ({"visits": 2.5}, "'visits' takes a whole number from 0.0 to 29.0, got 2.5"),
        ({"visits": 10**400}, "'visits' takes a whole number"),
        ({"visits": True}, "'visits' takes a whole number"),
        ({"visits": 31}, "'visits' takes a whole number"),
        ({"weight": "heavy"}, "'weight' takes a number from .* got 'heavy'"),
        ({"weight": float("nan")}, "'weight' takes a number"),
        ({"day": "yesterday"}, "'day' takes a date from 2021-01-0. to 2022-.*, got 'yesterday'"),
        ({"day": "2021-05-05T10:00:00"}, "'day' takes a date"),
        ({"day": 19000}, "'day' takes a date"),
        ({"colour": "violet"}, r"'colour' takes a category that the protocol lists \(.*'red'.*\), got 'violet'"),
        ({"colour": None}, "'colour' takes a category"),
    ],
)
def test_a_value_that_a_field_cannot_have_is_refused(bench, values, sentence):
    with pytest.raises(DataError, match=sentence):
        bench.whatif.ask(0, {}, values)


def test_sliders_and_choices_are_those_of_the_intervals(bench, dated):
    intervals = find(bench, 0)
    shown = {field.name: field for field in show_fields(intervals.values(), bench.cases.protocol)}
    assert [field.flips for field in shown.values()] == sorted((f.flips for f in shown.values()), reverse=True)
    ranges = {own.field: own for own in bench.cases.protocol.modes.ranges}
    for name in ("visits", "weight"):
        one, slider = intervals[name], shown[name].slider
        assert (slider.low, slider.high, slider.value) == (ranges[name].low, ranges[name].high, one.value)
        width = slider.high - slider.low
        assert slider.stable.start == pytest.approx(100 * (one.low - slider.low) / width, abs=0.001)
        assert slider.stable.length == pytest.approx(100 * (one.high - one.low) / width, abs=0.002)
        assert slider.step == ("1" if name == "visits" else "any") and not slider.of_days and not slider.unknown
    day, slider = intervals["day"], shown["day"].slider
    first = dt.date(1970, 1, 1)
    assert slider.of_days and str(first + dt.timedelta(days=slider.value)) == day.value
    assert str(first + dt.timedelta(days=slider.low)) == ranges["day"].low
    own, *others = shown["colour"].choices
    assert own.own and json.loads(own.value) == dated.X["colour"].iloc[0] and own.flips_to is None
    flips = {flip.value: str(flip.predicted) for flip in intervals["colour"].categories}
    assert {json.loads(c.value): c.flips_to for c in others if c.flips_to} == flips
    assert {json.loads(c.value) for c in (own, *others)} == {"red", "green", "blue"}


def test_between_values_that_were_tried_nothing_is_shaded_as_stable(bench):
    tried = StabilityInterval("visits", 10, BRACKETED, 5, 12, Flip(2, "no"), Flip(20, "no"))
    (field,) = show_fields([tried], bench.cases.protocol)
    assert field.slider.stable.start == pytest.approx(100 * 5 / 29, abs=0.001)
    assert [band.length for band in field.slider.unknown] == pytest.approx([100 * 3 / 29, 100 * 8 / 29], abs=0.002)
    assert field.turns == "flips to 'no' at 2 and 20"
    missing = StabilityInterval("visits", None, "missing")
    (field,) = show_fields([missing], bench.cases.protocol)
    assert field.slider is None and not field.flips and "missing" in field.sentence


def test_a_page_asks_for_its_fields(bench, dated):
    ana = reviewer(bench, "Ana")
    place = next(place for place in range(30) if find(bench, place)["colour"].categories)
    case = next(f"/case/{q.key}" for q in bench.cases.page(EVERYTHING, "Ana").cases if q.case.place == place)
    assert f'data-address="{case}/fields"' in ana.get(case).text
    part = ana.get(f"{case}/fields")
    assert part.status_code == 200 and "<html" not in part.text
    for one in find(bench, place).values():
        assert f'data-field="{one.field}"' in part.text
    assert 'type="date"' in part.text and 'class="held"' in part.text and "→ flips to" in part.text
    labels = re.findall(r'<label for="(wv-\d+)"', part.text)
    assert len(labels) == len(set(labels)) == 4 and all(f'id="{name}"' in part.text for name in labels)
    answer = ana.post(f"{case}/whatif", json={"severities": {}, "values": {"visits": 3}})
    assert answer.status_code == 200 and set(answer.json()) >= {"predicted", "margin", "flipped"}
    refused = ana.post(f"{case}/whatif", json={"severities": {}, "values": [3]})
    assert (
        refused.status_code == 400
        and refused.json()["error"]["message"] == "values must be an object from field to a value"
    )


def test_intervals_of_the_certificates_are_shown_without_a_search(dated, tmp_path):
    every = saved_audit(tmp_path / "every", dated.model, dated.X, dated.certs.protocol, intervals=True)
    some = saved_audit(tmp_path / "some", dated.model, dated.X, dated.certs.protocol, intervals=["visits"])
    with workbench(every, tmp_path / "a.sqlite") as bench:
        ana = reviewer(bench, "Ana")
        page = ana.get(f"/case/{bench.cases.page(EVERYTHING, 'Ana').cases[0].key}").text
        assert "wi-searching" not in page and 'data-field="visits"' in page and not bench.stability._found
    with workbench(every, tmp_path / "b.sqlite", data=False) as bench:  # nobody to ask, but the block can be read
        ben = reviewer(bench, "Ben")
        queued = bench.cases.page(EVERYTHING, "Ben").cases[0]
        page, cert = ben.get(f"/case/{queued.key}").text, every.certs[queued.case.place]
        assert "How far each value may move" in page and "data-field" not in page
        assert 'class="held"' in page and cert.intervals["visits"].sentence() in page
    with workbench(some, tmp_path / "c.sqlite") as bench:  # the other fields are searched for
        page = reviewer(bench, "Eve").get(f"/case/{bench.cases.page(EVERYTHING, 'Eve').cases[0].key}").text
        assert "wi-searching" in page


def test_fields_are_guarded_and_need_the_model(bench, dated, tmp_path):
    case = f"/case/{keys(reviewer(bench, 'Ana').get('/queue?budget=all&confident=0').text)[0]}"
    assert stranger(bench).get(f"{case}/fields").status_code == 401
    assert stranger(bench, host="evil.example").get(f"{case}/fields").status_code == 403
    with workbench(dated, tmp_path / "other.sqlite", data=False) as without:
        ben = reviewer(without, "Ben")
        assert (
            ben.get(f"{case}/fields").status_code == 404
            and "--model" in ben.get(f"{case}/fields").json()["error"]["message"]
        )
        assert "wi-fields" not in ben.get(case).text


def test_nobody_waits_for_a_long_search_and_it_is_given_up(bench, monkeypatch):
    go_on = threading.Event()

    def slowly(rows, protocol, **given):
        go_on.wait(WAIT)
        return intervals_of_rows(rows, protocol, **given)

    monkeypatch.setattr("fragility.apps.review.searches.intervals_of_rows", slowly)
    monkeypatch.setattr("fragility.apps.review.desk.PATIENCE", 0.05)
    ana = reviewer(bench, "Ana")
    case = f"/case/{keys(ana.get('/queue?budget=all&confident=0').text)[0]}"
    assert ana.get(f"{case}/fields").status_code == 202
    go_on.set()
    place = bench.cases.find(case.removeprefix("/case/")).case.place
    assert bench.stability.find(place, WAIT)
    assert ana.get(f"{case}/fields").status_code == 200
    short = StabilitySearch(bench.whatif, longest=0.0)
    with pytest.raises(SearchTooLongError, match="given up after 0 seconds"):
        short.find(0, WAIT)
    short._longest = WAIT
    assert short.find(0, WAIT)  # what failed is tried again
    monkeypatch.setattr("fragility.apps.review.searches.KEPT", 2)
    for place in range(4):
        short.find(place, WAIT)
    assert list(short._found) == [2, 3]


def test_names_from_data_are_text_in_fields_too(hostile, tmp_path, monkeypatch):
    asked = partial(intervals_of_rows, engine="blackbox")  # compiles nothing
    monkeypatch.setattr("fragility.apps.review.searches.intervals_of_rows", asked)
    with workbench(hostile, tmp_path / "review.sqlite") as bench:
        eve = reviewer(bench, "Eve")
        case = f"/case/{keys(eve.get('/queue?budget=all&confident=0').text)[0]}"
        part = eve.get(f"{case}/fields").text
        assert "<b>amount" not in part and "<script" not in part and "&lt;b&gt;amount" in part


# --- failure modes ------------------------------------------------------------------------------------------


def test_the_queue_is_ranked_and_filtered_by_exposure_to_a_mode(bench, dated):
    ana = reviewer(bench, "Ana")
    certs = dated.certs
    assessed = {cert.id: cert.modes["wrong"].exposure for cert in certs if cert.modes is not None}
    assert len(assessed) == 10
    ranked = [str(own) for own in sorted(assessed, key=lambda own: -assessed[own])]
    page = ana.get("/queue?by=wrong&budget=all").text
    names = re.findall(r"data-line><bdi>(\d+)</bdi>", page)
    assert names == ranked and "Exposure to wrong values" in page and 'aria-sort="descending"' in page
    top = ana.get("/queue?by=wrong&budget=20").text
    assert re.findall(r"data-line><bdi>(\d+)</bdi>", top) == ranked[:2]
    assert "the top 20% by exposure to wrong values" in top and "whose failure modes were assessed" in top
    median = sorted(assessed.values())[5]
    some = ana.get(f"/queue?budget=all&mode=wrong&least={median!r}").text
    wanted = {str(own) for own, exposure in assessed.items() if exposure >= median}
    assert set(re.findall(r"data-line><bdi>(\d+)</bdi>", some)) == wanted
    everything = ana.get("/queue?budget=all&confident=0&sort=noisy").text
    assert len(re.findall("data-line", everything)) == 30 and everything.count("not assessed") == 20


def test_a_view_by_a_mode_is_walked_through_in_order(bench):
    view = View.from_address("by=exposure&budget=all&confident=0&sort=lost")
    page = bench.cases.page(view, "Ana")
    here = page.cases[0]
    walked = [here.case.place]
    while (after := bench.cases.neighbours(view, "Ana", here)[1]) is not None:
        walked.append(after.case.place)
        assert bench.cases.neighbours(view, "Ana", after)[0].case.place == here.case.place
        assert bench.cases.position(view, "Ana", after) == (len(walked), 30)
        here = after
    assert walked == [queued.case.place for queued in page.cases] and len(walked) == 30


def test_a_mode_that_was_not_assessed_is_refused(bench, audited, tmp_path):
    ana = reviewer(bench, "Ana")
    for address in ("by=stale", "sort=outage", "mode=sentinel", "by=whatever", "least=2"):
        assert ana.get(f"/queue?{address}").status_code == 400, address
    assert "it has lost, wrong, noisy" in ana.get("/queue?by=stale").text
    with workbench(audited, tmp_path / "without.sqlite") as without:
        ben = reviewer(without, "Ben")
        page = ben.get("/queue").text
        assert 'id="f-mode"' not in page and "wrong values" not in page
        assert "an audit with --modes all assesses them" in ben.get("/queue?by=wrong").text


def test_a_case_shows_what_each_mode_costs_it(bench, dated):
    ana = reviewer(bench, "Ana")
    for queued in bench.cases.page(EVERYTHING, "Ana").cases[:30]:
        cert = dated.certs[queued.case.place]
        page = ana.get(f"/case/{queued.key}").text
        assert ("Evidence that is wrong, not only lost" in page) == (cert.modes is not None)
        for mode, cost in (cert.modes or {}).items():
            assert queued.others[mode] == cost.exposure
            assert f"exposure to {MODE_WORDS[mode][0]} <strong>{cost.exposure:.2f}</strong>" in page
            weakest = cost.flip_chance[cost.weakest]
            if 0.005 <= weakest < 0.995:
                assert f"{cost.weakest} flips it with probability {weakest:.2f}" in page


def test_exposures_of_an_audit_in_parts_are_found(dated, tmp_path):
    dated.X.to_parquet(tmp_path / "rows.parquet")
    given = {"engine": "blackbox", "part_rows": 7, "modes": ["wrong"], "progress": False}
    fg.audit_files(dated.model, tmp_path / "rows.parquet", dated.certs.protocol, tmp_path / "parts", **given)
    whole = fg.Certificates.load(tmp_path / "parts")
    index = CaseIndex.open(tmp_path / "parts")
    try:
        shown = index.page(EVERYTHING, "Ana").cases
        assert {queued.case.place: dict(queued.others) for queued in shown} == {
            place: {"wrong": cert.modes["wrong"].exposure} for place, cert in enumerate(whole)
        }
    finally:
        index.close()
