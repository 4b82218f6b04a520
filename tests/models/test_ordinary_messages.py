"""What a user is told where a model or a table is not what an audit needs, and what an audit leaves alone."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMClassifier
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from xgboost import XGBClassifier

import fragility as fg
from fragility.base.libraries import warn_once


@pytest.fixture(scope="module")
def numbers():
    X, y = fg.load_credit_g()
    return X.select_dtypes("number"), (y == "good").astype(int)


@pytest.mark.parametrize("kind", ["array", "table"])
def test_scalers_that_write_into_their_rows_get_a_copy(kind, numbers):
    X, y = numbers
    X = X.astype(float)
    given = X.to_numpy().copy() if kind == "array" else X.copy()
    model = make_pipeline(StandardScaler(copy=False), LogisticRegression()).fit(given.copy(), y)
    protocol = fg.Protocol.fit(model, given)
    audit = fg.audit(model, given[:40], protocol, engine="blackbox")
    assert fg.verify(audit, model, given[:40])
    fg.label_brittle(model, given[:40], protocol)
    assert np.array_equal(np.asarray(given), X.to_numpy())
    plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(given, y)
    same = fg.audit(plain, given[:40], fg.Protocol.fit(plain, given), engine="blackbox")
    np.testing.assert_allclose(audit.claims.exposure, same.claims.exposure, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: XGBClassifier(booster="dart", n_estimators=3, n_jobs=1), "XGBoost booster dart is not a plain sum"),
        (lambda: LGBMClassifier(linear_tree=True, n_estimators=3, verbose=-1, n_jobs=1), "linear models in their leav"),
    ],
)
def test_a_model_that_is_asked_as_a_black_box_says_why(make, reason, numbers):
    X, y = numbers
    model = make().fit(X, y)
    protocol = fg.Protocol.fit(model, X)
    warn_once.cache_clear()
    with pytest.warns(UserWarning, match=f"is asked as a black box, which is slower: .*{reason}"):
        assert fg.audit(model, X[:5], protocol).engine == "blackbox"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fg.audit(model, X[:5], protocol)  # once is enough


def test_a_black_box_under_one_baseline_is_not_said_of_the_whole_audit():
    X, y = fg.load_credit_g()
    X = X[["checking_status", "purpose", "duration"]].astype({"checking_status": str, "purpose": str})
    made = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), [0, 1]), remainder="passthrough")
    model = make_pipeline(made, LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1)).fit(X, y)
    protocol = fg.Protocol.fit(model, X, min_confidence=0.6, depth=2, severities=(1.0,))
    warn_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert fg.audit(model, X[:20], protocol).engine == "trees"
    only = "black box where the finding is compared under the baseline 'missing', and only there, which is slower"
    with pytest.warns(UserWarning, match=only):
        fg.compare_baselines(model, X[:20], protocol)


def test_an_audit_without_a_protocol_says_how_to_make_one(numbers):
    X, y = numbers
    with pytest.raises(fg.ProtocolError, match=r"protocol = Protocol.fit\(model, X_train\), and call audit"):
        fg.audit(LogisticRegression(max_iter=5000).fit(X, y), X)


def test_an_unknown_category_is_named_with_its_row():
    X, y = fg.load_credit_g()
    X = X[["purpose", "housing"]].astype(str)
    model = make_pipeline(OneHotEncoder(), LogisticRegression(max_iter=300)).fit(X, y)
    rows = X[:300].copy()
    rows.loc[[217, 240], "purpose"] = "yacht"
    with pytest.raises(fg.ModelError, match=r"preprocessing failed on row 217: ValueError: .*\['yacht'\]"):
        fg.audit(model, rows, fg.Protocol.fit(model, X))


def test_codes_that_a_csv_file_turned_into_numbers_are_named():
    X = pd.DataFrame({"code": ["001", "002", "003"] * 20, "a": np.linspace(0, 1, 60)})
    encode = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["code"]), remainder="passthrough")
    model = make_pipeline(encode, LogisticRegression()).fit(X, X.a > 0.5)
    with pytest.raises(fg.ModelError, match=r"column 'code' holds numbers here, .* texts such as '001', .* Parquet"):
        fg.Protocol.fit(model, X.astype({"code": int}))
