"""`choose_rate`: the largest rate that costs little, and the table of what each did; before against after."""

from __future__ import annotations

import numpy as np
import pytest
from pipelines import preprocessing, split
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline

import fragility as fg
from fragility.analysis.hardening.assessment import HardeningEffect, assess_model
from fragility.analysis.hardening.training import find_rounds

DATA = split("credit_g")
FIELDS = ["checking_status", "duration", "credit_history", "purpose", "credit_amount", "age"]  # few: audits are quick
X, Y = DATA.X_train[FIELDS], DATA.y_train.to_numpy(dtype=object)
X_VAL, Y_VAL = DATA.X_test[FIELDS], DATA.y_test.to_numpy(dtype=object)


def pipeline():
    return make_pipeline(preprocessing(X), LogisticRegression(max_iter=300))


def auroc(model):
    return roc_auc_score(Y_VAL == "good", model.predict_proba(X_VAL)[:, 1])


def test_the_largest_rate_within_the_tolerance():
    rates = (0.1, 0.3, 0.9)
    losses = {r: auroc(pipeline().fit(X, Y)) - auroc(fg.harden(pipeline(), X, Y, rate=r)) for r in rates}
    tolerance = max(0.0, sorted(losses.values())[1])
    expected = max(rate for rate in rates if losses[rate] <= tolerance)
    choice = fg.choose_rate(pipeline(), X, Y, X_VAL, Y_VAL, rates=rates, tolerance=tolerance)
    assert choice.rate == expected
    assert auroc(choice.model) == auroc(fg.harden(pipeline(), X, Y, rate=expected))
    table = choice.to_pandas()
    assert table["rate"].tolist() == [0.0, *rates] and table["loss"][0] == 0.0
    assert table["loss"].tolist()[1:] == pytest.approx([losses[rate] for rate in rates])
    assert f"{expected:g} *" in repr(choice) and "largest rate that loses at most" in repr(choice)


def test_a_metric_that_falls_with_the_rate_stops_it():
    def twins_unlike_rows(model, X, y):  # how far training was from the plain model: more with every rate
        return -float(np.abs(model[-1].coef_ - reference).sum())

    reference = pipeline().fit(X, Y)[-1].coef_
    distance = {r: np.abs(fg.harden(pipeline(), X, Y, rate=r)[-1].coef_ - reference).sum() for r in (0.05, 0.9)}
    assert distance[0.05] < distance[0.9]
    between = sum(distance.values()) / 2
    choice = fg.choose_rate(
        pipeline(), X, Y, X_VAL, Y_VAL, rates=(0.9, 0.05), tolerance=between, metric=twins_unlike_rows
    )
    assert choice.rate == 0.05 and np.array_equal(
        choice.model[-1].coef_, fg.harden(pipeline(), X, Y, rate=0.05)[-1].coef_
    )


def test_none_within_the_tolerance_leaves_the_plain_model():
    def worse_with_rate(model, X, y):  # the plain model alone has these coefficients
        return float(np.array_equal(model[-1].coef_, pipeline().fit(DATA.X_train[FIELDS], Y)[-1].coef_))

    choice = fg.choose_rate(pipeline(), X, Y, X_VAL, Y_VAL, rates=(0.2,), tolerance=0.0, metric=worse_with_rate)
    assert choice.rate == 0.0 and choice.metric == "worse_with_rate" and "the plain model stays" in repr(choice)
    assert auroc(choice.model) == auroc(pipeline().fit(X, Y))


def test_what_it_measures_is_what_audit_and_stress_say():
    choice = fg.choose_rate(pipeline(), X, Y, X_VAL, Y_VAL, rates=(0.2,), metric="neg_log_loss")
    protocol = fg.Protocol.fit(choice.model, X)
    for model, outcome in (
        (pipeline().fit(X, Y), choice.outcomes[0]),
        (fg.harden(pipeline(), X, Y), choice.outcomes[1]),
    ):
        labels = fg.label_brittle(model, X_VAL, protocol)
        assert outcome.brittle_share == labels.brittle.sum() / labels.high_confidence.sum()
        assert outcome.confident_share == labels.high_confidence.mean()
        assert outcome.exposure == pytest.approx(fg.audit(model, X_VAL, protocol).summary()["mean_exposure"].value)


@pytest.mark.parametrize(
    ("error", "sentence", "wrong"),
    [
        (fg.ProtocolError, r"rates must be numbers above 0 and up to 1", {"rates": ()}),
        (fg.ProtocolError, r"rates must be numbers above 0 and up to 1", {"rates": (0.0, 0.2)}),
        (fg.ProtocolError, r"tolerance must be a number of at least 0", {"tolerance": -1}),
        (fg.DataError, r"metric fails on the validation rows: ValueError: y_true takes", {"metric": "neg_brier_score"}),
        (fg.DataError, r"metric must be the name of a scikit-learn scorer", {"metric": "beauty"}),
    ],
)
def test_wrong_settings(error, sentence, wrong):
    with pytest.raises(error, match=sentence):
        fg.choose_rate(pipeline(), X, Y, X_VAL, Y_VAL, **wrong)


