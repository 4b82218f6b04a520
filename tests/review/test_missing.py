"""What the missing fields of a case would have changed: the numbers, what pages show, and who may ask."""

import re
import threading
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
from naive_deciding import changes_to, known_part, p_change, product, reduction
from reviewing import PHONE, browser
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from workbench import Audit, Client, reviewer, saved_audit, started, stranger, workbench

import fragility as fg
from fragility.apps.review.searches import ChangeSearch
from fragility.apps.review.views import View
from fragility.models.loading import skops_bytes
from fragility.pages.wording import write_percent

WAIT = 60.0
EVERYTHING = View.from_address("budget=all&confident=0")
NUMBERS, TEXTS = ["duration", "credit_amount", "age"], ["checking_status", "purpose"]
GAPS = MappingProxyType(
    {0: ["duration"], 1: ["checking_status"], 2: ["duration", "purpose"], 3: [*NUMBERS, *TEXTS], 5: ["age"]}
)  # by row


def make_audit(folder, renamed=MappingProxyType({}), **settings) -> Audit:
    """A model that fills gaps by itself, and rows with some."""
    X, y = fg.load_credit_g()
    X = X[NUMBERS + TEXTS].astype(dict.fromkeys(NUMBERS, float) | dict.fromkeys(TEXTS, object)).rename(columns=renamed)
    numbers, texts = ([renamed.get(name, name) for name in names] for names in (NUMBERS, TEXTS))
    X.loc[:699:15, numbers], X.loc[:699:20, texts] = np.nan, np.nan
    scale = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    encode = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    model = make_pipeline(make_column_transformer((scale, numbers), (encode, texts)), LogisticRegression(max_iter=500))
    model.fit(X[:700], y[:700])
    unsure = np.abs(model.predict_proba(X[700:])[:, 0] - 0.5).argsort()[:12]
    rows = X[700:].iloc[unsure].reset_index(drop=True)
    for place, names in GAPS.items():
        rows.loc[place, [renamed.get(name, name) for name in names]] = np.nan
    protocol = fg.Protocol.fit(model, X[:700], catalogue=8, depth=3, **settings)
    return saved_audit(folder, model, rows, protocol)


@pytest.fixture(scope="module")
def gappy(tmp_path_factory) -> Audit:
    return make_audit(tmp_path_factory.mktemp("missing") / "audit")


@pytest.fixture
def bench(gappy, tmp_path):
    with workbench(gappy, tmp_path / "review.sqlite") as made:
        yield made


def case_of(bench, place: int) -> str:
    queued = bench.cases.page(EVERYTHING, "Ana").cases
    return next(f"/case/{each.key}" for each in queued if each.case.place == place)


# --- the numbers --------------------------------------------------------------------------------------------


def units_of(protocol, unknown):
    found = []
    for entry in protocol.modes.catalogue:
        values = [
            (dict(zip(entry.fields, value, strict=True)), count / sum(entry.counts))
            for value, count in zip(entry.values, entry.counts, strict=True)
        ]
        if own := [name for name in entry.fields if name in unknown]:
            found.append(known_part(values, own))
    return found


@pytest.mark.parametrize("place", [0, 1, 2, 5])
def test_it_is_what_the_model_would_have_decided_with_each_value(bench, gappy, place):
    """The audited row keeps its gaps, which the model fills; its slow twin asks about one raw row at a time."""
    protocol, row, unknown = gappy.certs.protocol, dict(gappy.X.iloc[place]), GAPS[place]
    classes, units = list(gappy.certs.classes), units_of(protocol, GAPS[place])
    decided = classes.index(gappy.certs[place].predicted)

    def ask(values):
        return gappy.model.predict_proba(pd.DataFrame([values]).astype(gappy.X.dtypes))[0]

    chance = p_change(ask, row, decided, product(units))
    to = changes_to(ask, row, decided, product(units))
    found = bench.changes.find(place, WAIT)
    assert found.fields == tuple(sorted(unknown, key=list(gappy.X.columns).index)) and found.exact
    assert found.changes_to == (None if to is None else classes[to])
    assert found.likely == (chance > 0.5)
    assert write_percent(chance) in found.sentence if to is not None else "would not change" in found.sentence
    for name, fall in found.reductions:
        assert fall == pytest.approx(reduction(ask, row, decided, units, name), abs=1e-9)


def test_many_missing_fields_are_drawn_and_have_an_interval(bench):
    found = bench.changes.find(3, WAIT)
    assert not found.exact and "95% interval" in found.sentence
    assert {name for name, _ in found.reductions} == {*NUMBERS, *TEXTS}
    assert ChangeSearch(bench.whatif).find(3, WAIT) == found  # the same draws again


def test_a_guard_says_the_same_of_values_that_stay_as_they_are(bench, gappy):
    guard = fg.Guard(gappy.model, gappy.certs.protocol, engine="blackbox")
    for place, names in GAPS.items():
        check = guard.check(gappy.X.iloc[[place]], stale=names)
        found = bench.changes.find(place, WAIT)
        assert check.decision == gappy.certs[place].predicted
        assert found.changes_to == check.changes_to and found.exact == check.p_change_exact
        assert found.reductions == (check.acquire if len(names) > 1 else ())


# --- pages --------------------------------------------------------------------------------------------------


