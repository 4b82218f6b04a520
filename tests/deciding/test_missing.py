"""evaluate_missing: fields are really hidden, changes are counted as a reader would, figures are their twins'."""

import json

import numpy as np
import pandas as pd
import pipelines
import pytest
import scipy.sparse as sp
from naive import naive_auroc
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg
from fragility.deciding.evaluation import calibrate_pairs, summarise_pairs
from fragility.deciding.missing import choose_sets


@pytest.fixture(scope="module")
def case():
    return pipelines.fitted("credit_g", "lightgbm", "transformed")


@pytest.fixture(scope="module")
def protocol(case):
    return fg.Protocol.fit(case.model, case.X_train, catalogue=8)


@pytest.fixture(scope="module")
def found(case, protocol):
    return fg.evaluate_missing(case.model, case.X_test[:50], protocol, together=2, most_sets=3)


def test_hidden_fields_are_hidden_and_changes_are_real(case, protocol, found):
    pairs = found.pairs()
    assert len(pairs) == 50 * (20 + 3) and found.skipped == {}
    guard = fg.Guard(case.model, protocol)
    full = dict(zip(case.X_test.index[:50], case.model.predict(case.X_test[:50]), strict=True))
    for hidden in ("duration", found.lines[-1].hidden):
        names = hidden.split(" + ")
        checks = guard.check_rows(case.X_test[:50], [names] * 50)
        own = pairs[pairs["hidden"] == hidden]
        assert own["id"].tolist() == [check.id for check in checks]
        assert own["p_change"].tolist() == [check.p_change for check in checks]
        assert own["confidence"].tolist() == pytest.approx([check.confidence for check in checks], abs=1e-12)
        assert own["changed"].tolist() == [check.decision != full[check.id] for check in checks]


def naive_within(pairs, score):
    """The mean of the AUROCs of each hidden set, weighted by how many of its decisions changed."""
    total = weight = 0.0
    for _, own in pairs.assign(score=score).groupby("hidden"):
        changed = own["changed"].tolist()
        if 0 < sum(changed) < len(changed):
            total += sum(changed) * naive_auroc(changed, own["score"].tolist())
            weight += sum(changed)
    return total / weight