def test_boosted_trees_are_tried_with_fewer_rounds():
    def plain(trees):
        return make_pipeline(preprocessing(X), GradientBoostingClassifier(n_estimators=trees, random_state=0))

    choice = fg.choose_rate(plain(60), X, Y, X_VAL, Y_VAL, rates=(0.1, 0.3), tolerance=1.0)
    table = choice.to_pandas()
    assert list(zip(table["rate"], table["rounds"], strict=True)) == [
        (0.0, 60), (0.0, 24), (0.1, 24), (0.1, 60), (0.3, 24), (0.3, 60)
    ]  # fmt: skip
    of_rate = table[table["rate"] == 0.3]
    assert choice.rate == 0.3 and choice.rounds == of_rate.loc[of_rate["log_loss"].idxmin(), "rounds"]
    for outcome in choice.outcomes[1:]:
        model = fg.harden(plain(outcome.rounds), X, Y, rate=outcome.rate)
        assert outcome.log_loss == pytest.approx(log_loss(Y_VAL, model.predict_proba(X_VAL)))
        assert auroc(fg.harden(plain(60), X, Y, rate=outcome.rate, rounds=outcome.rounds)) == auroc(model)
    said = f"{choice.rounds} rounds instead of 60: log loss"
    assert (said in repr(choice)) == (choice.rounds == 24)


def test_numbers_of_rounds_that_no_model_has_are_refused():
    boosted = GradientBoostingClassifier(n_estimators=5)
    for rounds, model, error, sentence in (
        ((0.4,), boosted, fg.ProtocolError, "rounds must be shares above 0, with 1 among them"),
        ((0.0, 1.0), boosted, fg.ProtocolError, "rounds must be shares above 0, with 1 among them"),
    ):
        with pytest.raises(error, match=sentence):
            fg.choose_rate(model, X, Y, X_VAL, Y_VAL, rounds=rounds)
    for rounds, model, error, sentence in (
        (0, boosted, fg.ProtocolError, "rounds must be a whole number of at least 1, got 0"),
        (5, LogisticRegression(), fg.ModelError, "LogisticRegression has not"),
        (5, GradientBoostingClassifier(n_iter_no_change=3), fg.ModelError, "finds itself by stopping early|stopping"),
    ):
        with pytest.raises(error, match=sentence):
            fg.harden(make_pipeline(preprocessing(X), model), X, Y, rounds=rounds)


@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "catboost", "sklearn"])
def test_the_number_of_rounds_is_read_under_each_librarys_name(library):
    pytest.importorskip(library)
    import catboost
    import lightgbm
    import xgboost
    from sklearn.ensemble import HistGradientBoostingClassifier

    known = {
        "lightgbm": [(lightgbm.LGBMClassifier(n_estimators=7), 7), (lightgbm.LGBMClassifier(boosting_type="rf"), None)],
        "xgboost": [(xgboost.XGBClassifier(), 100), (xgboost.XGBClassifier(early_stopping_rounds=3), None)],
        "catboost": [(catboost.CatBoostClassifier(num_trees=9), 9), (catboost.CatBoostClassifier(), 1000)],
        "sklearn": [
            (HistGradientBoostingClassifier(max_iter=8, early_stopping=False), 8),
            (HistGradientBoostingClassifier(early_stopping=True), None),
            (LogisticRegression(), None),
        ],
    }
    for model, rounds in known[library]:
        found = find_rounds(model, 1000)
        assert (found and found[1]) == rounds


def test_more_classes_are_judged_one_against_the_rest():
    data = split("credit_g_property")
    model = make_pipeline(preprocessing(data.X_train), LogisticRegression(max_iter=300))
    few = data.X_test[:100], data.y_test[:100]
    choice = fg.choose_rate(model, data.X_train, data.y_train, *few, rates=(0.2,), tolerance=1.0)
    assert choice.rate == 0.2 and 0.5 < choice.outcomes[0].metric < 1.0


def test_before_against_after_as_a_table():
    plain = make_pipeline(preprocessing(X), GradientBoostingClassifier(n_estimators=30, random_state=0)).fit(X, Y)
    protocol = fg.Protocol.fit(plain, X)
    models = plain, fg.harden(plain, X, Y)
    effect = HardeningEffect(*(assess_model(model, X_VAL, protocol, Y_VAL) for model in models))
    for model, stands in zip(models, (effect.before, effect.after), strict=True):
        summary = fg.audit(model, X_VAL, protocol).summary(labels=dict(enumerate(Y_VAL)))
        assert (stands.flip_budget, stands.flip_after_one) == (
            summary["mean_flip_budget"].value,
            summary["flips_after_one"].value,
        )
        assert stands.quality.accuracy == summary["accuracy"].value and stands.engine == "trees"
        assert all(0.0 <= hold <= 1.0 for hold in stands.holds.values())
    losses = [before - after for _, before, after in effect.lost_holds]
    assert losses == sorted(losses, reverse=True) and losses[0] > 0
    text = effect.to_text()
    assert text.splitlines()[0].split() == ["before", "after", "change"]
    assert "AUROC" in text and "brittle under held-out stress" in text and effect.lost_holds[0][0] in text
    unlabelled = assess_model(plain, X_VAL[:20], protocol)
    assert unlabelled.quality is None and "AUROC" not in HardeningEffect(unlabelled, unlabelled).to_text()
