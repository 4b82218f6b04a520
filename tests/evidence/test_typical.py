"""The typical baseline is a value that exists, whatever encodes a field and whichever library does it (SPEC 4)."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import naive_typical_category, naive_typical_number
from pipelines import split
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)

import fragility as fg
from fragility.protocol import Protocol

NUMERIC = ["duration", "credit_amount", "age"]
NOMINAL = ["purpose", "checking_status", "foreign_worker", "region"]


@functools.cache
def table() -> tuple[pd.DataFrame, np.ndarray]:
    """Credit-G with texts, a code in numbers (`region`) whose mean is no region, and some purposes missing."""
    data = split("credit_g")
    X = data.X_train[[*NUMERIC, *NOMINAL[:3]]].astype(dict.fromkeys(NOMINAL[:3], object)).copy()
    X["region"] = np.random.default_rng(0).choice([101, 205, 377, 940], len(X), p=[0.2, 0.2, 0.15, 0.45])
    return X.reset_index(drop=True), np.asarray(data.y_train == "good").astype(int)


def with_encoder(encoder: Any, names: list[str] = NOMINAL) -> Pipeline:
    rest = [name for name in NOMINAL if name not in names]
    pre = ColumnTransformer([("c", encoder, names), ("n", StandardScaler(), NUMERIC), ("d", "drop", rest)])
    return make_pipeline(pre, LogisticRegression(max_iter=500))


def of_library(module: str, name: str, **settings: Any) -> Callable[[], Pipeline]:
    def make() -> Pipeline:
        library = pytest.importorskip(module)
        return with_encoder(getattr(library, name)(**settings))

    return make


def table_vectorizer() -> Pipeline:
    skrub = pytest.importorskip("skrub")
    return make_pipeline(skrub.TableVectorizer(), LogisticRegression(max_iter=500))


def feature_engine_pipeline() -> Pipeline:
    encoding = pytest.importorskip("feature_engine.encoding")
    encoder = encoding.MeanEncoder(variables=NOMINAL, ignore_format=True)
    return make_pipeline(encoder, StandardScaler(), LogisticRegression(max_iter=500))


ENCODERS: dict[str, Callable[[], Pipeline]] = {
    "one-hot": lambda: with_encoder(OneHotEncoder(sparse_output=False, handle_unknown="ignore")),
    "one-hot, sparse": lambda: with_encoder(OneHotEncoder(handle_unknown="ignore")),
    "one-hot, first dropped": lambda: with_encoder(OneHotEncoder(drop="first")),
    "one-hot, rare ones together": lambda: with_encoder(OneHotEncoder(min_frequency=0.25, handle_unknown="ignore")),
    "ordinal": lambda: with_encoder(OrdinalEncoder()),
    "ordinal, scaled": lambda: with_encoder(make_pipeline(OrdinalEncoder(), StandardScaler())),
    "target": lambda: with_encoder(TargetEncoder(random_state=0)),
    "imputed, then one-hot": lambda: with_encoder(
        make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder())
    ),
    "category_encoders target": of_library("category_encoders", "TargetEncoder", cols=NOMINAL),
    "category_encoders binary": of_library("category_encoders", "BinaryEncoder", cols=NOMINAL),
    "category_encoders count": of_library("category_encoders", "CountEncoder", cols=NOMINAL),
    "category_encoders ordinal": of_library("category_encoders", "OrdinalEncoder", cols=NOMINAL),
    "skrub similarity": lambda: with_encoder(pytest.importorskip("skrub").SimilarityEncoder()),
    "skrub table": table_vectorizer,
    "feature_engine mean": feature_engine_pipeline,
}


def check_exists(model: Pipeline, X: pd.DataFrame, protocol: Protocol, fields: list[str]) -> None:
    """Each nominal field's columns have, together, the values of the training rows of its most frequent category."""
    out = model[:-1].transform(X)
    matrix = out.toarray() if sp.issparse(out) else np.asarray(out, dtype=float)
    names = [column.name for column in protocol.columns]
    groups = {group.name: [names.index(column) for column in group.columns] for group in protocol.groups}
    baseline = np.array([column.baseline for column in protocol.columns], dtype=float)
    assert protocol.artificial == ()
    for field in fields:
        own = (X[field] == naive_typical_category(X[field].tolist())).to_numpy()
        seen = matrix[own][:, groups[field]]
        np.testing.assert_array_equal(seen, np.tile(baseline[groups[field]], (own.sum(), 1)), err_msg=field)


