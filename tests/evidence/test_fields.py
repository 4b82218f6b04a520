"""Every field reaches the model in the type it was trained with, stressed or not, or is refused by name."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pipelines import split
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import fragility as fg
from fragility.base.errors import DataError, EvidenceError, FragilityError
from fragility.evidence.fields import type_of
from fragility.models import Model
from fragility.protocol import Protocol, bind

WIDE = 2**53


def as_text(X):
    return X.astype(str)


def credit() -> tuple[pd.DataFrame, pd.Series]:
    data = split("credit_g")
    return data.X_train[["duration", "age", "existing_credits", "purpose"]].copy(), data.y_train


def codes_as_text(X: pd.DataFrame, y: pd.Series, codes: list[str]) -> Pipeline:
    """A pipeline to which the number 7 and the decimal 7.0 are different categories."""
    words = make_pipeline(FunctionTransformer(as_text), OneHotEncoder(handle_unknown="ignore"))
    pre = make_column_transformer((words, codes), remainder=StandardScaler())
    return make_pipeline(pre, LogisticRegression(max_iter=500)).fit(X, y)


class Watch(ClassifierMixin, BaseEstimator):
    """A model without names of its own that remembers the types it is handed."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.inner_ = LogisticRegression(max_iter=500).fit(np.asarray(X.select_dtypes("number"), dtype=float), y)
        self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        self.seen_ = []
        return self

    def predict_proba(self, X):
        self.seen_.append({name: str(X[name].dtype) for name in X.columns})
        numbers = X[[c for c in X.columns if c != "purpose"]]
        return self.inner_.predict_proba(numbers.to_numpy(dtype=float, na_value=0.0))


# --- whole numbers stay whole ---------------------------------------------------------------------------------------


def test_a_model_that_reads_whole_numbers_as_names_gets_whole_numbers() -> None:
    X, y = credit()
    X = X.drop(columns="purpose")
    model = codes_as_text(X, y, ["existing_credits", "age"])
    protocol = Protocol.fit(model, X, space="raw")
    certs = fg.audit(model, X[:100], protocol)
    own = model.predict_proba(X[:100])
    assert list(certs.to_pandas()["predicted"]) == list(model.classes_[own.argmax(axis=1)])
    np.testing.assert_allclose(certs.to_pandas()["confidence"], own.max(axis=1), rtol=1e-12)
    assert fg.verify(certs, model, X[:100])


class Wrapped(ClassifierMixin, BaseEstimator):
    """A pipeline hidden in a class, as users' own models often are."""

    def __init__(self, pipeline):
        self.pipeline = pipeline
        self.classes_ = pipeline.classes_

    def predict_proba(self, X):
        return self.pipeline.predict_proba(X)


def test_a_hidden_pipeline_that_reads_whole_numbers_as_names_is_audited_in_the_raw_space() -> None:
    X, y = credit()
    X = X.drop(columns="purpose")
    model = Wrapped(codes_as_text(X, y, ["existing_credits"]))
    protocol = Protocol.fit(model, X)
    assert protocol.space == "raw"
    certs = fg.audit(model, X[:60], protocol)
    np.testing.assert_allclose(certs.to_pandas()["confidence"], model.predict_proba(X[:60]).max(axis=1), rtol=1e-12)
    with pytest.raises(EvidenceError, match=r"answers differently when its whole numbers .* decimals.*space='raw'"):
        Protocol.fit(model, X, space="transformed")


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "uint64", "Int64", "float32", "float64", "Float64"])
def test_every_type_of_number_is_handed_over_as_such(dtype: str) -> None:
    X, y = credit()
    X = X.astype({"age": dtype})
    model = Watch().fit(X, y)
    protocol = Protocol.fit(model, X, space="raw", baseline="mean")
    age = next(c for c in protocol.columns if c.name == "age")
    assert (age.baseline == round(X["age"].mean())) is ("int" in dtype.lower())
    rows = bind(model, X[:20], protocol)
    model.seen_.clear()
    moved = rows.dense() + 0.3 * (rows.baseline - rows.dense())
    moved[:, 3] = rows.dense()[:, 3]
    for matrix in (rows.dense(), moved, rows.baseline[None, :]):
        rows.predict(matrix)
    assert {seen["age"] for seen in model.seen_} == {dtype}
    assert {seen["purpose"] for seen in model.seen_} == {str(X["purpose"].dtype)}


