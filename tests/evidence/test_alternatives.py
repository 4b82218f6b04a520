"""Alternatives: a protocol stores the other baselines that its model admits, fitted on the same training rows."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from pipelines import split
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg
from fragility.protocol import Protocol, bind

NUMERIC = ["duration", "credit_amount", "age"]
NOMINAL = ["purpose", "checking_status"]


@functools.cache
def rows() -> tuple[pd.DataFrame, np.ndarray]:
    data = split("credit_g")
    X = data.X_train[[*NUMERIC, *NOMINAL, "housing"]].astype({**dict.fromkeys(NOMINAL, object), "age": float}).copy()
    X.loc[::10, "age"] = np.nan
    return X.reset_index(drop=True), np.asarray(data.y_train == "good").astype(int)


@functools.cache
def imputing() -> Pipeline:
    X, y = rows()
    pre = ColumnTransformer(
        [
            ("c", OneHotEncoder(handle_unknown="ignore"), NOMINAL),  # the housing is dropped
            ("n", make_pipeline(SimpleImputer(), StandardScaler()), NUMERIC),
        ]
    )
    return make_pipeline(pre, LogisticRegression(max_iter=500)).fit(X, y)


def refusing() -> Pipeline:
    X, y = rows()
    pre = ColumnTransformer(
        [("c", OneHotEncoder(handle_unknown="ignore"), NOMINAL), ("n", StandardScaler(), NUMERIC[:2])]
    )
    return make_pipeline(pre, LogisticRegression(max_iter=500)).fit(X, y)


def test_the_admitted_baselines_are_those_that_a_fit_of_their_own_gives() -> None:
    X, _ = rows()
    protocol = Protocol.fit(imputing(), X)
    assert protocol.alternatives == ("median", "missing", "mean")
    for name in ("median", "mean"):
        other = protocol.with_baseline(name)
        assert other == Protocol.fit(imputing(), X, baseline=name) and other.digest != protocol.digest
        assert set(other.alternatives) == {"typical", "median", "missing", "mean"} - {name}
        assert other.with_baseline("typical").digest == protocol.digest
    assert protocol.with_baseline("typical") is protocol
    paper = Protocol.paper(imputing(), X)
    assert paper.alternatives == ("typical", "median", "missing") and paper.reading == "current"
    assert paper.with_baseline("typical").reading == "current"


def test_missing_is_in_the_raw_space_with_the_groups_of_the_fields() -> None:
    X, _ = rows()
    blocks = {"loan": ["duration", "credit_amount", "purpose"], "person": ["age", "checking_status"]}
    protocol = Protocol.fit(imputing(), X, groups=blocks)
    missing = protocol.with_baseline("missing")
    assert missing.space == "raw" and missing.alternatives == () and missing.depth == protocol.depth
    assert {g.name: set(g.columns) for g in missing.groups} == {
        "loan": set(blocks["loan"]),
        "person": set(blocks["person"]),
        "housing": {"housing"},  # no column comes from it
    }
    assert all(column.baseline is None for column in missing.columns)
    assert set(missing.artificial) == set(X) - {"age"}  # only ages were missing in training
    fitted = Protocol.fit(imputing(), X, space="raw", baseline="missing")
    assert missing.columns == fitted.columns
    lost = pd.DataFrame({name: pd.Series([np.nan], dtype=object if name in NOMINAL else float) for name in X})
    bound = bind(imputing(), X[:3], missing)
    np.testing.assert_allclose(bound.predict(bound.baseline[None]), imputing().predict_proba(lost), rtol=1e-9)
    assert fg.audit(imputing(), X[:20], missing).protocol is missing


def test_a_baseline_that_the_model_refuses_is_no_alternative() -> None:
    X, _ = rows()
    protocol = Protocol.fit(refusing(), X)
    assert protocol.alternatives == ("median", "mean")
    with pytest.raises(
        fg.ProtocolError, match=r"has the baselines typical, median, mean, got 'missing'; fit one with that baseline"
    ):
        protocol.with_baseline("missing")


def test_columns_of_one_field_in_two_groups_have_no_missing_field() -> None:
    X, _ = rows()
    names = [c.name for c in Protocol.fit(imputing(), X).columns]
    protocol = Protocol.fit(imputing(), X, groups={"first": names[:2], "rest": names[2:]})
    assert protocol.alternatives == ("median", "mean")


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_models_without_preprocessing(space: str) -> None:
    X, y = rows()
    model = HistGradientBoostingClassifier(max_iter=5).fit(X[NUMERIC], y)
    protocol = Protocol.fit(model, X[NUMERIC], space=space)
    missing = protocol.with_baseline("missing")
    assert (
        missing.space == "raw"
        and missing.groups == protocol.groups
        and missing.artificial == ("duration", "credit_amount")
    )
    assert [c.spread for c in missing.columns] == [c.spread for c in protocol.columns]
    assert protocol.alternatives == ("median", "missing", "mean")
    bound = bind(model, X[NUMERIC][:2], missing)
    gaps = pd.DataFrame(np.full((1, 3), np.nan), columns=NUMERIC)
    np.testing.assert_allclose(bound.predict(bound.baseline[None]), model.predict_proba(gaps), rtol=1e-6)


def test_explicit_and_zero_baselines_have_all_four() -> None:
    X, _ = rows()
    protocol = Protocol.fit(imputing(), X, baseline="zero")
    assert protocol.alternatives == ("typical", "median", "missing", "mean")
    assert protocol.with_baseline("mean").alternatives == ("typical", "median", "missing")
    explicit = Protocol.fit(imputing(), X, baseline=X.iloc[[1]])
    assert explicit.with_baseline("typical") == Protocol.fit(imputing(), X)


def test_a_sparse_matrix_has_no_raw_fields() -> None:
    X, y = rows()
    matrix = sp.csr_matrix(X[NUMERIC[:2]].to_numpy(dtype=float))
    model = RandomForestClassifier(5, random_state=0).fit(matrix, y)
    assert Protocol.fit(model, matrix).alternatives == ("median", "mean")


def test_nothing_is_said_of_baselines_that_nobody_chose() -> None:
    X, y = rows()
    pre = ColumnTransformer([("c", OneHotEncoder(handle_unknown="warn"), NOMINAL), ("n", SimpleImputer(), NUMERIC)])
    model = make_pipeline(pre, RandomForestClassifier(5, random_state=0)).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "missing" in Protocol.fit(model, X).alternatives


def test_the_training_rows_are_transformed_once() -> None:
    """A few rows are bound again for each alternative; the training rows are not."""
    X, y = rows()

    class Counting(StandardScaler):
        seen: list[int] = []  # noqa: RUF012

        def transform(self, X: Any, copy: Any = None) -> Any:
            self.seen.append(len(X))
            return super().transform(X, copy)

    def passes(baseline: str) -> int:
        Counting.seen.clear()
        Protocol.fit(model, X[NUMERIC[:2]], baseline=baseline)
        return sum(n == len(X) for n in Counting.seen)

    model = make_pipeline(Counting(), LogisticRegression(max_iter=500)).fit(X[NUMERIC[:2]], y)
    assert passes("typical") == passes("zero") <= 2  # to see whether it hands over numbers, and to have them


# --- files ----------------------------------------------------------------------------------------------------------


def test_alternatives_travel_with_the_protocol() -> None:
    X, _ = rows()
    protocol = Protocol.fit(imputing(), X)
    again = Protocol.from_json(protocol.to_json())
    assert again == protocol and again.digest == protocol.digest
    document = protocol.to_dict()
    reordered = {**document, "alternatives": dict(reversed(document["alternatives"].items()))}
    assert Protocol.from_dict(reordered) == protocol
    stored = document["alternatives"]
    assert set(stored["missing"]) == {"artificial", "groups", "spreads"} and set(stored["mean"]) == {
        "artificial",
        "values",
    }
    changed = {**document, "alternatives": {**stored, "mean": {**stored["mean"], "values": stored["median"]["values"]}}}
    assert Protocol.from_dict(changed).digest != protocol.digest
    assert "<th>alternatives</th><td>median, missing, mean</td>" in protocol._repr_html_()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["mean"].update(values=[0.0]), r"alternative 'mean' must have \d+ values, one per column, got 1"),
        (lambda d: d["mean"].update(values=[*d["mean"]["values"][:-1], "x"]), r"must be a number or null, got 'x'"),
        (lambda d: d["mean"].pop("values"), r"every alternative but missing has a value for each column"),
        (lambda d: d["mean"].update(note=1), r"has the unknown field 'alternatives.mean.note'"),
        (lambda d: d.update(typical=d["mean"]), r"alternatives must be distinct and other than the baseline 'typical'"),
        (lambda d: d.update(zero=d["mean"]), r"must be one of typical, median, missing, mean, got 'zero'"),
        (lambda d: d["missing"].pop("groups"), r"alternative missing must have groups and spreads of the raw fields"),
        (lambda d: d["missing"]["spreads"].pop(), r"must have 6 spreads and at least 5 groups, got 5 and 6"),
        (lambda d: d["missing"]["groups"].pop(), r"groups must cover the columns exactly"),
        (lambda d: d["mean"].update(artificial="all"), r"artificial in the protocol must be a list"),
    ],
)  # fmt: skip
def test_malformed_alternatives_are_refused(change: Any, message: str) -> None:
    X, _ = rows()
    document = Protocol.from_json(Protocol.fit(imputing(), X).to_json()).to_dict()
    change(document["alternatives"])
    with pytest.raises(fg.ProtocolError, match=message):
        Protocol.from_dict(document)


def test_a_text_where_a_number_belongs_is_named_in_the_raw_space_too() -> None:
    X, _ = rows()
    document = Protocol.fit(imputing(), X.astype({"duration": int}), space="raw").to_dict()
    place = next(i for i, column in enumerate(document["columns"]) if column["name"] == "duration")
    document["alternatives"]["median"]["values"][place] = "own"
    with pytest.raises(fg.ProtocolError, match=r"must be a number or null, got 'own'"):
        Protocol.from_dict(document)


def test_contradictions_in_alternatives_are_found() -> None:
    X, _ = rows()
    document = Protocol.fit(imputing(), X).to_dict()
    values = document["alternatives"]["mean"]["values"]
    number = next(i for i, c in enumerate(document["columns"]) if c["kind"] == "numeric")
    values[number] = None
    with pytest.raises(fg.ProtocolError, match=r"baseline 'mean', but .* is None, expected a number, as it had values"):
        Protocol.from_dict(document)
    document = Protocol.fit(imputing(), X).to_dict()
    document["alternatives"]["missing"]["artificial"].append("salary")
    with pytest.raises(fg.ProtocolError, match="artificial names 'salary', which is not a field"):
        Protocol.from_dict(document)
