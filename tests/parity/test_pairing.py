"""Whose column is whose, and which class is which."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import fragility as fg
from fragility.parity.pairing import given_names


@pytest.fixture(scope="module")
def rows():
    values = np.random.default_rng(0).normal(size=(80, 3))
    return pd.DataFrame(values, columns=["income", "debt ratio", "age"])


@pytest.fixture(scope="module")
def labels(rows):
    return np.where(rows["income"] > 0.2 * rows["age"], "good", "bad")


@pytest.fixture(scope="module")
def named(rows, labels):
    return LogisticRegression().fit(rows, labels)


def test_columns_are_matched_by_name_whatever_their_order(rows, labels, named):
    turned = LogisticRegression(tol=1e-10).fit(rows[["age", "debt ratio", "income"]], labels)
    exact = LogisticRegression(tol=1e-10).fit(rows, labels)
    found = fg.check_parity(exact, turned, rows[:10])
    assert found and found.b.columns == "name"
    renamed = LogisticRegression(tol=1e-10).fit(rows.set_axis(["income", "debt_ratio", "age"], axis=1), labels)
    assert fg.check_parity(exact, renamed, rows[:10])


def test_columns_without_names_are_matched_by_order(rows, labels, named):
    bare = LogisticRegression().fit(rows.to_numpy(), labels)
    for one, other in ((named, bare), (bare, named)):
        found = fg.check_parity(one, other, rows[:10])
        assert found and {found.a.columns, found.b.columns} == {"name", "order"}
    assert fg.check_parity(bare, named, rows.to_numpy()[:10])
    polars = pytest.importorskip("polars")
    table = polars.from_pandas(rows[:10])
    assert fg.check_parity(
        bare, fg.Model.wrap(lambda t: bare.predict_proba(t.to_numpy()), classes=["bad", "good"]), table
    )


def test_a_booster_of_a_bare_array_takes_the_named_columns_in_order(rows, labels, tmp_path):
    lightgbm = pytest.importorskip("lightgbm")
    settings = {"n_estimators": 5, "verbose": -1, "min_child_samples": 5}
    trained = lightgbm.LGBMClassifier(**settings).fit(rows, labels)
    bare = lightgbm.LGBMClassifier(**settings).fit(rows.to_numpy(), labels)
    bare.booster_.save_model(tmp_path / "booster.txt")
    found = fg.check_parity(trained, fg.load_model(tmp_path / "booster.txt"), rows[:20])
    assert found and found.b.classes == ("0", "1")


def test_names_that_were_counted_are_no_names():
    assert given_names(["f0", "f1", "f2"]) is None and given_names(["Column_0", "Column_1"]) is None
    assert given_names(["1", "2", "3"]) is None and given_names(None) is None
    assert given_names(["f0", "f2"]) == ("f0", "f2") and given_names(["a1", "b2"]) == ("a1", "b2")
    assert given_names(["age", "f1"]) == ("age", "f1")


@pytest.mark.parametrize("prefix", ["f", "x", "Column_", ""])
def test_counted_names_are_matched_by_name_where_both_know_them(prefix):
    table, label = fg.load_credit_g()
    table = table.select_dtypes("number")[:400]
    table = table.set_axis([f"{prefix}{i}" for i in range(table.shape[1])], axis=1)
    turned = table[table.columns[::-1]]
    straight, reversed_ = (LogisticRegression(max_iter=2000, C=1e-3).fit(part, label[:400]) for part in (table, turned))
    inner = LogisticRegression(max_iter=2000, C=1e-3).fit(table, label[:400])
    reversed_.coef_, reversed_.intercept_ = inner.coef_[:, ::-1].copy(), inner.intercept_.copy()  # the same function
    for rows in (table[:30], turned[:30], table[:30].to_numpy()):
        found = fg.check_parity(straight, reversed_, rows)
        assert found and (found.a.columns, found.b.columns) == ("name", "name")
    bare = LogisticRegression(max_iter=2000, C=1e-3).fit(table.to_numpy(), label[:400])
    shuffled = table[:30].sample(frac=1, axis=1, random_state=0)  # a file in another order
    assert fg.check_parity(straight, bare, shuffled) and fg.check_parity(bare, straight, shuffled)


def test_counted_names_that_the_rows_lack_are_matched_by_order(rows, labels, named):
    counted = LogisticRegression().fit(rows.set_axis(["f0", "f1", "f2"], axis=1), labels)
    found = fg.check_parity(counted, named, rows[["age", "income", "debt ratio"]][:20])
    assert found and (found.a.columns, found.b.columns) == ("order", "name")


def test_classes_are_matched_by_label_or_by_order(rows, named):
    turned = fg.Model.wrap(lambda table: named.predict_proba(table)[:, ::-1], classes=["good", "bad"])
    found = fg.check_parity(named, turned, rows[:10])
    assert found and found.b.classes == ("bad", "good")
    assert not [note for note in found.notes if note.startswith("classes")]
    numbered = fg.Model.wrap(lambda table: named.predict_proba(table)[:, ::-1], classes=[1, 0])
    assert not fg.check_parity(named, numbered, rows[:10])  # its first class is taken for 'bad'


def test_models_that_do_not_match_are_refused(rows, labels, named):
    three = fg.Model.wrap(lambda table: np.full((len(table), 3), 1 / 3), classes=[0, 1, 2])
    mixed = fg.Model.wrap(named.predict_proba, classes=["good", "poor"])
    fewer = LogisticRegression().fit(rows[["income", "age"]].to_numpy(), labels)
    other = LogisticRegression().fit(rows.rename(columns={"age": "years"}), labels)
    for model, message in (
        (three, "model_a has 2 classes ('bad', 'good'), model_b has 3 ('0', '1', '2'); give two artefacts of one"),
        (mixed, "model_a has the classes 'bad', 'good', model_b has 'good', 'poor': some are the same and some are"),
        (fewer, "model_b takes 2 columns, and the rows have 3; give it the same columns"),
        (other, "model_b has the columns 'income', 'debt ratio', 'years', the rows 'income', 'debt ratio', 'age': they "
                "differ in 'years'; give two models of the same columns"),
    ):  # fmt: skip
        with pytest.raises(fg.FragilityError, match=re.escape(message)):
            fg.check_parity(named, model, rows[:10])
    protocol = fg.Protocol.fit(other, rows.rename(columns={"age": "years"}))
    with pytest.raises(fg.ProtocolError, match=r"the protocol and the rows differ in the column '(age|years)'; fit"):
        fg.check_parity(named, fg.Model.wrap(named.predict_proba, classes=["bad", "good"]), rows, protocol)
