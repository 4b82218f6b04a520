"""What a lost field becomes in its own units: the preprocessing must turn it into the baseline, whatever it does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.tree import DecisionTreeClassifier

import fragility as fg
from fragility.evidence.replacements import Replacement, find_replacements, value_text
from fragility.models import Model

NUMBERS = ["duration", "credit_amount", "age"]
NAMES = ["checking_status", "purpose", "housing"]
ENCODERS = {"one-hot": OneHotEncoder(handle_unknown="ignore"), "ordinal": OrdinalEncoder(), "target": TargetEncoder()}
SCALERS = {
    "standard": StandardScaler(),
    "range": MinMaxScaler(),
    "power": PowerTransformer(),
    "none": "passthrough",
    "imputed": make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()),
}


@pytest.fixture(scope="module")
def data() -> tuple[pd.DataFrame, pd.Series]:
    X, y = fg.load_credit_g()
    X = X[NUMBERS + NAMES].astype(dict.fromkeys(NUMBERS, float))
    X.loc[X.index[::9], "duration"] = np.nan
    return X, y


@pytest.mark.samples
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("scaler", SCALERS)
@pytest.mark.parametrize("baseline", ["median", "mean"])
def test_the_preprocessing_turns_the_value_into_the_baseline(data, encoder: str, scaler: str, baseline: str) -> None:
    X, y = data
    X = X if scaler == "imputed" else X.fillna(12.0)
    pipeline = make_pipeline(make_column_transformer((SCALERS[scaler], NUMBERS), (ENCODERS[encoder], NAMES)))
    pipeline.steps.append(("model", DecisionTreeClassifier(max_depth=3)))
    model = Model.wrap(pipeline.fit(X, y))
    protocol = fg.Protocol.fit(model, X, baseline=baseline)
    found = find_replacements(protocol.evidence, model, X.iloc[200:700])
    assert list(found) == NUMBERS + NAMES
    # A mean of missing indicators is no indicator, so that no value of the field leads to it.
    indicated = ["duration"] if (scaler, baseline) == ("imputed", "mean") else []
    assert [name for name in NUMBERS if found[name].state != "value"] == indicated
    lost = X.iloc[[5]].assign(**{name: one.value for name, one in found.items() if one.state == "value"})
    columns = np.asarray(pipeline[:-1].transform(lost), dtype=float)[0]
    for own in protocol.columns:
        field = next(name for name in NUMBERS + NAMES if name in own.name)
        if found[field].state == "value":
            at = [column.name for column in protocol.columns].index(own.name)
            assert columns[at] == pytest.approx(own.baseline, abs=1e-4), own.name
    if baseline == "mean":
        assert {found[name] for name in NAMES} == {Replacement("no value")}


def test_without_preprocessing_the_baseline_is_the_value(data) -> None:
    X, y = data
    numbers = X[NUMBERS].fillna(12.0)
    model = DecisionTreeClassifier(max_depth=3).fit(numbers, y)
    protocol = fg.Protocol.fit(model, numbers, baseline="median")
    found = find_replacements(protocol.evidence)
    assert {name: one.value for name, one in found.items()} == numbers.median().to_dict()


def test_without_the_model_preprocessed_fields_are_not_known(data) -> None:
    X, y = data
    X = X.fillna(12.0)
    pipeline = make_pipeline(
        make_column_transformer((KBinsDiscretizer(3), NUMBERS), (OneHotEncoder(), NAMES)),
        DecisionTreeClassifier(max_depth=3),
    ).fit(X, y)
    evidence = fg.Protocol.fit(
        pipeline, X, groups={"money": ["credit_amount"], "rest": [*NUMBERS[::2], *NAMES]}
    ).evidence
    assert {str(one) for one in find_replacements(evidence).values()} == {"not known without the model"}
    assert {str(one) for one in find_replacements(evidence, Model.wrap(pipeline)).values()} == {
        "not known without the model"
    }
    assert evidence.group_fields == {"money": ("credit_amount",), "rest": ("duration", "age", *NAMES)}


def test_columns_that_bear_the_names_of_fields_are_not_taken_for_their_values(data) -> None:
    X, y = data
    pipeline = make_pipeline(StandardScaler(), DecisionTreeClassifier(max_depth=3)).fit(X[NUMBERS].fillna(12.0), y)
    protocol = fg.Protocol.fit(pipeline, X[NUMBERS].fillna(12.0))
    assert [column.name for column in protocol.columns] == NUMBERS  # and their baselines are 0, in scaled units
    assert {str(one) for one in find_replacements(protocol.evidence).values()} == {"not known without the model"}
    assert {text for fields in protocol.becomes.values() for _, text in fields} == {"typical"}


def test_a_missing_baseline_is_called_missing(data) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    X, y = data
    model = HistGradientBoostingClassifier(max_iter=5).fit(X[NUMBERS], y)
    with pytest.warns(UserWarning, match="had no missing value in training"):
        protocol = fg.Protocol.fit(model, X[NUMBERS], baseline="missing")
    assert {str(one) for one in find_replacements(protocol.evidence).values()} == {"missing"}


def test_values_are_written_as_people_write_them() -> None:
    assert [value_text(value) for value in (3.0, 20.903, np.float64(2.5), None, np.nan, "a b", True)] == [
        "3", "20.903", "2.5", "missing", "missing", "a b", "True",
    ]  # fmt: skip
    day = pd.Timestamp("2026-11-16", tz="Europe/Berlin")
    assert [value_text(value) for value in (day, day + pd.Timedelta(hours=9), pd.NaT)] == [
        "2026-11-16", "2026-11-16 09:00", "missing",
    ]  # fmt: skip
