"""What a column is said to come from is tried: on whole pipelines, with and without missing cells."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipelines import fitted, split
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from fragility.base.errors import EvidenceError, FragilityWarning, ProtocolError
from fragility.evidence.origins import list_sets
from fragility.protocol import Protocol, bind

NUMERIC = ["duration", "credit_amount", "age", "residence_since", "existing_credits", "num_dependents", "other"]


def table() -> tuple[pd.DataFrame, pd.Series]:
    data = split("credit_g")
    X = data.X_train[NUMERIC[:-1]].astype(float)
    return X.assign(other=np.sqrt(X["duration"] * 3.0 + X["age"])), data.y_train


def gappy() -> tuple[pd.DataFrame, pd.Series]:
    X, y = table()
    return X.mask(np.random.default_rng(0).random(X.shape) < 0.1), y


class FromANeighbour(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Fills a missing ``age`` from ``duration``, any other missing value by a constant, and says one column a field."""

    def fit(self, X, y=None):
        self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        X = X.copy()
        X["age"] = X["age"].fillna(X["duration"] / 2.0)
        return X.fillna(20.0)


class Ratio(FromANeighbour):
    """Divides one field by another, and says one column a field."""

    def transform(self, X):
        return X.fillna(20.0).assign(credit_amount=lambda made: made["credit_amount"] / made["duration"])


def ratio_of(X):
    return X.fillna(20.0).assign(credit_amount=lambda made: made["credit_amount"] / made["duration"])


LIARS = {
    "class": (Ratio(), "credit_amount"),
    "function": (FunctionTransformer(ratio_of, feature_names_out="one-to-one"), "credit_amount"),
    "only where one is missing": (FromANeighbour(), "age"),
}


def model_of(step, X: pd.DataFrame, y: pd.Series) -> Pipeline:
    return make_pipeline(step, StandardScaler(), LogisticRegression(max_iter=500)).fit(X, y)


@pytest.mark.parametrize("complete", [False, True], ids=["training rows with gaps", "without"])
@pytest.mark.parametrize("name", LIARS)
def test_a_step_that_mixes_fields_against_its_word_is_found_out(name: str, complete: bool) -> None:
    (X, y), (step, column) = table() if complete else gappy(), LIARS[name]
    model = model_of(step, X, y)
    with pytest.raises(
        EvidenceError, match=rf"1 column\(s\) .* several raw fields.*: '{column}' from duration, {column};"
    ):
        Protocol.fit(model, X, space="transformed")
    with pytest.warns(FragilityWarning, match=rf"a column of its input is .*: '{column}' from 'duration', '{column}'"):
        protocol = Protocol.fit(model, X)
    assert protocol.space == "raw"
    assert {own.name: own.fields for own in protocol.inputs} == {
        own: ("duration", column) if own == column else (own,) for own in NUMERIC
    }


def test_columns_of_one_field_each_are_kept_whatever_is_missing() -> None:
    X, y = gappy()
    protocol = Protocol.fit(model_of(SimpleImputer(), X, y), X)
    assert protocol.space == "transformed" and protocol.evidence.column_fields == tuple((name,) for name in NUMERIC)


def test_an_encoder_that_takes_no_missing_value_is_tried_without_one() -> None:
    case = fitted("credit_g", "logistic", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    assert all(len(column.fields) == 1 for column in protocol.inputs)


@given(st.integers(1, 70))
def test_for_any_two_fields_one_set_moves_the_first_alone(n_fields: int) -> None:
    sets = list_sets(n_fields)
    assert all(any(some[a] and not some[b] for some in sets) for a, b in permutations(range(n_fields), 2))
    assert all(any(some[a] for some in sets) for a in range(n_fields))


# --- protocols that say otherwise -----------------------------------------------------------------------------------


def one_hot() -> tuple[Pipeline, pd.DataFrame]:
    data = split("credit_g")
    numeric, nominal = ["duration", "age"], ["purpose", "housing"]
    encode = ColumnTransformer(
        [("n", StandardScaler(), numeric), ("c", OneHotEncoder(handle_unknown="ignore"), nominal)]
    )
    X = data.X_train[numeric + nominal]
    return make_pipeline(encode, LogisticRegression(max_iter=500)).fit(X, data.y_train), X


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_groups_that_exchange_their_names_are_refused(space: str) -> None:
    model, X = one_hot()
    document = Protocol.fit(model, X, space=space).to_dict()
    for group in document["groups"]:
        group["name"] = {"duration": "age", "age": "duration"}.get(group["name"], group["name"])
    without = {"catalogue": [], "catalogue_size": 0, "declared": ["lost", "noisy"]}
    with pytest.raises(ProtocolError, match=r"grouping 'raw-origin', but the group '\w+' holds '\w+'"):
        Protocol.from_dict(document | {"modes": document["modes"] | without})
    for entry in document["modes"]["catalogue"]:
        entry["group"] = {"duration": "age", "age": "duration"}.get(entry["group"], entry["group"])
    with pytest.raises(ProtocolError, match=r"grouping 'raw-origin', but the group '\w+' holds '\w+'"):
        Protocol.from_dict(document)


def test_a_column_in_the_group_of_another_field_is_refused() -> None:
    model, X = one_hot()
    document = Protocol.fit(model, X).to_dict()
    groups = {group["name"]: group["columns"] for group in document["groups"]}
    groups["housing"].append(groups["purpose"].pop())
    with pytest.raises(ProtocolError, match=r"'raw-origin', but the group 'housing' holds 'purpose', 'housing'"):
        Protocol.from_dict(document)


def test_a_catalogue_of_other_fields_is_refused() -> None:
    model, X = one_hot()
    document = Protocol.fit(model, X, groups={"who": ["age"], "what": ["duration"]}).to_dict()
    first, second = document["modes"]["catalogue"][:2]
    first["fields"], second["fields"] = second["fields"], first["fields"]
    with pytest.raises(ProtocolError, match=r"the catalogue of '\w+' must be that of the fields '\w+', got '\w+'"):
        Protocol.from_dict(document)


def test_rows_are_not_bound_where_columns_come_from_other_fields() -> None:
    """The forger exchanges two fields everywhere in the protocol, so that it does not contradict itself."""
    model, X = one_hot()
    document = Protocol.fit(model, X).to_dict()
    swap = {"n__duration": "age", "n__age": "duration"}
    for column in document["inputs"]:
        column["fields"] = [swap.get(column["name"], column["fields"][0])]
    for group in document["groups"]:
        group["name"] = {"duration": "age", "age": "duration"}.get(group["name"], group["name"])
    for entry in document["modes"]["catalogue"]:
        other = {"duration": "age", "age": "duration"}.get(entry["group"], entry["group"])
        entry["group"], entry["fields"] = other, [other]
    forged = Protocol.from_dict(document)
    with pytest.raises(ProtocolError, match=r"column 'n__duration' is made from 'age', but it is made from 'duration'"):
        bind(model, X[:20], forged)


def test_rows_show_that_a_column_changes_with_another_field() -> None:
    X, y = gappy()
    model = model_of(Ratio(), X, y)
    honest = Protocol.fit(model_of(SimpleImputer(strategy="constant", fill_value=20.0), X, y), X)
    with pytest.raises(
        ProtocolError, match=r"column 'credit_amount' is made from 'credit_amount', but it changes with 'duration'"
    ):
        bind(model, X[:40], honest)
