"""Pipelines of other libraries, as people build them: traced, audited and verified, and equal to the slow twin.

Every library here is optional. The twin's side is prepared by hand: rows and baseline from the pipeline's own output
and from pandas, groups from a map written here; only the model adapter is shared, asked for one row at a time.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from naive import naive_certificate, naive_typical_category, naive_typical_number
from pipelines import SEED, split
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from twins import Twin, assert_equal, remembered

from fragility.auditing.pipeline import audit
from fragility.base.errors import EvidenceError
from fragility.models import Model
from fragility.protocol import Protocol
from fragility.verification.verifying import verify

NUMERIC = ["duration", "credit_amount", "age"]
NOMINAL = ["checking_status", "purpose", "foreign_worker"]
FIELDS = ["checking_status", "duration", "purpose", "credit_amount", "age", "foreign_worker"]
N_ROWS = 4


def table(part: str) -> pd.DataFrame:
    data = split("credit_g")
    X = data.X_train if part == "train" else data.X_test
    return X[FIELDS].astype({name: float for name in NUMERIC} | {name: object for name in NOMINAL})


def target() -> pd.Series:
    return split("credit_g").y_train


def prepared() -> Any:
    return make_column_transformer((StandardScaler(), NUMERIC), (OneHotEncoder(sparse_output=False), NOMINAL))


def logistic() -> LogisticRegression:
    return LogisticRegression(max_iter=300)


def imblearn_pipeline(*kinds: str) -> Any:
    pipeline = pytest.importorskip("imblearn.pipeline")
    over, under = pytest.importorskip("imblearn.over_sampling"), pytest.importorskip("imblearn.under_sampling")
    samplers = {
        "smote": lambda: over.SMOTE(random_state=SEED),
        "over": lambda: over.RandomOverSampler(random_state=SEED),
        "under": lambda: under.RandomUnderSampler(random_state=SEED),
        "prepare": prepared,
        "scale": StandardScaler,
        "model": logistic,
    }
    return pipeline.make_pipeline(*(samplers[kind]() for kind in kinds))


def encoded(encoder: str, **settings: Any) -> Any:
    library = pytest.importorskip("category_encoders")
    return make_pipeline(getattr(library, encoder)(**settings), StandardScaler(), logistic())


def engineered(*encoders: tuple[str, dict[str, Any]]) -> Any:
    encoding = pytest.importorskip("feature_engine.encoding")
    return make_pipeline(*(getattr(encoding, name)(**how) for name, how in encoders), StandardScaler(), logistic())


def vectorised() -> Any:
    skrub = pytest.importorskip("skrub")
    # It hands over single precision, in which a linear model's rounding depends on the shape of the batch.
    return make_pipeline(skrub.TableVectorizer(), RandomForestClassifier(20, max_depth=5, random_state=SEED))


PIPELINES: dict[str, Any] = {
    "imblearn SMOTE": lambda: imblearn_pipeline("prepare", "smote", "model"),
    "imblearn sampler first": lambda: imblearn_pipeline("over", "prepare", "model"),
    "imblearn sampler in the middle": lambda: imblearn_pipeline("prepare", "under", "scale", "model"),
    "category_encoders target": lambda: encoded("TargetEncoder"),
    "category_encoders ordinal": lambda: encoded("OrdinalEncoder"),
    "category_encoders binary": lambda: encoded("BinaryEncoder"),
    "category_encoders one-hot": lambda: encoded("OneHotEncoder", use_cat_names=True),
    "category_encoders leave one out": lambda: encoded("LeaveOneOutEncoder"),
    "category_encoders weight of evidence": lambda: encoded("WOEEncoder"),
    "feature_engine mean": lambda: engineered(("MeanEncoder", {})),
    "feature_engine rare, one-hot": lambda: engineered(
        ("RareLabelEncoder", {"n_categories": 3}), ("OneHotEncoder", {})
    ),
    "skrub": vectorised,
}
AVERAGING = ("target", "leave one out", "weight of evidence", "mean")  # of a target in numbers


def fit(name: str) -> Any:
    y = target()
    if name.endswith(AVERAGING):
        y = (y == "good").astype(int)
    return PIPELINES[name]().fit(table("train"), y)


def field_of(column: str) -> str:
    """The field a column is named after: every encoder here puts its name first, after a step's own prefix."""
    own = column.rpartition("__")[2]
    return next(name for name in sorted(FIELDS, key=len, reverse=True) if own == name or own.startswith(f"{name}_"))


def steps_at_prediction(model: Any) -> Pipeline:
    return Pipeline([(name, step) for name, step in model.steps[:-1] if not hasattr(step, "fit_resample")])