def test_a_blend_of_whole_numbers_is_rounded_half_to_even() -> None:
    X, _ = credit()
    seen = []

    def probabilities(frame):
        seen.append(frame["age"].tolist())
        return np.tile([0.4, 0.6], (len(frame), 1))

    model = Model.wrap(probabilities, classes=["bad", "good"])
    protocol = Protocol.fit(model, X[["age"]].assign(other=1.5), space="raw", baseline={"age": 41, "other": 0.0})
    rows = bind(model, pd.DataFrame({"age": [20, 40, 42], "other": 1.5}), protocol)
    seen.clear()
    rows.predict(rows.dense() + 0.5 * (rows.baseline - rows.dense()))
    assert seen == [[30, 40, 42]]  # 30.5, 40.5 and 41.5


@pytest.mark.parametrize("dtype", ["Int64", "boolean", "string"])
def test_nullable_columns_stay_nullable_with_missing_evidence(dtype: str) -> None:
    X, y = credit()
    values = {"Int64": X["age"], "boolean": X["age"] > 30, "string": X["purpose"]}[dtype]
    X = X.assign(field=values.astype(dtype))
    model = Watch().fit(X[["duration", "age"]].astype(float), y)
    model.feature_names_in_ = np.asarray(["duration", "age", "field"], dtype=object)
    model.predict_proba = lambda Z: [model.seen_.append(str(Z["field"].dtype))] and np.tile([0.4, 0.6], (len(Z), 1))
    X = X[["duration", "age", "field"]].astype({"duration": float, "age": float})
    protocol = Protocol.fit(model, X, space="raw", baseline="missing")
    rows = bind(model, X[:5], protocol)
    rows.predict(rows.baseline[None, :])
    rows.predict(rows.dense())
    assert set(model.seen_) == {dtype}


def test_missing_flags_are_missing_and_not_true() -> None:
    X, _ = credit()
    X = X[["age"]].assign(flag=X["purpose"] == "new car")
    seen = []

    def probabilities(frame):
        seen.append(frame["flag"].tolist())
        return np.tile([0.4, 0.6], (len(frame), 1))

    model = Model.wrap(probabilities, classes=["bad", "good"])
    rows = bind(model, X[:2], Protocol.fit(model, X, space="raw", baseline="missing"))
    seen.clear()
    rows.predict(rows.baseline[None, :])
    rows.predict(rows.dense())
    assert np.isnan(seen[0][0]) and seen[1] == X["flag"][:2].tolist()


def test_missing_whole_numbers_are_decimals_unless_the_model_tells_them_apart() -> None:
    X, y = credit()
    numbers = X.drop(columns="purpose")
    booster = HistGradientBoostingClassifier(max_iter=10).fit(numbers, y)
    rows = bind(booster, numbers[:9], Protocol.fit(booster, numbers, space="raw", baseline="missing"))
    gone = pd.DataFrame({name: [np.nan] for name in numbers})
    np.testing.assert_allclose(rows.predict(rows.baseline[None, :]), booster.predict_proba(gone), rtol=1e-12)
    model = codes_as_text(numbers, y, ["existing_credits"])
    with pytest.raises(EvidenceError, match=r"answers differently once column .* missing values.*float64.*Int64"):
        Protocol.fit(model, numbers, space="raw", baseline="missing")


def test_missing_text_keeps_its_own_kind_of_missing() -> None:
    X, y = credit()
    X = X.astype({"purpose": object})
    X.loc[::5, "purpose"] = None
    pre = make_column_transformer((OneHotEncoder(), ["purpose"]), remainder=StandardScaler())
    model = make_pipeline(pre, LogisticRegression(max_iter=500)).fit(X, y)  # None is one of its categories
    rows = bind(model, X[:20], Protocol.fit(model, X, space="raw"))
    np.testing.assert_allclose(rows.predict(rows.dense()), model.predict_proba(X[:20]), rtol=1e-12)