def test_the_headline_does_not_rank_fields(tmp_path):
    """One field decides nearly alone, so that nearly all changes are its own: p_change cannot tell which rows."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(600, 3)), columns=["income", "age", "debt"])
    X["twin"] = X["income"] + 0.3 * rng.normal(size=600)  # says what the income is, which the model hardly uses
    y = X["income"] > 0
    model = make_pipeline(SimpleImputer(), LogisticRegression(C=1e4)).fit(X[:400], y[:400])
    protocol = fg.Protocol.fit(model, X[:400], space="raw", catalogue=12)
    found = fg.evaluate_missing(model, X[400:], protocol)
    (line,) = found.by_size
    assert line.auroc_within < line.auroc  # the second ranks the fields, too
    text = str(found)
    assert text.index("Within a field, p_change ranks the decisions that changed with AUROC") < text.index(
        "Over all pairs"
    )
    told = "that of the one field with changes. Over all pairs of a row and a field, which also ranks the fields"
    assert f"{told}: {line.auroc:.3f}, " in text
    assert "nearest training rows may rank better" in text and found.catalogue == ()
    near = fg.evaluate_missing(model, X[400:], protocol, training=X[:400], conditional=True)
    assert near.catalogue == found.by_size and near.by_size[0].brier < line.brier
    assert "Use conditional for this model." in str(near) and near.to_dict()["catalogue"][0]["brier"] == line.brier


def test_the_figures_are_those_of_their_twins(found):
    pairs = found.pairs()
    lines = {line.hidden: line for line in found.lines}
    for hidden, own in pairs.groupby("hidden"):
        line, changed = lines[hidden], own["changed"].tolist()
        assert (line.pairs, line.changed, line.rows) == (50, sum(changed), 50)
        assert line.observed == pytest.approx(sum(changed) / 50)
        assert line.expected == pytest.approx(own["p_change"].mean())
        assert line.difference == pytest.approx(line.expected - line.observed)
        assert line.brier == pytest.approx(
            np.mean([(p - c) ** 2 for p, c in zip(own["p_change"], changed, strict=True)])
        )
        assert line.auroc_within == pytest.approx(line.auroc, nan_ok=True)
        if 0 < sum(changed) < 50:
            assert line.auroc == pytest.approx(naive_auroc(changed, own["p_change"].tolist()))
            assert line.auroc_confidence == pytest.approx(naive_auroc(changed, (1 - own["confidence"]).tolist()))
            assert line.auroc_low <= line.auroc <= line.auroc_high
        else:
            assert np.isnan(line.auroc)
    one, two = found.by_size
    assert (one.hidden, two.hidden, one.fields, two.fields) == ("each field", "2 fields", 1, 2)
    single = pairs[~pairs["hidden"].str.contains("+", regex=False)]
    assert one.pairs == len(single) and one.observed == pytest.approx(single["changed"].mean())
    assert one.expected_low <= one.expected <= one.expected_high
    assert one.auroc_within == pytest.approx(naive_within(single, single["p_change"]))
    assert one.auroc_within_confidence == pytest.approx(naive_within(single, 1 - single["confidence"]))
    assert one.auroc_within_low <= one.auroc_within <= one.auroc_within_high
    assert one.sets_ranked == sum(0 < line.changed < 50 for line in found.lines if line.fields == 1)
    assert found.brier == pytest.approx(((pairs["p_change"] - pairs["changed"]) ** 2).mean())


def test_the_calibration_curve_counts_every_pair():
    p = np.array([0.0, 0.0, 0.05, 0.1, 0.1000001, 0.95, 1.0])
    changed = np.array([False, True, False, True, False, True, True])
    curve = calibrate_pairs(p, changed)
    assert [(part.low, part.high, part.pairs) for part in curve] == [
        (0, 0, 2),
        (0, 0.1, 2),
        (0.1, 0.2, 1),
        (0.9, 1.0, 2),
    ]
    assert [part.observed for part in curve] == [0.5, 0.5, 0.0, 1.0]
    assert all(part.observed_low <= part.observed <= part.observed_high for part in curve)


def test_pairs_of_a_row_are_resampled_together():
    """Ten copies of each pair say nothing new, so they narrow no interval."""
    generator = np.random.default_rng(1)
    rows, p = np.arange(60), generator.random(60)
    confidence, changed = generator.random(60), generator.random(60) < p
    once = summarise_pairs("x", 1, rows, p, confidence, changed)
    ten = summarise_pairs("x", 1, *(np.tile(a, 10) for a in (rows, p, confidence, changed)))
    for name in ("auroc_low", "auroc_high", "expected_low", "expected_high", "auroc_gain_low", "auroc"):
        assert getattr(ten, name) == pytest.approx(getattr(once, name))


def test_sets_are_chosen_by_their_names_alone():
    fields = [f"f{i}" for i in range(9)]
    chosen = choose_sets(fields, 3, 5)
    assert chosen[:9] == [(name,) for name in fields] and [len(s) for s in chosen[9:]] == [2] * 5 + [3] * 5
    assert len(set(chosen)) == len(chosen) and choose_sets(fields, 3, 5) == chosen
    assert choose_sets(["a", "b"], 3, 5) == [("a",), ("b",), ("a", "b")]


def test_recorded_sets_and_conditional_values(case, protocol):
    events = fg.Outages.from_events([{"duration", "age"}, {"checking_status"}])
    found = fg.evaluate_missing(case.model, case.X_test[:20], protocol, sets=events)
    assert {line.hidden for line in found.lines} == {"duration + age", "checking_status"}
    near = fg.evaluate_missing(
        case.model, case.X_test[:20], protocol, sets=[["age", "duration"]], training=case.X_train, conditional=True
    )
    guard = fg.Guard(case.model, protocol, training=case.X_train, conditional=True)
    checks = guard.check_rows(case.X_test[:20], [["age", "duration"]] * 20)
    assert near.conditional and near.p_change.tolist() == [check.p_change for check in checks]


@pytest.mark.parametrize("hide", ["top", "bottom", "random"])
def test_a_fifth_of_the_rows_can_lose_a_field_by_its_values(case, protocol, found, hide, tmp_path):
    rows = case.X_test[:50]
    some = fg.evaluate_missing(case.model, rows, protocol, hide=hide)
    pairs, every = some.pairs(), found.pairs().set_index(["hidden", "id"])
    for name, own in pairs.groupby("hidden"):
        assert len(own) == 10
        if hide == "top":
            assert rows.loc[own["id"], name].min() >= rows[name].drop(own["id"]).max()
        if hide == "bottom":
            assert rows.loc[own["id"], name].max() <= rows[name].drop(own["id"]).min()
        same = every.loc[[(name, one) for one in own["id"]]]
        assert own["changed"].tolist() == same["changed"].tolist()
        assert own["p_change"].tolist() == same["p_change"].tolist()
    assert ("purpose" in some.skipped) == (hide != "random")
    assert some.hide == hide and some.to_dict()["hide"] == hide and "fifth of the rows" in str(some)
    again = fg.evaluate_missing(case.model, rows, protocol, hide=hide).pairs()
    assert again["id"].tolist() == pairs["id"].tolist()


def test_rows_that_lack_a_field_take_no_part():
    case = pipelines.fitted("credit_g", "hist_gradient_boosting", "raw")
    protocol = fg.Protocol.fit(case.model, case.X_train, space="raw", catalogue=6)
    X = case.X_test[:40]
    gappy = next(name for name in X if X[name].isna().any())
    found = fg.evaluate_missing(case.model, X, protocol, sets=[[gappy], ["purpose"]])
    assert [line.pairs for line in found.lines] == [int(X[gappy].notna().sum()), 40]


def test_fields_that_cannot_be_hidden_are_named(case):
    """A pipeline that refuses missing categories, under a baseline that is no category."""
    X, y = case.X_train[["duration", "purpose"]], np.arange(len(case.X_train)) % 3 == 0
    encode = make_column_transformer((OneHotEncoder(), ["purpose"]), (StandardScaler(), ["duration"]))
    model = make_pipeline(encode, LogisticRegression()).fit(X, y)
    found = fg.evaluate_missing(model, case.X_test[list(X)][:5], fg.Protocol.paper(model, X))
    assert list(found.skipped) == ["purpose"]
    assert found.skipped["purpose"].startswith("the model has no answer without it, and no raw value stands for its")
    assert "not hidden: purpose (the model has no answer without it" in str(found)


def test_hidden_fields_are_answered_by_the_imputer():
    """The decision without a field is the one that the deployed pipeline would make."""
    X, y = fg.load_credit_g()
    X = X[["duration", "age", "credit_amount"]].astype(float)
    model = make_pipeline(SimpleImputer(strategy="constant", fill_value=70), StandardScaler(), LogisticRegression())
    model.fit(X[:600], y[:600])
    pairs = fg.evaluate_missing(model, X[700:760], fg.Protocol.fit(model, X[:600], catalogue=6)).pairs()
    full = model.predict(X[700:760])
    for name in X:
        own = pairs[pairs["hidden"] == name]
        hidden = X[700:760].assign(**{name: np.nan})
        assert own["changed"].tolist() == (model.predict(hidden) != full).tolist()
        assert own["confidence"].tolist() == pytest.approx(model.predict_proba(hidden).max(axis=1).tolist())


def test_files_text_and_picture(found, tmp_path):
    found.save(tmp_path / "w.json")
    found.save(tmp_path / "w.csv")
    assert json.loads((tmp_path / "w.json").read_text())["pairs"] == len(found)
    assert pd.read_csv(tmp_path / "w.csv")["hidden"].tolist() == [line.hidden for line in found.lines]
    text = str(found)
    assert text.startswith("Without each field: ") and "p_change ranks the decisions that changed with AUROC" in text
    display = found.plot()
    assert len(display.ax_) == 2 and display.ax_[0].get_xlabel() == "p_change (mean of the bin)"


def test_mistakes_are_said_in_a_sentence(case, protocol):
    for wrong, sentence in (
        ({"hide": "left"}, "hide must be one of all, top, bottom, random, got 'left'"),
        ({"hide": "top", "together": 2}, "the top values of one field at a time are hidden"),
        ({"hide": "bottom", "sets": [["duration", "age"]]}, "the bottom values of one field at a time are hidden"),
    ):
        with pytest.raises(fg.DataError, match=sentence):
            fg.evaluate_missing(case.model, case.X_test[:5], protocol, **wrong)
    X = case.X_test[:5]
    for settings, message in [
        ({"sets": []}, "at least one set of fields to hide is needed, got none"),
        ({"sets": [[]]}, "a set of fields to hide must name at least one field, got an empty one"),
        ({"sets": [["income"]]}, "a set of fields names 'income', which the model does not know"),
        ({"together": 6}, "together must be a whole number from 1 to 5, got 6"),
        ({"together": 2, "most_sets": 0}, "most_sets must be a whole number of at least 1, got 0"),
        ({"draws": 17}, "draws must be a power of two"),
        ({"conditional": True}, "conditional=True takes values from training rows"),
    ]:
        with pytest.raises(fg.DataError, match=message):
            fg.evaluate_missing(case.model, X, protocol, **settings)
    without_values = fg.Protocol.fit(case.model, case.X_train, modes=["lost"])
    with pytest.raises(fg.DataError, match="there is nothing to hide"):
        fg.evaluate_missing(case.model, X, without_values)
    with pytest.raises(fg.FragilityError, match=r"sparse matrix|columns"):
        fg.evaluate_missing(case.model, sp.csr_matrix(np.ones((2, X.shape[1]))), protocol)