def transformed_twin(model: Any) -> Twin:
    prepare = steps_at_prediction(model)
    handed_over = prepare.transform(table("train"))  # some libraries hand over single precision
    train = np.asarray(handed_over, dtype=float)
    rows = np.asarray(prepare.transform(table("test")[:N_ROWS]), dtype=float)
    names = [str(name) for name in prepare.get_feature_names_out()]
    groups: dict[str, list[int]] = {}
    for j, name in enumerate(names):
        groups.setdefault(field_of(name), []).append(j)
    values = [naive_typical_number(column.tolist()) for column in train.T]
    for field in NOMINAL:  # the encoding of its most frequent category
        cells = table("train")[field].tolist()
        encoded = train[cells.index(naive_typical_category(cells))]
        for j in groups.get(field, []):
            values[j] = float(encoded[j])
    head, dtype = Model.wrap(model.steps[-1][1]), np.asarray(handed_over).dtype
    return Twin(
        list(groups),
        list(groups.values()),
        rows.tolist(),
        values,
        [False] * len(names),
        remembered(lambda row: head.probabilities(np.array([row], dtype=dtype))[0]),
    )


def raw_twin(model: Any) -> Twin:
    train = table("train")
    baseline = [
        naive_typical_number(train[name].tolist()) if name in NUMERIC else naive_typical_category(train[name].tolist())
        for name in FIELDS
    ]
    types = {name: float if name in NUMERIC else object for name in FIELDS}

    wrapped = Model.wrap(model)

    def ask(row: list[Any]) -> Any:
        return wrapped.probabilities(pd.DataFrame([row], columns=FIELDS).astype(types))[0]

    rows = table("test")[:N_ROWS].to_numpy(dtype=object).tolist()
    stepwise = [name in NOMINAL for name in FIELDS]
    return Twin(list(FIELDS), [[j] for j in range(len(FIELDS))], rows, baseline, stepwise, remembered(ask))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_of_other_libraries_equal_the_slow_twin(name: str, space: str) -> None:
    model = fit(name)
    twin = transformed_twin(model) if space == "transformed" else raw_twin(model)
    protocol = Protocol.fit(model, table("train"), space=space)
    assert list(protocol.group_names) == twin.names
    X = table("test")[:N_ROWS]
    certs = audit(model, X, protocol, engine="blackbox")
    for i, row in enumerate(twin.rows):
        expected = naive_certificate(
            twin.probabilities,
            row,
            twin.baseline,
            twin.groups,
            protocol.depth,
            protocol.operators,
            protocol.severities,
            protocol.reading,
            protocol.weights,
            protocol.resolution,
            twin.stepwise,
            smoothing=protocol.smoothing,
        )
        assert_equal(certs, i, expected, f"{name} {space} row {i}")
    own = [str(label) for label in model.predict(X)]
    assert [str(certs[i].predicted) for i in range(N_ROWS)] == own


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_of_other_libraries_verify_after_use_and_loading(name: str) -> None:
    model = fit(name)
    protocol = Protocol.fit(model, table("train"))
    X = table("test")[:N_ROWS]
    certs = audit(model, X, protocol, engine="blackbox")
    model.predict(table("test"))
    assert verify(certs, model, X)
    assert verify(certs, pickle.loads(pickle.dumps(model)), X)
    assert Model.wrap(model).fingerprint_partial == ()


@pytest.mark.filterwarnings("ignore")
def test_an_encoder_that_mixes_fields_is_refused_with_a_way_out() -> None:
    model = encoded("HashingEncoder", max_process=1, n_components=4).fit(table("train"), target())
    with pytest.raises(EvidenceError, match=r"made from several raw fields.*space='raw'"):
        Protocol.fit(model, table("train"), space="transformed")


@pytest.mark.filterwarnings("ignore")
def test_a_ratio_of_two_fields_is_refused_with_their_names() -> None:
    creation = pytest.importorskip("feature_engine.creation")
    ratio = creation.RelativeFeatures(variables=["credit_amount"], reference=["duration"], func=["div"])
    X = table("train")[NUMERIC]
    model = make_pipeline(ratio, StandardScaler(), logistic()).fit(X, target())
    with pytest.raises(EvidenceError, match=r"'credit_amount_div_duration' from (duration, credit_amount|credit_am)"):
        Protocol.fit(model, X, space="transformed")
    groups = {"loan": ["duration", "credit_amount"], "age": ["age"]}
    assert Protocol.fit(model, X, space="transformed", groups=groups).group_names == ("loan", "age")


def test_a_pipeline_within_a_pipeline_passes_its_samplers_by() -> None:
    inner = imblearn_pipeline("prepare", "smote", "scale").fit(table("train"), target())
    head = logistic().fit(inner.transform(table("train")), target())
    model = Pipeline([("inner", inner), ("head", head)])
    protocol = Protocol.fit(model, table("train"))
    assert set(protocol.group_names) == set(FIELDS)
    only = imblearn_pipeline("smote", "model").fit(table("train")[NUMERIC], target())
    assert Model.wrap(only).transformer is None and Model.wrap(only).kind == "LogisticRegression"