def test_polars_columns_keep_their_types_with_and_without_gaps() -> None:
    polars = pytest.importorskip("polars")
    table = polars.DataFrame(
        {
            "small": polars.Series([1, 2, None, 4] * 10, dtype=polars.Int16),
            "wide": polars.Series([WIDE + 1, WIDE + 3, None, WIDE + 5] * 10, dtype=polars.Int64),
            "float": polars.Series([0.5, 1.5, 2.5, None] * 10, dtype=polars.Float32),
            "flag": [True, False, None, True] * 10,
            "word": polars.Series(["a", "b", None, "a"] * 10, dtype=polars.Categorical),
        }
    )
    seen = []

    def probabilities(frame):
        seen.append(frame)
        return np.tile([0.4, 0.6], (len(frame), 1))

    model = Model.wrap(probabilities, classes=["bad", "good"])
    for baseline in ("mean", "missing"):
        rows = bind(model, table, Protocol.fit(model, table, space="raw", baseline=baseline))
        seen.clear()
        rows.predict(rows.dense())
        rows.predict(rows.baseline[None, :])
        assert seen[0].equals(table)
        assert seen[1].schema == table.schema


# --- whole numbers beyond 2**53 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int64", "uint64", "Int64", "object"])
def test_wide_whole_numbers_lose_no_digits(dtype: str) -> None:
    codes = [WIDE + 1, WIDE + 2, WIDE + 3, 5] * 50
    X = pd.DataFrame({"code": pd.Series(codes, dtype=dtype), "x": np.linspace(0, 1, 200)})
    y = (np.array(codes) % 2).astype(int)
    words = make_pipeline(FunctionTransformer(as_text), OneHotEncoder(handle_unknown="ignore"))
    model = make_pipeline(make_column_transformer((words, ["code"]), remainder="passthrough"), LogisticRegression())
    model.fit(X, y)
    protocol = Protocol.fit(model, X, space="raw")
    assert next(c.kind for c in protocol.columns if c.name == "code") == "nominal"
    rows = bind(model, X[:8], protocol)
    np.testing.assert_allclose(rows.predict(rows.dense()), model.predict_proba(X[:8]), rtol=1e-12)
    one, other = (fg.audit(model, X.iloc[[i]].assign(x=0.5), protocol, ids=[0]) for i in (0, 1))
    assert one.manifest.input.digest != other.manifest.input.digest


def test_wide_whole_numbers_where_training_had_none_are_refused() -> None:
    X, y = credit()
    X = X.drop(columns="purpose")
    forest = RandomForestClassifier(5, random_state=0).fit(X, y)
    protocol = Protocol.fit(forest, X, space="raw")
    with pytest.raises(DataError, match=rf"'age' holds the whole number {WIDE + 1}.*nominal=\['age'\]"):
        bind(forest, X[:3].assign(age=[WIDE + 1, 2, 3]), protocol)


# --- types against training -----------------------------------------------------------------------------------------


def zip_codes() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    codes = np.array(["01234", "10115", "20095"])[rng.integers(0, 3, 300)]
    X = pd.DataFrame({"zip": codes, "income": rng.normal(size=300), "member": rng.random(300) < 0.5, "rooms": 3})
    X["rooms"] = rng.integers(1, 6, 300)
    return X, ((codes == "10115") ^ (X["income"] > 0)).astype(int).to_numpy()


@pytest.fixture(scope="module", params=["transformed", "raw"])
def addresses(request):
    X, y = zip_codes()
    pre = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["zip", "member"]), remainder="passthrough")
    model = make_pipeline(pre, LogisticRegression()).fit(X, y)
    return model, X, Protocol.fit(model, X, space=request.param)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"zip": int},
            r"'zip' held text .* now it holds whole numbers \(for example 1234|10115|20095\).*leading zeros",
        ),
        ({"zip": float}, r"'zip' held text .* now it holds numbers .*dtype=\{'zip': str\}"),
        ({"income": str}, r"'income' held numbers .* now it holds text .*convert it to numbers"),
        ({"rooms": str}, r"'rooms' held whole numbers .* now it holds text"),
        ({"member": str}, r"'member' held true or false .* now it holds text .*convert it to True and False"),
        ({"rooms": "datetime64[ns]"}, r"'rooms' held whole numbers .* now it holds dates"),
    ],
    ids=str,
)
def test_fields_of_another_type_are_refused_by_name(addresses, change: dict, message: str) -> None:
    model, X, protocol = addresses
    with pytest.raises(DataError, match=message):
        bind(model, X[:30].astype(change), protocol)


