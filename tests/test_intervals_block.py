"""The intervals block of certificates: what the search says, the same from any batch, and hard to forge."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from block_tables import change_root, declare, put_block
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import naive_predicted_class, naive_support_margin
from pipelines import fitted
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import fragility as fg
import fragility.blocks.intervals.recheck as recheck
from fragility.audits import Certificates
from fragility.audits.integrity import check_integrity
from fragility.base.errors import CertificateError, DataError, ProtocolError
from fragility.blocks.choice import ChosenRows
from fragility.blocks.intervals.making import search_intervals, write_intervals
from fragility.blocks.intervals.values import IntervalsDeclaration
from fragility.pages.terms import BRACKETED, EXACT, MISSING
from fragility.protocol import bind
from fragility.questions.modes.stability import StabilityInterval, describe_intervals
from fragility.verification.outcome import Verification
from fragility.verification.verifying import _choose_rows, verify

pytest.importorskip("numba")
FAMILIES = [("lightgbm", "transformed"), ("logistic", "transformed"), ("mlp", "transformed"), ("lightgbm", "raw")]


def declared_case(family: str, space: str = "transformed", dataset: str = "credit_g"):
    case = fitted(dataset, family, space)
    return case, fg.Protocol.fit(case.model, case.X_train, space=space, catalogue=6, depth=3)


def failed(result: Verification) -> list[str]:
    return [check.name for check in result.checks if not check.passed]


# --- what a block says --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "space", "dataset"),
    [*((*family, "credit_g") for family in FAMILIES), ("lightgbm", "transformed", "credit_g_property")],
)
def test_a_block_says_what_the_search_says_and_verifies(family, space, dataset):
    case, protocol = declared_case(family, space, dataset)
    X = case.X_test[:4]
    certs = fg.audit(case.model, X, protocol, intervals=True, lattice=False)
    found = fg.find_stability_intervals(case.model, X, protocol)
    for row, cert in enumerate(certs):
        assert list(cert.intervals) == list(found.by_field) == [field.name for field in protocol.fields]
        for field, one in cert.intervals.items():
            assert one == found.interval(row, field)
    assert (
        certs.manifest.blocks["intervals"].engine
        == {"lightgbm": "trees", "logistic": "linear", "mlp": "blackbox"}[family]
    )
    assert verify(certs, case.model, X).complete


def test_every_end_and_every_flip_is_the_models_own(certs, case_and_protocol, rows):
    """The block against the definition, with the model asked about single raw rows."""
    model, classes = case_and_protocol[0].model, list(certs.classes)
    for cert, (_, x) in list(zip(certs, rows.iterrows(), strict=True))[:5]:
        original = classes.index(cert.predicted)
        for field in ("duration", "age", "purpose"):
            one = cert.intervals[field]
            wanted = {value: None for value in (one.low, one.high) if value is not None}
            flips = [flip for flip in (one.flips_below, one.flips_above, *one.categories) if flip is not None]
            wanted |= {flip.value: flip.predicted for flip in flips}
            for value, label in wanted.items():
                changed = pd.DataFrame([x]).astype(rows.dtypes).assign(**{field: value})
                p = list(model.predict_proba(changed.astype({field: rows[field].dtype}))[0])
                assert (naive_support_margin(p, original) < -1e-6) == (label is not None)
                assert label is None or classes[naive_predicted_class(p, 1e-6)] == label


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1000), family=st.sampled_from(["lightgbm", "logistic"]), data=st.data())
def test_a_row_s_block_depends_on_no_other_row(seed, family, data):
    case, protocol = declared_case(family)
    X = case.X_test[:8]
    order = np.random.default_rng(seed).permutation(8)[: data.draw(st.integers(1, 8))]
    byte_budget = data.draw(st.sampled_from([1 << 16, 1 << 28]))
    whole = fg.audit(case.model, X, protocol, intervals=True, lattice=False).take(order)
    part = fg.audit(
        case.model, X.iloc[order], protocol, intervals=True, byte_budget=byte_budget, lattice=False, engine="auto"
    )
    assert part.table.column("intervals_digest") == whole.table.column("intervals_digest")
    assert part.manifest.blocks["intervals"].root_digest == whole.manifest.blocks["intervals"].root_digest


@pytest.fixture(scope="module", params=["trees", "linear"])
def decimals(request):
    """A model of decimals of single and double precision, and rows."""
    chance = np.random.default_rng(3)
    X = pd.DataFrame({"single": chance.normal(size=400).astype(np.float32), "double": chance.normal(size=400) * 1e3})
    y = np.where(X["single"] + X["double"] / 1e3 > 0, "b", "a")
    trees = request.param == "trees"
    model = lightgbm.LGBMClassifier(n_estimators=20, verbose=-1) if trees else LogisticRegression(max_iter=500)
    return model.fit(X, y), fg.Protocol.fit(model, X, catalogue=6), X[:12]


@pytest.mark.repeats
def test_decimals_of_both_precisions(decimals):
    model, protocol, X = decimals
    certs = fg.audit(model, X, protocol, intervals=True, lattice=False)
    assert certs.manifest.blocks["intervals"].narrow == {"single": "float32"}
    one = next(c.intervals["single"] for c in certs if c.intervals["single"].flips_below is not None)
    assert np.nextafter(np.float32(one.low), np.float32(-np.inf)) == np.float32(one.flips_below.value)
    # the same values in a table of double precision: the block speaks of the declared one
    assert verify(certs, model, X.astype(np.float64)).complete and verify(certs, model, X).complete
    wide = X.astype(np.float64)
    other = fg.audit(model, wide, protocol, intervals=True, lattice=False)
    assert other.manifest.blocks["intervals"].narrow == {} and other.manifest.root_digest == certs.manifest.root_digest
    assert other[0].intervals["single"] != certs[0].intervals["single"] and verify(other, model, wide).complete
    # a value between two of the declared precision has no place on the scale
    declared = certs.manifest.blocks["intervals"]
    wide.iloc[0, 0] += 1e-9
    bound = bind(fg.Model.wrap(model), wide, protocol)
    block = write_intervals(bound, search_intervals(bound, protocol, declared))
    assert block.state[0].tolist() == ["not whole", "exact"] and block.value[0, 0] is None


@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_decimals_of_half_precision(trees, space):
    chance = np.random.default_rng(0)
    X = pd.DataFrame({name: chance.normal(size=400) for name in "abc"}).astype(np.float16)
    y = (X["a"] + X["b"] * X["c"] > 0).astype(int)
    forest = RandomForestClassifier(10, random_state=0)
    model = (forest if trees else make_pipeline(StandardScaler(), LogisticRegression())).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in the raw space the forest is asked as a black box
        certs = fg.audit(model, X[:10], fg.Protocol.fit(model, X, space=space), intervals=True, lattice=False)
    assert certs.manifest.blocks["intervals"].narrow == dict.fromkeys("abc", "float16")
    assert verify(certs, model, X[:10]).complete
    ends = [json.loads(text) for text in certs.intervals.low.ravel() if text is not None]
    assert all(float(np.float16(end)) == end for end in ends)
    declared = replace(certs.manifest.blocks["intervals"], narrow={"a": "float64"})
    with_it = Certificates(certs.table, certs.protocol, declare(certs.manifest, "intervals", declared))
    assert "must say float32 or float16" in check_integrity(with_it)[0].detail


def test_missing_cells_dates_and_unknown_fields_have_their_states():
    chance = np.random.default_rng(1)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(chance.integers(0, 300, 300), unit="D")
    X = pd.DataFrame({"day": days, "z": chance.normal(size=300), "e": np.nan})
    y = (X["z"] + (X["day"].dt.day_of_year > 150) > 0.5).astype(int)
    dates = FunctionTransformer(lambda d: d.astype("int64") / 864e11, feature_names_out="one-to-one")
    encode = make_column_transformer((dates, ["day"]), (SimpleImputer(), ["z"]))
    model = make_pipeline(encode, LogisticRegression(max_iter=500)).fit(X, y)
    protocol = fg.Protocol.fit(model, X, catalogue=6)
    rows = X[:8].copy()
    rows.loc[0, "z"] = np.nan
    certs = fg.audit(model, rows, protocol, intervals=True, lattice=False)
    assert certs[0].intervals["z"].state == "missing" and certs[0].intervals["z"].value is None
    assert certs[0].intervals["e"].state == "unlisted" and certs[0].intervals["e"].value is None
    one = next(c.intervals["day"] for c in certs if c.intervals["day"].flips)
    assert one.exact and isinstance(one.low, str) and 0.0 < one.room < 1.0
    assert verify(certs, model, rows).complete
    assert certs.intervals.value[:, 0].tolist() == [json.dumps(str(day.date())) for day in rows["day"]]


def test_a_field_without_a_catalogue_is_unlisted_where_its_cells_are_missing_too():
    """An honest audit failed verify: its claims were said to contradict each other."""
    chance = np.random.default_rng(2)
    X = pd.DataFrame({"a": chance.normal(size=300), "unused": chance.choice(np.array(["u", "v", None], object), 300)})
    encode = make_column_transformer(("passthrough", ["a"]))
    model = make_pipeline(encode, LogisticRegression()).fit(X, np.where(X["a"] > 0, "p", "q"))
    certs = fg.audit(model, X[:9], fg.Protocol.fit(model, X), intervals=True, lattice=False)
    assert X["unused"][:9].isna().any() and not X["unused"][:9].isna().all()
    assert {cert.intervals["unused"].state for cert in certs} == {"unlisted"}
    assert verify(certs, model, X[:9]).complete
    row = int(np.flatnonzero(X["unused"].isna())[0])
    check = check_integrity(at(certs, state=(row, "unused", "missing")))
    assert any("interval_state" in str(one) for one in check)


def test_some_confident_rows_are_the_most_exposed_ones(certs, some, case_and_protocol, rows):
    confident = sorted((-c.exposure, c.id) for c in certs if c.confidence >= 0.9)
    assert len(confident) > 6 and some.ids_of_block("intervals") == [own for _, own in confident[:6]]
    for own in some.ids_of_block("intervals"):
        assert some.by_id(own).block_digests.get("intervals") == certs.by_id(own).block_digests.get("intervals")
    assert sum(cert.intervals is not None for cert in some) == 6 == len(some.intervals)
    assert verify(some, case_and_protocol[0].model, rows).complete


def test_a_block_of_which_no_row_was_recomputed_is_not_proved(some, case_and_protocol, rows):
    own = set(some.ids_of_block("intervals"))
    model, seeds = case_and_protocol[0].model, range(100)
    seed = next(seed for seed in seeds if some[int(np.argmax(_choose_rows(len(some), 1, seed)))].id not in own)
    result = verify(some, model, rows, sample=1, seed=seed)
    check = result.checks[-1]
    assert result and check.empty and check.detail == "none of the rows recomputed has the intervals block"
    assert not any(text.startswith("intervals") for text in result.proved)
    assert "no row of the intervals block was among them" in result.not_proved
    assert "no row of the intervals block was among them" in result.verdict
    assert "nothing intervals      none of the rows" in str(result) and "proved: the lines marked ok" in str(result)


def test_the_block_changes_nothing_else(certs, case_and_protocol, rows):
    case, protocol = case_and_protocol
    plain = fg.audit(case.model, rows, protocol, lattice=False)
    assert plain.intervals is None and plain.ids_of_block("intervals") == [] and plain[0].interval_sentences() == []
    assert certs.table.select(plain.table.column_names) == plain.table
    assert certs.manifest.root_digest == plain.manifest.root_digest
    both = fg.audit(case.model, rows, protocol, lattice=False, modes=["lost"], intervals=["age"])
    assert both.table.column_names[-1] == "intervals_digest" and "modes_digest" in both.table.column_names
    own = rows.index[3]
    assert fg.prove(certs, own) == fg.prove(plain, own)


@pytest.mark.parametrize(
    ("wanted", "error", "told"),
    [
        (["shoe_size"], ProtocolError, "got 'shoe_size'"),
        ([], DataError, "at least one field, got none"),
        (0, DataError, "at least 1 where it says how many confident rows"),
    ],
)
def test_intervals_that_cannot_be_found_are_refused(wanted, error, told):
    case, protocol = declared_case("logistic")
    with pytest.raises(error, match=told):
        fg.audit(case.model, case.X_test[:3], protocol, intervals=wanted)


# --- reading ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def case_and_protocol():
    return declared_case("lightgbm")


@pytest.fixture(scope="module")
def rows(case_and_protocol):
    return case_and_protocol[0].X_test[:30]


@pytest.fixture(scope="module")
def certs(case_and_protocol, rows) -> Certificates:
    case, protocol = case_and_protocol
    return fg.audit(case.model, rows, protocol, intervals=True, lattice=False)


@pytest.fixture(scope="module")
def some(case_and_protocol, rows) -> Certificates:
    case, protocol = case_and_protocol
    return fg.audit(case.model, rows, protocol, intervals=6, lattice=False)


def test_a_story_names_the_fields_with_the_least_room(certs):
    cert = max(certs, key=lambda c: sum(one.flips for one in c.intervals.values()))
    flipping = sorted((one for one in cert.intervals.values() if one.flips), key=lambda one: one.room)
    assert len(flipping) > 1 and all(0.0 <= one.room < 1.0 for one in flipping)
    told = cert.interval_sentences(1)
    more, calm = len(flipping) - 1, sum(one.exact and not one.flips for one in cert.intervals.values())
    assert told[0] == flipping[0].sentence() and told[0] in cert.story()
    assert told[1].startswith(
        f"{more} more field{'s' * (more > 1)} can flip it alone; {calm} fields cannot flip it alone within their "
        "training range or listed categories"
    )
    unknown = len(cert.intervals) - len(flipping) - calm
    assert told[1].endswith(f"; {unknown} fields have no stable interval" if unknown > 1 else "categories")
    low, high = certs.intervals.low, certs.intervals.high
    assert {type(text) for text in (*low.ravel(), *high.ravel())} == {str, type(None)}


def test_a_missing_field_is_not_said_to_leave_the_decision_as_it_is():
    kinds = [
        StabilityInterval(name, 1.0, state)
        for name, state in zip("abcd", (EXACT, EXACT, BRACKETED, MISSING), strict=True)
    ]
    assert describe_intervals(kinds) == [
        "2 fields cannot flip it alone within their training range or listed categories; "
        "1 field did not flip it alone at any value that was tried; 1 field has no stable interval"
    ]


# --- forgers ------------------------------------------------------------------------------------------------


def forged(certs: Certificates, **changes: Any) -> Certificates:
    """The certificates with other texts in the block, and every digest made anew."""
    return put_block(certs, replace(certs.intervals, **changes), certs.manifest.blocks["intervals"])


def at(certs: Certificates, **texts: tuple[int, str, str | None]) -> Certificates:
    """The certificates with other texts: by column (row, field, text)."""
    changes = {}
    for column, (row, field, text) in texts.items():
        changes[column] = getattr(certs.intervals, column).copy()
        changes[column][row, certs.intervals.fields.index(field)] = text
    return forged(certs, **changes)


def find(certs: Certificates, column: str) -> tuple[int, str]:
    """The first row and field of whole numbers that has a text in a column."""
    row, place = np.argwhere(getattr(certs.intervals, column) != None)[0]  # noqa: E711
    return int(row), certs.intervals.fields[place]


def narrowed(certs: Certificates) -> Certificates:
    row, field = find(certs, "below")
    one = certs[row].intervals[field]
    flip = json.dumps([one.low, one.flips_below.predicted], separators=(",", ":"))
    return at(certs, low=(row, field, str(one.low + 1)), below=(row, field, flip))


def widened(certs: Certificates) -> Certificates:
    row, field = find(certs, "below")
    low = min(own.low for own in certs.protocol.modes.ranges if own.field == field)
    return at(certs, low=(row, field, str(int(low))), below=(row, field, None))


def skipped(certs: Certificates) -> Certificates:
    """The first flip is left out, and another value beyond it named."""
    row, field = find(certs, "below")
    one = certs[row].intervals[field]
    flip = json.dumps([one.low - 2, one.flips_below.predicted], separators=(",", ":"))
    return at(certs, low=(row, field, str(one.low - 1)), below=(row, field, flip))


def fewer_categories(certs: Certificates) -> Certificates:
    row, field = next((row, f) for row, c in enumerate(certs) for f, one in c.intervals.items() if one.categories)
    return at(certs, categories=(row, field, "[]"))


def another_value(certs: Certificates) -> Certificates:
    row, field = find(certs, "below")
    return at(certs, value=(row, field, certs.intervals.high[row, certs.intervals.fields.index(field)]))


def fields_exchanged(certs: Certificates) -> Certificates:
    a, b = (certs.intervals.fields.index(name) for name in ("installment_commitment", "residence_since"))
    order = np.arange(len(certs.intervals.fields))
    order[[a, b]] = b, a
    return forged(certs, **{name: texts[:, order] for name, texts in certs.intervals.texts().items()})


RECOMPUTED: dict[str, Callable[[Certificates], Certificates]] = {
    "a narrower interval": narrowed,
    "a wider interval": widened,
    "a flip left out": skipped,
    "a category left out": fewer_categories,
    "another value": another_value,
    "fields exchanged": fields_exchanged,
    "a vaguer state": lambda c: at(c, state=(*find(c, "low"), "bracketed")),
}


@pytest.mark.parametrize("name", RECOMPUTED)
def test_a_forged_block_with_digests_of_its_own_is_recomputed(name, certs, case_and_protocol, rows):
    made = RECOMPUTED[name](certs)
    assert all(check.passed for check in check_integrity(made)), check_integrity(made)
    result = verify(made, case_and_protocol[0].model, rows)
    assert failed(result) == ["intervals"], str(result)


def test_a_class_that_is_not_predicted_at_the_flip_is_noticed():
    case, protocol = declared_case("lightgbm", dataset="credit_g_property")
    X = case.X_test[:6]
    certs = fg.audit(case.model, X, protocol, intervals=["age", "credit_amount"], lattice=False)
    row, field = find(certs, "above")
    value, label = json.loads(certs.intervals.above[row, certs.intervals.fields.index(field)])
    other = next(each for each in certs.classes if each not in (label, certs[row].predicted))
    made = at(certs, above=(row, field, json.dumps([value, other], separators=(",", ":"))))
    assert failed(verify(made, case.model, X)) == ["intervals"]


CONTRADICTED: dict[str, tuple[Callable[[Certificates], Certificates], str]] = {
    "an end beyond the value": (lambda c: at(c, low=(*find(c, "low"), "99999")), "interval_low of row"),
    "a flip inside": (
        lambda c: at(c, below=(0, "age", f'[{c[0].intervals["age"].high},"bad"]')), "interval_below of row",
    ),
    "a flip to the predicted class": (
        lambda c: at(c, below=(0, "age", json.dumps([18, c[0].predicted], separators=(",", ":")))),
        "interval_below of row",
    ),
    "no end": (lambda c: at(c, low=(0, "age", None)), "interval_low of row"),
    "a fraction of a whole number": (lambda c: at(c, low=(0, "age", "20.5")), "interval_low of row"),
    "a text for a number": (lambda c: at(c, value=(0, "age", '"2024-01-01"')), "interval_value of row"),
    "ends of a category": (lambda c: at(c, low=(0, "purpose", "1")), "interval_low of row"),
    "an unlisted field that is listed": (lambda c: at(c, state=(0, "purpose", "unlisted")), "interval_state of row"),
    "a missing cell with an interval": (lambda c: at(c, state=(0, "age", "missing")), "interval_value of row"),
    "a category in brackets": (lambda c: at(c, state=(0, "purpose", "bracketed")), "interval_state of row"),
    "an unknown category": (
        lambda c: at(c, categories=(0, "purpose", '[["yacht","bad"]]')), "interval_categories of row",
    ),
    "no value of a category": (lambda c: at(c, value=(0, "purpose", None)), "interval_value of row"),
    "a category that flips to the predicted class": (
        lambda c: at(c, categories=(0, "purpose", json.dumps([["furniture/equipment", c[0].predicted]]).replace(
            ", ", ","))), "interval_categories of row",
    ),
    "JSON with a space": (lambda c: at(c, low=(0, "age", " 20")), "must hold the JSON text of a value, got ' 20'"),
    "no JSON": (lambda c: at(c, below=(0, "age", "[18")), "must hold the JSON text of a list of a value and a class"),
    "a list for a value": (lambda c: at(c, low=(0, "age", "[18]")), "must hold the JSON text of a value"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTED)
def test_a_block_that_contradicts_itself_is_refused(name, certs):
    change, told = CONTRADICTED[name]
    first = check_integrity(change(certs))[0]
    assert not first.passed and told in first.detail, first.detail


def test_a_word_that_is_no_state_is_refused(certs):
    place = certs.table.column_names.index("interval_state")
    words = [["sure", *row[1:]] for row in certs.table.column("interval_state").to_pylist()]
    column = pa.array(words, certs.table.field(place).type)
    made = Certificates(certs.table.set_column(place, "interval_state", column), certs.protocol, certs.manifest)
    assert "must hold one of exact, bracketed" in check_integrity(made)[0].detail


def test_lists_of_another_length_are_refused(certs):
    place = certs.table.column_names.index("interval_low")
    short = pa.array([row[1:] for row in certs.table.column("interval_low").to_pylist()], certs.table.field(place).type)
    made = Certificates(certs.table.set_column(place, "interval_low", short), certs.protocol, certs.manifest)
    assert "must hold 20 texts per row" in check_integrity(made)[0].detail
    with pytest.raises(CertificateError, match="one text for each field of the manifest"):
        made.certificate(0)
    broken = pa.array([["?"] * 20] * len(certs), certs.table.field(place).type)
    made = Certificates(certs.table.set_column(place, "interval_low", broken), certs.protocol, certs.manifest)
    with pytest.raises(CertificateError, match="the stability interval of 'checking_status' is malformed"):
        made.certificate(0)


def test_changed_texts_with_their_old_digests_are_noticed(certs):
    changed = narrowed(certs).table
    place = changed.column_names.index("intervals_digest")
    kept = changed.set_column(place, "intervals_digest", certs.table.column("intervals_digest"))
    checks = check_integrity(Certificates(kept, certs.protocol, certs.manifest))
    assert [check.name for check in checks if not check.passed] == ["digests"]
    other = change_root(certs.manifest, "intervals", certs.manifest.root_digest)
    checks = check_integrity(Certificates(certs.table, certs.protocol, other))
    assert [difference.field for difference in checks[1].differences] == ["blocks.intervals.root_digest"]


DECLARATIONS: dict[str, tuple[Callable[[IntervalsDeclaration], IntervalsDeclaration], str]] = {
    "another order": (lambda d: replace(d, fields=d.fields[::-1]), "intervals.fields in the manifest must name fields"),
    "no field": (lambda d: replace(d, fields=[]), "intervals.fields in the manifest must name fields"),
    "an unknown field": (lambda d: replace(d, fields=[*d.fields, "x"]), "intervals.fields in the manifest"),
    "narrow decimals of a whole number": (
        lambda d: replace(d, narrow={"age": "float32"}),
        "must name decimal fields",
    ),
    "fields that are no list": (lambda d: replace(d, fields="age"), "intervals.fields in the manifest must be a list"),
    "an impossible count": (
        lambda d: replace(d, rows=ChosenRows(0, "exposure")),
        "rows.most in the manifest must be a whole number from 1, got 0",
    ),
    "an unknown engine": (lambda d: replace(d, engine="oracle"), "'oracle', which does not exist there"),
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_a_declaration_that_is_not_the_protocol_s_is_refused(name, certs):
    change, told = DECLARATIONS[name]
    declared = change(certs.manifest.blocks["intervals"])
    first = check_integrity(Certificates(certs.table, certs.protocol, declare(certs.manifest, "intervals", declared)))[
        0
    ]
    assert not first.passed and told in first.detail


def test_an_engine_that_cannot_have_answered_is_refused(certs, case_and_protocol, rows):
    declared = replace(certs.manifest.blocks["intervals"], engine="linear")
    made = Certificates(certs.table, certs.protocol, declare(certs.manifest, "intervals", declared))
    result = verify(made, case_and_protocol[0].model, rows)
    assert failed(result) == ["intervals"] and "can never have read this model" in str(result)


@pytest.mark.slow
def test_an_engine_is_not_believed_where_it_is_not_available(monkeypatch, certs, case_and_protocol, rows):
    """Fields of few whole values are settled by the model; any other is counted as not searched again."""
    case, protocol = case_and_protocol
    monkeypatch.setattr(recheck, "refusal", lambda engine, rows: "numba is not here")
    few = fg.audit(case.model, rows, protocol, intervals=["duration", "age", "purpose"], lattice=False)
    assert verify(few, case.model, rows).complete
    for made in (narrowed(few), widened(few)):
        assert failed(verify(made, case.model, rows)) == ["intervals"]
    result = verify(certs, case.model, rows)  # credit_amount has thousands of values
    assert result and not result.complete and result.unsearched.get("intervals", 0) == len(certs)
    assert f"the intervals block of {len(certs)} rows was not searched again" in str(result)
    assert "numba is not here" in str(result)


def test_rounding_at_an_end_is_no_forgery(decimals, monkeypatch):
    """A linear model summed in another order may end some steps away, where the margin is at its limit."""
    model, protocol, X = decimals
    certs = fg.audit(model, X, protocol, intervals=["double"], lattice=False)
    row = next(i for i, c in enumerate(certs) if c.intervals["double"].flips_below is not None)
    one = certs[row].intervals["double"]
    low = np.nextafter(one.low, np.inf)
    flip = json.dumps([one.low, one.flips_below.predicted], separators=(",", ":"))
    moved = at(certs, low=(row, "double", json.dumps(low)), below=(row, "double", flip))
    linear = isinstance(model, LogisticRegression)
    assert bool(verify(moved, model, X)) is linear  # between two pieces of trees nothing is at its limit
    apart = at(certs, low=(row, "double", json.dumps(np.nextafter(low, np.inf))), below=(row, "double", flip))
    assert failed(verify(apart, model, X)) == ["intervals"]  # not the last value before the flip