@pytest.mark.samples
@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_typical_value_of_an_encoded_field_is_that_of_its_most_frequent_category(encoder: str) -> None:
    X, y = table()
    model = ENCODERS[encoder]().fit(X, y)
    nominal = ["region"] if encoder in ("skrub table",) else []  # numbers of a table are quantities to skrub
    fields = [name for name in NOMINAL if name not in nominal]
    for baseline in ("typical", "median"):
        check_exists(model, X, Protocol.fit(model, X, baseline=baseline), fields)


def native_models() -> dict[str, Any]:
    categorical = NOMINAL
    found: dict[str, Any] = {
        "hist_gradient_boosting": HistGradientBoostingClassifier(max_iter=5, categorical_features="from_dtype")
    }
    for module, make in {
        "lightgbm": lambda lib: lib.LGBMClassifier(n_estimators=5, verbose=-1),
        "xgboost": lambda lib: lib.XGBClassifier(n_estimators=5, enable_categorical=True),
        "catboost": lambda lib: lib.CatBoostClassifier(iterations=5, verbose=0, cat_features=categorical),
    }.items():
        try:
            found[module] = make(__import__(module))
        except ImportError:
            continue
    return found


@pytest.mark.parametrize("family", ["hist_gradient_boosting", "lightgbm", "xgboost", "catboost"])
def test_the_typical_value_of_a_native_category_is_its_most_frequent_one(family: str) -> None:
    models = native_models()
    if family not in models:
        pytest.skip(f"{family} is not installed")
    X, y = table()
    X = X.astype({name: "str" if family == "catboost" else "category" for name in NOMINAL})
    model = models[family].fit(X, y)
    protocol = Protocol.fit(model, X)
    assert protocol.space == "raw" and protocol.artificial == ()
    for column in protocol.columns:
        if column.name in NOMINAL:
            assert column.baseline == naive_typical_category(X[column.name].tolist())
        else:
            assert column.baseline == naive_typical_number(X[column.name].tolist())


@given(
    st.lists(st.tuples(st.sampled_from(["b", "a", "é", "10", "9"]), st.integers(0, 3)), min_size=8, max_size=40),
    st.randoms(use_true_random=False),
    st.sampled_from(["one-hot", "one-hot, first dropped", "ordinal"]),
)
@settings(max_examples=25, deadline=None)
def test_ties_go_to_the_first_in_text_order_whatever_the_row_order(rows, random, encoder: str) -> None:
    X = pd.DataFrame(rows, columns=["kind", "code"])
    make = {
        "one-hot": OneHotEncoder(),
        "one-hot, first dropped": OneHotEncoder(drop="first"),
        "ordinal": OrdinalEncoder(),
    }
    y = np.arange(len(X)) % 2
    model = make_pipeline(make_column_transformer((make[encoder], ["kind", "code"])), LogisticRegression())
    if X["kind"].nunique() == X["code"].nunique() == 1 and encoder == "one-hot, first dropped":
        return  # no column is left
    model.fit(X, y)
    protocol = Protocol.fit(model, X)
    fields = [group.name for group in protocol.groups]
    check_exists(model, X, protocol, fields)
    shuffled = X.sample(frac=1.0, random_state=random.randrange(2**32))
    assert [c.baseline for c in Protocol.fit(model, shuffled).columns] == [c.baseline for c in protocol.columns]


def test_numbers_are_whole_where_the_model_receives_whole_numbers() -> None:
    X, y = table()
    flag = (X["age"] > 50).astype(float)
    X = X[NUMERIC].assign(ratio=X["age"] / 7, flag=flag, known=flag == 0)
    X.loc[::5, "age"] = np.nan  # whole numbers with gaps are decimals to pandas
    protocol = Protocol.fit(model := HistGradientBoostingClassifier(max_iter=5).fit(X, y), X, space="transformed")
    values = {column.name: column.baseline for column in protocol.columns}
    assert values == {n: naive_typical_number(X[n].tolist()) for n in X if n != "known"} | {"known": 1.0}
    assert values["age"] == round(values["age"]) and values["ratio"] != round(values["ratio"]) and values["flag"] == 0.0
    raw = Protocol.fit(model, X, space="raw")
    assert {column.name: column.baseline for column in raw.columns} == values
    mean = {column.name: column.baseline for column in Protocol.fit(model, X, baseline="mean").columns}
    assert 0 < mean["flag"] < 1 and mean["age"] != round(mean["age"])