def test_codes_trained_as_numbers_are_refused_as_text() -> None:
    X, y = zip_codes()
    X = X.astype({"zip": int, "member": int})
    pre = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["zip"]), remainder="passthrough")
    model = make_pipeline(pre, LogisticRegression()).fit(X, y)
    protocol = Protocol.fit(model, X)
    with pytest.raises(DataError, match=r"'zip' held whole numbers .* now it holds text"):
        bind(model, X[:3].astype({"zip": str}), protocol)


@pytest.mark.samples
@pytest.mark.parametrize(
    "change",
    [
        {"zip": object},
        {"zip": "string"},
        {"zip": "category"},
        {"income": "float32"},
        {"rooms": "float64"},
        {"rooms": "int8"},
        {"rooms": "Int64"},
        {"rooms": object},
        {"member": int},
        {"member": "boolean"},
        {"member": object},
    ],
    ids=str,
)
def test_harmless_differences_change_nothing(addresses, change: dict) -> None:
    model, X, protocol = addresses
    given = X[:30].assign(income=X["income"][:30].astype(np.float32))
    expected, got = bind(model, given, protocol), bind(model, given.astype(change), protocol)
    np.testing.assert_allclose(got.predict(got.dense()), expected.predict(expected.dense()), rtol=1e-6)
    certs = [fg.audit(model, table, protocol) for table in (given, given.astype(change))]
    assert certs[0].manifest.input.digest == certs[1].manifest.input.digest


def test_a_column_of_missing_values_has_no_type() -> None:
    X, y = zip_codes()
    pre = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["zip"]), remainder="passthrough")
    model = make_pipeline(pre, HistGradientBoostingClassifier(max_iter=5)).fit(X, y)
    for space in ("transformed", "raw"):
        protocol = Protocol.fit(model, X, space=space)
        for gap in (pd.Series([None] * 4, dtype=object), pd.Series([np.nan] * 4)):
            rows = bind(model, X[:4].assign(zip=gap, income=gap), protocol)
            assert rows.predict(rows.dense()).shape == (4, 2)


def test_whole_numbers_with_gaps_arrive_as_decimals() -> None:
    X, y = credit()
    numbers = X.drop(columns="purpose")
    booster = HistGradientBoostingClassifier(max_iter=10).fit(numbers, y)
    gappy = numbers[:40].astype({"age": float})
    gappy.loc[::4, "age"] = np.nan
    for space in ("raw", "transformed"):
        protocol = Protocol.fit(booster, numbers, space=space)
        rows = bind(booster, gappy, protocol)
        np.testing.assert_allclose(rows.predict(rows.dense()), booster.predict_proba(gappy), rtol=1e-12)
        alone = fg.audit(booster, gappy[1:2], protocol, engine="blackbox").to_pandas()
        together = fg.audit(booster, gappy, protocol, engine="blackbox").to_pandas()
        assert alone["digest"].iloc[0] == together["digest"].iloc[1]
    model = codes_as_text(numbers, y, ["existing_credits"])
    gappy = numbers[:40].astype({"existing_credits": float})
    gappy.loc[::4, "existing_credits"] = np.nan
    with pytest.raises(
        DataError, match=r"'existing_credits' held whole numbers .* decimals because values are missing"
    ):
        bind(model, gappy, Protocol.fit(model, numbers, space="raw", nominal=[]))


def test_fractions_among_whole_numbers_are_refused_where_cells_are_rounded() -> None:
    X, y = credit()
    numbers = X.drop(columns="purpose")
    forest = RandomForestClassifier(5, random_state=0).fit(numbers, y)
    half = numbers[:10].astype({"age": float}) + 0.5
    rows = bind(forest, half, Protocol.fit(forest, numbers, space="transformed"))
    np.testing.assert_array_equal(rows.predict(rows.dense()), forest.predict_proba(half))
    with pytest.raises(DataError, match=r"'(age|duration)' held whole numbers .* \(for example \d+\.5\); round it"):
        bind(forest, half, Protocol.fit(forest, numbers, space="raw"))