def test_a_case_with_missing_fields_says_what_they_would_have_changed(bench):
    ana = reviewer(bench, "Ana")
    case = case_of(bench, 2)
    page, part = ana.get(case).text, ana.get(f"{case}/missing").text
    heading = re.search(r'<h2 id="h-missing">(.*?)</h2>', page)[1]
    assert re.sub(r"<[^>]+>", "", heading) == "Decided without duration, purpose"
    assert f'data-address="{case}/missing"' in page and "would change the decision…" in page
    assert re.search(r'<p class="finding">Knowing duration and purpose would change the decision with prob.*bad', part)
    assert re.search(r'<p class="finding">Fetch duration first: with it, the probability of a change is expected', part)
    assert part.count('<th scope="row">') == 2 and "Exact: every value that the protocol lists for these fields" in part
    drawn = ana.get(f"{case_of(bench, 3)}/missing").text
    assert "Estimated from draws of the values" in drawn and "95% interval" in drawn
    assert "None of them alone is expected to lower this probability." in drawn and "<table" not in drawn
    assert "Exact: every value that the protocol lists for this field" in ana.get(f"{case_of(bench, 0)}/missing").text


def test_a_case_without_missing_fields_says_nothing_of_it(bench):
    ana = reviewer(bench, "Ana")
    case = case_of(bench, 4)
    assert "Decided without" not in ana.get(case).text
    refused = ana.get(f"{case}/missing")
    assert refused.status_code == 404 and refused.json()["error"]["message"] == "no field of this case is missing"


def test_it_is_guarded_and_needs_the_model(bench, gappy, tmp_path):
    case = case_of(bench, 0)
    assert stranger(bench).get(f"{case}/missing").status_code == 401
    assert stranger(bench, host="evil.example").get(f"{case}/missing").status_code == 403
    with workbench(gappy, tmp_path / "other.sqlite", data=False) as without:
        ben = reviewer(without, "Ben")
        refused = ben.get(f"{case}/missing")
        assert (
            refused.status_code == 404
            and "start the workbench with --model and --data" in refused.json()["error"]["message"]
        )
        assert "Decided without" not in ben.get(case).text  # without the rows nobody knows what is missing


def test_with_the_rows_alone_the_page_says_what_is_missing(bench):
    ana = reviewer(replace(bench, whatif=None, stability=None, changes=None), "Ana")
    page = ana.get(case_of(bench, 0)).text
    assert "Decided without" in page and "with <code>--model</code> to see whether knowing it would change" in page
    assert 'id="missing-searching"' not in page


def test_a_protocol_without_values_is_told(tmp_path):
    made = make_audit(tmp_path / "audit", modes=("lost",))
    with workbench(made, tmp_path / "review.sqlite") as bench:
        refused = reviewer(bench, "Ana").get(f"{case_of(bench, 0)}/missing")
        assert refused.status_code == 400
        assert "what 'duration' might hold is not known" in refused.json()["error"]["message"]


def test_nobody_waits_for_a_model_that_is_busy(bench, monkeypatch):
    monkeypatch.setattr("fragility.apps.review.desk.PATIENCE", 0.05)
    ana, case, go_on, has_it = reviewer(bench, "Ana"), case_of(bench, 0), threading.Event(), threading.Event()

    def hold():
        with bench.whatif.use(7):
            has_it.set()
            go_on.wait(WAIT)

    holder = threading.Thread(target=hold)
    holder.start()
    has_it.wait(WAIT)
    assert ana.get(f"{case}/missing").status_code == 202
    go_on.set()
    holder.join()
    assert bench.changes.find(0, WAIT)
    assert ana.get(f"{case}/missing").status_code == 200


def test_names_from_data_are_text_here_too(tmp_path):
    renamed = {"duration": "<b>months</b>", "purpose": "<script>1</script>"}
    made = make_audit(tmp_path / "audit", renamed)
    with workbench(made, tmp_path / "review.sqlite") as bench:
        eve = reviewer(bench, "Eve")
        case = case_of(bench, 2)
        for text in (eve.get(case).text, eve.get(f"{case}/missing").text):
            assert "<b>months" not in text and "<script>1" not in text and "&lt;b&gt;months" in text


# --- a real browser -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_part_arrives_in_a_browser_and_fits_a_phone(gappy, tmp_path):
    (tmp_path / "model.skops").write_bytes(skops_bytes(gappy.model))
    gappy.X.assign(loan=gappy.certs.table.column("id").to_pylist()).to_parquet(tmp_path / "rows.parquet")
    words = ("--model", tmp_path / "model.skops", "--trust", "--data", tmp_path / "rows.parquet", "--id", "loan")
    with (
        started(gappy, tmp_path / "review.sqlite", *words) as (_, address),
        browser(Client(address, "Host").new_address(), tmp_path / "profile", PHONE) as ana,
    ):
        ana.enter("Ana")
        ana.go("/queue?search=2&confident=0")
        ana.follow(lambda: ana.all("[data-line]")[0].click())
        ana.until(lambda: ana.find("#missing").get_attribute("data-ready") == "1")
        assert "Knowing duration and purpose would change the decision" in ana.text("#missing")
        assert len(ana.all("#missing tbody tr")) == 2
        assert ana.fits() and ana.findings() == []
        ana.check_quiet()
