"""`HardenedClassifier`: scikit-learn's own checks, searches, and audits through it."""

from __future__ import annotations

import numpy as np
import pytest
from pipelines import preprocessing, split
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import fragility as fg

DATA = split("credit_g")
X, Y = DATA.X_train, DATA.y_train.to_numpy(dtype=object)

# A row given twice has two twins, and the baseline is a mean over rows: weights do not stand for repeated rows.
NOT_EQUIVALENT = {
    f"check_sample_weight_equivalence_on_{kind}_data": "each row has twins of its own" for kind in ("dense", "sparse")
}


def pipeline():
    return make_pipeline(preprocessing(X), LogisticRegression(max_iter=300))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn():
    results = check_estimator(
        fg.HardenedClassifier(LogisticRegression()), expected_failed_checks=NOT_EQUIVALENT, on_skip=None
    )
    assert {result["check_name"] for result in results if result["status"] == "xfail"} == set(NOT_EQUIVALENT)


def test_it_is_harden_as_an_estimator():
    weights = np.linspace(0.5, 1.5, len(X))
    made = fg.HardenedClassifier(pipeline(), rate=0.3, copies=2, seed=4).fit(X, Y, sample_weight=weights)
    same = fg.harden(pipeline(), X, Y, rate=0.3, copies=2, seed=4, sample_weight=weights)
    assert np.array_equal(made.predict_proba(X), same.predict_proba(X))
    assert np.array_equal(made.predict(X), same.predict(X))
    assert np.array_equal(made.decision_function(X), same.decision_function(X))
    assert list(made.classes_) == ["bad", "good"] and list(made.feature_names_in_) == list(X.columns)
    assert clone(made).get_params()["rate"] == 0.3


def test_rate_and_copies_can_be_searched():
    search = GridSearchCV(
        fg.HardenedClassifier(pipeline()), {"rate": [0.1, 0.4], "estimator__logisticregression__C": [1.0]}, cv=2
    ).fit(X, Y)
    assert search.best_params_["rate"] in (0.1, 0.4)
    assert len(set(search.cv_results_["mean_test_score"])) == 2


def test_a_protocol_of_all_rows_is_fitted_to_each_fold():
    protocol = fg.Protocol.fit(pipeline().fit(X, Y), X, baseline="typical")
    made = fg.HardenedClassifier(pipeline(), protocol=protocol).fit(X[:200], Y[:200])
    own = fg.Protocol.fit(pipeline().fit(X[:200], Y[:200]), X[:200], baseline="typical")
    same = fg.harden(pipeline(), X[:200], Y[:200], protocol=own)
    assert np.array_equal(made.predict_proba(X), same.predict_proba(X))


def test_an_audit_looks_through_it():
    made = fg.HardenedClassifier(pipeline()).fit(X, Y)
    protocol = fg.Protocol.fit(made, X)
    assert protocol.digest == fg.Protocol.fit(made.estimator_, X).digest
    few = DATA.X_test[:20]
    certs = fg.audit(made, few, protocol)
    assert certs.engine == fg.audit(made.estimator_, few, protocol).engine == "linear"
    assert fg.verify(certs, made, few)


@pytest.mark.parametrize("wrong", [{"rate": 2}, {"kind": "drop"}])
def test_wrong_settings_are_refused_when_it_is_fitted(wrong):
    with pytest.raises(fg.ProtocolError):
        fg.HardenedClassifier(pipeline(), **wrong).fit(X, Y)