@pytest.mark.parametrize("values", [[3, 1, 2], [True, False, True], ["a", "b", "c"], [0.5, 1.5, 2.5]], ids=str)
@pytest.mark.parametrize("gap", [False, True])
def test_plain_values_that_arrive_as_categories_are_plain_again(values: list, gap: bool) -> None:
    seen = []

    def probabilities(frame):
        seen.append(frame)
        return np.tile([0.4, 0.6], (len(frame), 1))

    model = Model.wrap(probabilities, classes=["bad", "good"])
    X = pd.DataFrame({"field": values * 5, "x": 1.5})
    protocol = Protocol.fit(model, X, space="raw")
    given = X.astype({"field": "category"})
    if gap:
        given.loc[0, "field"] = None
    rows = bind(model, given, protocol)
    rows.predict(rows.dense())
    assert not isinstance(seen[-1]["field"].dtype, pd.CategoricalDtype)
    assert seen[-1]["field"].tolist()[1:] == X["field"].tolist()[1:]
    assert seen[-1]["field"].isna().tolist()[0] is gap


def test_categories_trained_natively_are_refused_as_text() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    X, y = credit()
    X = X.astype({"purpose": "category"})
    booster = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1).fit(X, y)
    protocol = Protocol.fit(booster, X)
    with pytest.raises(DataError, match=r"'purpose' was categorical .* now it is plain text; give it the training cat"):
        bind(booster, X[:3].astype({"purpose": object}), protocol)
    fewer = X[:3].assign(purpose=pd.Categorical(X["purpose"][:3].astype(str)))
    rows = bind(booster, fewer, protocol)
    np.testing.assert_allclose(rows.predict(rows.dense()), booster.predict_proba(X[:3]), rtol=1e-12)


def test_the_protocol_holds_the_types(addresses) -> None:
    _, _, protocol = addresses
    assert {f.name: f.type for f in protocol.fields} == {
        "zip": "text",
        "income": "number",
        "member": "boolean",
        "rooms": "integer",
    }
    assert Protocol.from_json(protocol.to_json()) == protocol
    document = protocol.to_dict()
    document["fields"] = [{**f, "type": "words"} for f in document["fields"]]
    with pytest.raises(FragilityError, match=r"fields.0.type in the protocol must be one of integer, number"):
        Protocol.from_dict(document)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["a", None], "text"),
        ([1, None], "integer"),
        ([1, 2.5], "number"),
        ([True, None], "boolean"),
        ([None, np.nan], "empty"),
        ([1, "a"], "mixed"),
        ([pd.Timestamp("2020-01-01"), None], "date"),
        ([pd.Timedelta("1D")], "duration"),
    ],
)
def test_types_of_columns_without_one_of_their_own(values: list, expected: str) -> None:
    assert type_of(pd.Series(values, dtype=object)) == expected


def test_types_of_categorical_and_arrow_columns() -> None:
    pa = pytest.importorskip("pyarrow")
    assert type_of(pd.Series(pd.Categorical([3, 1, 3]))) == "integer"
    assert type_of(pd.Series(pd.Categorical(["x", "y"]))) == "text"
    assert type_of(pd.Series(["x"], dtype=pd.ArrowDtype(pa.string()))) == "text"
    assert type_of(pd.Series([1], dtype=pd.ArrowDtype(pa.int64()))) == "integer"
    assert type_of(pd.Series([True], dtype=pd.ArrowDtype(pa.bool_()))) == "boolean"


# --- many values ----------------------------------------------------------------------------------------------------


class Counted(str):
    """A text that counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_texts_are_looked_up_and_not_searched_for() -> None:
    n = 3000
    X = pd.DataFrame({"id": pd.Series([Counted(f"row {i}") for i in range(n)], dtype=object), "x": np.arange(n) / n})
    model = Model.wrap(lambda frame: np.tile([0.4, 0.6], (len(frame), 1)), classes=["bad", "good"])
    protocol = Protocol.fit(model, X, space="raw")
    Counted.compared = 0
    bind(model, X, protocol)
    assert Counted.compared < 40 * n