def test_bins_take_the_most_frequent_bin() -> None:
    """Most amounts occur once, so that a most frequent amount would be an accident; a bin of them is not."""
    X, y = table()
    bins = KBinsDiscretizer(4, encode="onehot-dense", strategy="uniform")
    model = make_pipeline(
        make_column_transformer((bins, ["credit_amount"]), (StandardScaler(), ["age"])), LogisticRegression()
    ).fit(X, y)
    protocol = Protocol.fit(model, X)
    out = model[:-1].transform(X)[:, :4]
    most = Counter(map(tuple, out.tolist())).most_common(1)[0][0]
    assert tuple(c.baseline for c in protocol.columns[:4]) == most and protocol.artificial == ()
    amount = next(c for c in Protocol.fit(model, X, space="raw").columns if c.name == "credit_amount")
    assert amount.kind == "numeric" and amount.baseline == naive_typical_number(X["credit_amount"].tolist())


def test_an_indicator_of_missing_values_takes_its_most_frequent_value() -> None:
    X, y = table()
    X = X[NUMERIC].astype(float)
    X.loc[::3, "age"] = np.nan
    X.loc[X.index % 3 > 0, "duration"] = np.nan
    model = make_pipeline(SimpleImputer(add_indicator=True), LogisticRegression(max_iter=500)).fit(X, y)
    protocol = Protocol.fit(model, X)
    values = {column.name: column.baseline for column in protocol.columns}
    assert (values["missingindicator_age"], values["missingindicator_duration"]) == (0.0, 1.0)
    assert protocol.artificial == ()


# --- values that no row has -----------------------------------------------------------------------------------------


def test_ordinal_codes_and_target_encodings_have_no_mean_that_a_row_has() -> None:
    X, y = table()
    for encoder in ("ordinal", "target", "one-hot", "one-hot, sparse"):
        model = ENCODERS[encoder]().fit(X, y)
        protocol = Protocol.fit(model, X, baseline="mean")
        assert set(protocol.artificial) == set(NOMINAL), encoder
        assert Protocol.paper(model, X).artificial == protocol.artificial
        assert Protocol.fit(model, X, baseline="mean", space="raw").artificial == ()
    zero = Protocol.fit(ENCODERS["one-hot, first dropped"]().fit(X, y), X, baseline="zero")
    assert zero.artificial == ()  # no indicator set is the first category


def test_explicit_categories_that_training_does_not_know_are_artificial() -> None:
    X, y = table()
    model = ENCODERS["one-hot"]().fit(X, y)
    row = {**X.iloc[0].to_dict(), "purpose": "a wedding"}
    for space in ("transformed", "raw"):
        assert Protocol.fit(model, X, baseline=row, space=space).artificial == ("purpose",)
        assert Protocol.fit(model, X, baseline=X.iloc[0].to_dict(), space=space).artificial == ()


def test_the_protocol_says_what_is_artificial() -> None:
    X, y = table()
    protocol = Protocol.fit(ENCODERS["one-hot"]().fit(X, y), X, baseline="mean")
    again = Protocol.from_json(protocol.to_json())
    assert again == protocol and again.artificial == protocol.artificial
    assert "baseline mean (artificial for 4 fields)" in repr(protocol)
    assert "<th>artificial</th><td>purpose, checking_status, foreign_worker, region</td>" in protocol._repr_html_()
    document = protocol.to_dict()
    assert Protocol.from_dict({**document, "artificial": []}).digest != protocol.digest
    with pytest.raises(fg.ProtocolError, match=r"artificial in the protocol must be a list, got 'purpose'"):
        Protocol.from_dict({**document, "artificial": "purpose"})
