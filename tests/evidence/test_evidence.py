"""Which raw field does each column come from, what is the baseline, how is a cell moved: on real pipelines, by name."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import naive_cell
from pipelines import fitted, nominal_names, numeric_names, preprocessing, split
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer, make_column_selector, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.feature_selection import SelectKBest, VarianceThreshold
from sklearn.impute import IterativeImputer, KNNImputer, MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)

from fragility.base.errors import EvidenceError, FragilityError, FragilityWarning
from fragility.evidence import blend
from fragility.evidence.groups import association
from fragility.evidence.origins import choose_rows
from fragility.evidence.rows import read_rows
from fragility.models import Model
from fragility.protocol import Protocol, bind

NUMERIC = ["duration", "credit_amount", "age"]
NOMINAL = ["checking_status", "purpose", "foreign_worker"]


def credit(columns: list[str]) -> tuple[pd.DataFrame, pd.Series]:
    data = split("credit_g")
    return data.X_train[columns].copy(), data.y_train


def pipeline_of(transformer, X: pd.DataFrame, y) -> Pipeline:
    return make_pipeline(transformer, LogisticRegression(max_iter=300)).fit(X, y)


def groups_of(transformer, columns: list[str], y=None, X: pd.DataFrame | None = None) -> dict[str, list[str]]:
    """Return group -> columns of a protocol fitted through ``transformer`` on Credit-G."""
    own, target = credit(columns)
    X = own if X is None else X
    pipeline = pipeline_of(transformer, X, target if y is None else y)
    protocol = Protocol.fit(pipeline, X, space="transformed")
    names = {column.name for column in protocol.columns}
    assert names == {c for group in protocol.groups for c in group.columns}
    return {group.name: list(group.columns) for group in protocol.groups}


# --- one cell -------------------------------------------------------------------------------------------------------

cell = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.sampled_from([0.0, -0.0, 1.0, 1e-300]))
severity = st.one_of(st.floats(-0.5, 1.5), st.sampled_from([0.0, 0.5, 1.0, 0.1, 0.3]))


@given(cell, cell, severity, st.booleans())
@settings(max_examples=400, deadline=None)
def test_blend_equals_the_slow_twin_bit_for_bit(x: float, base: float, s: float, step: bool) -> None:
    step = step or math.isnan(base)
    moved = blend(np.array([[x]]), np.array([base]), np.array([[s]]), np.array([step]))[0, 0]
    expected = naive_cell(x, base, s, step)
    assert np.float64(moved).tobytes() == np.float64(expected).tobytes() or (math.isnan(moved) and math.isnan(expected))


@given(st.lists(cell, min_size=3, max_size=3), st.lists(cell, min_size=3, max_size=3))
@settings(max_examples=100, deadline=None)
def test_severity_zero_is_identity_and_one_is_the_baseline(x: list[float], base: list[float]) -> None:
    row, baseline = np.array([x]), np.array(base)
    step = np.isnan(baseline)
    np.testing.assert_array_equal(blend(row, baseline, 0.0, step), row)
    np.testing.assert_array_equal(blend(row, baseline, 1.0, step), baseline[None, :])


# --- tracing --------------------------------------------------------------------------------------------------------


def test_column_transformer_with_remainder_passthrough() -> None:
    found = groups_of(
        ColumnTransformer(
            [("scaled", StandardScaler(), ["age"]), ("hot", OneHotEncoder(), ["foreign_worker"])],
            remainder="passthrough",
        ),
        [*NUMERIC, "foreign_worker"],
    )
    assert found == {
        "age": ["scaled__age"],
        "foreign_worker": ["hot__foreign_worker_no", "hot__foreign_worker_yes"],
        "duration": ["remainder__duration"],
        "credit_amount": ["remainder__credit_amount"],
    }


def test_column_transformer_with_remainder_estimator_and_drop() -> None:
    found = groups_of(
        ColumnTransformer(
            [("gone", "drop", ["duration"]), ("kept", "passthrough", ["age"])], remainder=StandardScaler()
        ),
        NUMERIC,
    )
    assert found == {"age": ["kept__age"], "credit_amount": ["remainder__credit_amount"]}


@pytest.mark.parametrize(
    "selection",
    [
        ["age", "duration"],
        [2, 0],
        [-1, 0],
        make_column_selector(pattern="age|duration"),
        lambda X: ["duration", "age"],
        [True, False, True],
        np.array([True, False, True]),
        pd.Index(["age", "duration"]),
    ],
    ids=["names", "positions", "negative", "selector", "function", "mask", "array mask", "index"],
)
def test_column_selections_of_every_kind(selection) -> None:
    found = groups_of(ColumnTransformer([("s", StandardScaler(), selection)], remainder="passthrough"), NUMERIC)
    assert found == {
        "age": ["s__age"],
        "duration": ["s__duration"],
        "credit_amount": ["remainder__credit_amount"],
    }


def test_label_and_position_slices() -> None:
    by_label = groups_of(ColumnTransformer([("s", StandardScaler(), slice("duration", "credit_amount"))]), NUMERIC)
    assert by_label == {"duration": ["s__duration"], "credit_amount": ["s__credit_amount"]}
    by_position = groups_of(ColumnTransformer([("s", StandardScaler(), slice(0, 2))]), NUMERIC)
    assert by_position == by_label


def test_nested_pipelines_and_a_transformer_inside_a_transformer() -> None:
    inner = ColumnTransformer([("hot", OneHotEncoder(drop="first"), ["purpose"])], remainder="passthrough")
    found = groups_of(
        make_pipeline(
            make_pipeline(ColumnTransformer([("inner", inner, ["purpose", "age"])], remainder="drop"), "passthrough"),
            StandardScaler(with_mean=False),
        ),
        ["purpose", "age", "duration"],
    )
    assert set(found) == {"purpose", "age"}
    assert found["age"] == ["inner__remainder__age"]
    assert len(found["purpose"]) == split("credit_g").X_train["purpose"].nunique() - 1
    assert all("purpose_" in name for name in found["purpose"])


def test_a_column_used_twice_is_one_group() -> None:
    found = groups_of(
        ColumnTransformer(
            [("scaled", StandardScaler(), ["age"]), ("binned", KBinsDiscretizer(3, encode="onehot-dense"), ["age"])]
        ),
        ["age", "duration"],
    )
    assert list(found) == ["age"] and found["age"][0] == "scaled__age" and len(found["age"]) == 4


def test_feature_union() -> None:
    union = FeatureUnion([("scaled", StandardScaler()), ("same", "passthrough"), ("gone", "drop")])
    assert groups_of(union, ["duration", "age"]) == {
        "duration": ["scaled__duration", "same__duration"],
        "age": ["scaled__age", "same__age"],
    }


def test_feature_union_of_column_transformers() -> None:
    union = make_union(
        make_column_transformer((StandardScaler(), ["age"])),
        make_column_transformer((OneHotEncoder(sparse_output=False), ["foreign_worker"])),
    )
    found = groups_of(union, ["age", "foreign_worker"])
    assert {name: len(columns) for name, columns in found.items()} == {"age": 1, "foreign_worker": 2}


def expected_hot(field: str, **settings) -> list[str]:
    X, _ = credit([field])
    return list(OneHotEncoder(**settings).fit(X).get_feature_names_out())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"drop": "first"},
        {"drop": "if_binary"},
        {"min_frequency": 30},
        {"min_frequency": 0.05, "drop": "first"},
        {"max_categories": 3},
        {"max_categories": 3, "drop": "if_binary"},
        {"min_frequency": 30, "handle_unknown": "infrequent_if_exist"},
        {"min_frequency": 10**6},
        {"sparse_output": False, "dtype": np.float32},
    ],
    ids=str,
)
def test_one_hot_encoders_of_every_setting(settings: dict) -> None:
    found = groups_of(OneHotEncoder(**settings), NOMINAL)
    assert found == {field: expected_hot(field, **settings) for field in NOMINAL}
    if "min_frequency" in settings or "max_categories" in settings:
        assert any("infrequent" in name for name in found["purpose"])


def test_one_hot_with_dropped_categories_by_name() -> None:
    found = groups_of(OneHotEncoder(drop=["<0", "radio/tv", "yes"]), NOMINAL)
    assert found["foreign_worker"] == ["foreign_worker_no"]
    assert "purpose_radio/tv" not in found["purpose"] and "checking_status_<0" not in found["checking_status"]


def test_ordinal_encoder_columns_are_nominal() -> None:
    X, y = credit([*NOMINAL, "age"])
    pipeline = pipeline_of(ColumnTransformer([("code", OrdinalEncoder(), NOMINAL)], remainder="passthrough"), X, y)
    protocol = Protocol.fit(pipeline, X)
    assert [(c.name, c.kind) for c in protocol.columns] == [
        ("code__checking_status", "nominal"),
        ("code__purpose", "nominal"),
        ("code__foreign_worker", "nominal"),
        ("remainder__age", "numeric"),
    ]
    assert protocol.group_names == (*NOMINAL, "age")
    assert [f.kind for f in protocol.fields] == ["nominal"] * 3 + ["numeric"]


def test_target_encoder_binary_and_multiclass() -> None:
    assert groups_of(TargetEncoder(), NOMINAL) == {name: [name] for name in NOMINAL}
    classes = sorted(split("credit_g").X_train["property_magnitude"].unique())
    found = groups_of(TargetEncoder(), NOMINAL, y=split("credit_g").X_train["property_magnitude"])
    assert found == {name: [f"{name}_{label}" for label in classes] for name in NOMINAL}


def with_gaps(columns: list[str]) -> pd.DataFrame:
    X, _ = credit(columns)
    X = X.astype({name: float for name in columns})
    X.iloc[::7, 0] = np.nan
    X.iloc[::11, 2] = np.nan
    return X


def test_simple_imputer_with_indicators() -> None:
    X = with_gaps(NUMERIC)
    found = groups_of(make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), NUMERIC, X=X)
    assert found == {
        "duration": ["duration", "missingindicator_duration"],
        "credit_amount": ["credit_amount"],
        "age": ["age", "missingindicator_age"],
    }


def test_missing_indicator_by_itself() -> None:
    X = with_gaps(NUMERIC)
    union = make_union(SimpleImputer(), MissingIndicator())
    found = groups_of(union, NUMERIC, X=X)
    assert {name: len(columns) for name, columns in found.items()} == {"duration": 2, "credit_amount": 1, "age": 2}


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("strategy", ["mean", "constant", "most_frequent"])
@pytest.mark.filterwarnings("ignore:Skipping features without any observed values")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_imputer_on_a_field_without_any_value(strategy: str, keep: bool) -> None:
    X = with_gaps(NUMERIC).assign(credit_amount=np.nan)
    imputer = SimpleImputer(strategy=strategy, keep_empty_features=keep, add_indicator=True)
    names = list(SimpleImputer(**imputer.get_params()).fit(X).get_feature_names_out())
    found = groups_of(imputer, NUMERIC, X=X)
    assert sorted(column for columns in found.values() for column in columns) == sorted(names)
    for field, columns in found.items():
        assert all(column in (field, f"missingindicator_{field}") for column in columns)


@pytest.mark.parametrize("encode", ["ordinal", "onehot", "onehot-dense"])
def test_k_bins(encode: str) -> None:
    found = groups_of(KBinsDiscretizer(4, encode=encode, quantile_method="averaged_inverted_cdf"), NUMERIC)
    width = 1 if encode == "ordinal" else 4
    assert {name: len(columns) for name, columns in found.items()} == dict.fromkeys(NUMERIC, width)
    for field, columns in found.items():
        assert all(column.startswith(field) for column in columns)


def test_selectors_keep_the_fields_of_the_kept_columns() -> None:
    X, y = credit([*NUMERIC, "foreign_worker"])
    pre = ColumnTransformer([("n", StandardScaler(), NUMERIC), ("c", OneHotEncoder(), ["foreign_worker"])])
    pipeline = make_pipeline(pre, VarianceThreshold(0.5), LogisticRegression()).fit(X, y)
    assert Protocol.fit(pipeline, X).group_names == tuple(NUMERIC)
    best = make_pipeline(pre, SelectKBest(k=2), LogisticRegression()).fit(X, y)
    names = best[:-1].get_feature_names_out()
    protocol = Protocol.fit(best, X)
    assert [c.name for c in protocol.columns] == list(names)


def test_polynomial_columns_of_one_field() -> None:
    pre = ColumnTransformer([("p", PolynomialFeatures(3, include_bias=False), ["age"])], remainder="passthrough")
    found = groups_of(pre, ["age", "duration"])
    assert found == {"age": ["p__age", "p__age^2", "p__age^3"], "duration": ["remainder__duration"]}


def test_polynomial_bias_column_lies_with_a_field_and_moves_nothing() -> None:
    found = groups_of(PolynomialFeatures(2), ["age"])
    assert found == {"age": ["1", "age", "age^2"]}


def test_polynomial_of_several_fields_is_refused_with_names() -> None:
    with pytest.raises(EvidenceError, match=r"'duration age' from duration, age; declare groups=.*space='raw'"):
        groups_of(PolynomialFeatures(2, include_bias=False), ["duration", "age"])


def test_polynomial_of_several_fields_works_with_a_map_that_keeps_them_together() -> None:
    X, y = credit(NUMERIC)
    pre = make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False, interaction_only=True))
    pipeline = pipeline_of(pre, X, y)
    with pytest.raises(EvidenceError, match=r"'duration', 'credit_amount'.*different groups 'loan', 'person'"):
        Protocol.fit(pipeline, X, groups={"loan": ["duration"], "person": ["credit_amount", "age"]})
    protocol = Protocol.fit(pipeline, X, groups={"all": NUMERIC})
    assert protocol.group_names == ("all",) and len(protocol.groups[0].columns) == 6


def test_rows_scaled_to_unit_length_are_refused_with_names() -> None:
    """One column a field, by name; but each is divided by the length of the whole row."""
    with pytest.raises(
        EvidenceError, match=r"3 column\(s\) are made from several raw fields.*'duration' from duration, "
    ):
        groups_of(make_pipeline(StandardScaler(), Normalizer()), NUMERIC)


@pytest.mark.parametrize("imputer", [KNNImputer(add_indicator=True), IterativeImputer(add_indicator=True)])
def test_imputers_that_guess_from_the_other_columns_make_each_of_all_fields(imputer) -> None:
    X, y = with_gaps(NUMERIC), credit(NUMERIC)[1]
    protocol = Protocol.fit(pipeline_of(imputer, X, y), X, space="transformed", groups={"all": NUMERIC})
    filled = {name: tuple(NUMERIC) for name in NUMERIC}
    flags = {f"missingindicator_{name}": (name,) for name in ("duration", "age")}
    assert {column.name: column.fields for column in protocol.inputs} == filled | flags
    with pytest.raises(EvidenceError, match=r"3 column\(s\) are made from several raw fields.*space='raw'"):
        groups_of(imputer, NUMERIC, X=X)


@pytest.mark.parametrize("imputer", [KNNImputer(), IterativeImputer()])
def test_columns_of_several_fields_bring_the_raw_space_where_no_space_is_declared(imputer) -> None:
    X, y = with_gaps(NUMERIC), credit(NUMERIC)[1]
    with pytest.warns(FragilityWarning, match=r"raw fields.*space='raw'.*3 columns.*'duration' from 'duration', 'cred"):
        protocol = Protocol.fit(pipeline_of(imputer, X, y), X)
    assert protocol.space == "raw" and protocol.group_names == tuple(NUMERIC)
    assert {column.name: column.fields for column in protocol.inputs} == {name: tuple(NUMERIC) for name in NUMERIC}


def test_nominal_fields_filled_before_they_are_encoded() -> None:
    X, y = credit([*NOMINAL, "age"])
    X = X.astype({name: object for name in NOMINAL})
    X.loc[::6, "purpose"] = None
    filled = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="missing", missing_values=None), OneHotEncoder()
    )
    pre = ColumnTransformer([("c", filled, NOMINAL), ("n", PowerTransformer(), ["age"])])
    protocol = Protocol.fit(pipeline_of(pre, X, y), X)
    assert protocol.group_names == (*NOMINAL, "age")
    assert "c__purpose_missing" in protocol.groups[1].columns


def test_pca_is_refused_with_names() -> None:
    with pytest.raises(EvidenceError, match=r"2 column\(s\) are made from several raw fields.*'pca0' from dur"):
        groups_of(make_pipeline(StandardScaler(), PCA(2)), NUMERIC)


def test_spline_columns_are_traced_by_name() -> None:
    found = groups_of(SplineTransformer(n_knots=3), ["duration", "age"])
    assert set(found) == {"duration", "age"}
    assert all(column.startswith(f"{field}_sp_") for field, columns in found.items() for column in columns)


def test_function_transformer_where_names_allow() -> None:
    named = FunctionTransformer(np.log1p, feature_names_out="one-to-one")
    assert groups_of(named, ["duration", "age"]) == {"duration": ["duration"], "age": ["age"]}
    assert set(groups_of(FunctionTransformer(), ["duration", "age"])) == {"duration", "age"}
    frames = FunctionTransformer(lambda X: X.rename(columns=lambda c: f"{c}_log"), feature_names_out=None)
    with pytest.raises(
        EvidenceError, match=r"does not name its output columns.*duration, age.*one-to-one.*space='raw'"
    ):
        groups_of(frames, ["duration", "age"])


class Ratio(TransformerMixin, BaseEstimator):
    """Makes one column from two and one from one, and names them as people do."""

    def fit(self, X, y=None):
        self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return np.column_stack([X["age"] / X["duration"], X["age"] ** 2, X["duration"] * 2.0])

    def get_feature_names_out(self, input_features=None):
        return np.array(["age_duration_ratio", "age_squared", "duration"], dtype=object)


def test_names_decide_only_without_doubt() -> None:
    """'age_duration_ratio' starts with 'age', yet another field's name is in it: it belongs to no single field."""
    with pytest.raises(EvidenceError, match=r"'age_duration_ratio' from (age, duration|duration, age)"):
        groups_of(Ratio(), ["duration", "age"])


class Renamed(Ratio):
    """Computes one column from two fields and keeps the name of one of them."""

    def transform(self, X):
        return np.column_stack([X["age"], X["credit_amount"] / (1.0 + X["duration"])])

    def get_feature_names_out(self, input_features=None):
        return np.array(["age", self.name], dtype=object)

    def __init__(self, name: str = "credit_amount") -> None:
        self.name = name


@pytest.mark.parametrize("name", ["credit_amount", "credit_amount_scaled"])
def test_a_column_that_moves_with_a_field_comes_from_it_whatever_its_name(name: str) -> None:
    with pytest.raises(
        EvidenceError, match=rf"1 column\(s\) are made from several raw fields.*'{name}' from duration, credit_amount"
    ):
        groups_of(Renamed(name), NUMERIC)
    scaled = ColumnTransformer(
        [("r", make_pipeline(StandardScaler().set_output(transform="pandas"), Renamed(name)), NUMERIC)]
    )
    with pytest.raises(EvidenceError, match=r"from duration, credit_amount"):
        groups_of(scaled, NUMERIC)


def test_such_a_column_is_kept_where_its_fields_form_one_group() -> None:
    X, y = credit(NUMERIC)
    pipeline = pipeline_of(Renamed(), X, y)
    protocol = Protocol.fit(pipeline, X, groups={"loan": ["duration", "credit_amount"], "age": ["age"]})
    assert {group.name: group.columns for group in protocol.groups} == {"loan": ("credit_amount",), "age": ("age",)}


@pytest.mark.parametrize("container", ["pandas", "polars", "array"])
def test_a_function_said_to_be_one_to_one_is_tried(container: str) -> None:
    def of_the_row(X):
        return X / X.sum(axis=1, keepdims=True)

    def of_each_cell(X):
        return X / 10.0

    X, y = credit(NUMERIC)
    rows = X.to_numpy(dtype=float)
    if container == "pandas":
        rows = X.astype(float)
    elif container == "polars":
        rows = pytest.importorskip("polars").from_pandas(X.astype(float))
    mixing, plain = (
        FunctionTransformer(f, feature_names_out="one-to-one", validate=True) for f in (of_the_row, of_each_cell)
    )
    with pytest.raises(EvidenceError, match=r"3 column\(s\) are made from several raw fields"):
        Protocol.fit(pipeline_of(mixing, rows, y), rows, space="transformed")
    assert len(Protocol.fit(pipeline_of(plain, rows, y), rows, space="transformed").groups) == 3


def test_the_rows_on_which_claims_are_tried_do_not_depend_on_their_order() -> None:
    X, _ = credit([*NUMERIC, *NOMINAL])
    shuffled = X.sample(frac=1.0, random_state=1)
    one, two = (choose_rows(read_rows(rows)).frame.reset_index(drop=True) for rows in (X, shuffled))
    pd.testing.assert_frame_equal(one, two)
    assert len(one) == 64


class Suffix(Ratio):
    def transform(self, X):
        return X.to_numpy(dtype=float)

    def get_feature_names_out(self, input_features=None):
        return np.array([f"{name}_x" for name in self.feature_names_in_], dtype=object)


class Noisy(Suffix):
    def transform(self, X):
        return X.to_numpy(dtype=float) + np.random.default_rng().normal(size=X.shape)


def test_preprocessing_that_answers_differently_twice_is_refused() -> None:
    with pytest.raises(EvidenceError, match=r"\(Noisy\) gives different columns for the same row.*each row by itself"):
        groups_of(Noisy(), ["duration", "age"])


def test_the_longest_name_wins() -> None:
    X, y = credit(["age", "duration"])
    X = X.rename(columns={"duration": "age_group"})
    protocol = Protocol.fit(pipeline_of(Suffix(), X, y), X)
    assert {g.name: list(g.columns) for g in protocol.groups} == {"age": ["age_x"], "age_group": ["age_group_x"]}


def test_bare_arrays_get_positional_names() -> None:
    X, y = credit(NUMERIC)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X.to_numpy(dtype=float), y)
    protocol = Protocol.fit(pipeline, X.to_numpy(dtype=float))
    assert protocol.group_names == ("x0", "x1", "x2")


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_set_output(container: str) -> None:
    if container == "polars":
        pytest.importorskip("polars")
    X, y = credit([*NUMERIC, *NOMINAL])
    pre = ColumnTransformer(
        [("n", StandardScaler(), NUMERIC), ("c", OneHotEncoder(sparse_output=False), NOMINAL)],
        verbose_feature_names_out=False,
    ).set_output(transform=container)
    protocol = Protocol.fit(pipeline := pipeline_of(pre, X, y), X)
    assert protocol.group_names == (*NUMERIC, *NOMINAL)
    rows = bind(pipeline, X[:20], protocol)
    np.testing.assert_array_equal(rows.predict(rows.dense()), Model.wrap(pipeline).probabilities(X[:20]))


# --- sparse ---------------------------------------------------------------------------------------------------------


def test_sparse_output_stays_sparse_and_gives_the_same_baseline() -> None:
    data = split("credit_g")
    made = {}
    for sparse in (True, False):
        pipeline = Pipeline(
            [("p", preprocessing(data.X_train, sparse=sparse)), ("m", LogisticRegression(max_iter=300))]
        )
        pipeline.fit(data.X_train, data.y_train)
        assert sp.issparse(pipeline[:-1].transform(data.X_train[:2])) is sparse
        for baseline in ("mean", "median", "typical", "zero"):
            protocol = Protocol.fit(pipeline, data.X_train, baseline=baseline)
            made[sparse, baseline] = np.array([c.baseline for c in protocol.columns], dtype=float)
        rows = bind(pipeline, data.X_test[:30], protocol)
        assert sp.issparse(rows.matrix) is sparse
        made[sparse, "rows"] = rows.dense()
        made[sparse, "p"] = rows.predict(rows.dense())
    for kind in ("mean", "median", "typical", "zero", "rows"):
        np.testing.assert_allclose(made[True, kind], made[False, kind], atol=1e-12, err_msg=kind)
    np.testing.assert_allclose(made[True, "p"], made[False, "p"], atol=1e-4)


# --- group maps -----------------------------------------------------------------------------------------------------


BLOCKS = {"loan": ["duration", "credit_amount", "purpose"], "person": ["age", "foreign_worker", "checking_status"]}


@pytest.fixture(scope="module")
def mixed() -> tuple[Pipeline, pd.DataFrame]:
    X, y = credit([*NUMERIC, *NOMINAL])
    return pipeline_of(ColumnTransformer([("n", StandardScaler(), NUMERIC), ("c", OneHotEncoder(), NOMINAL)]), X, y), X


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_group_maps_in_both_directions(mixed, space: str) -> None:
    pipeline, X = mixed
    by_block = Protocol.fit(pipeline, X, groups=BLOCKS, space=space)
    by_field = Protocol.fit(
        pipeline, X, groups={f: block for block, fields in BLOCKS.items() for f in fields}, space=space
    )
    assert by_block.groups == by_field.groups
    assert by_block.group_names == ("loan", "person") and by_block.grouping == "declared"
    loan = by_block.groups[0].columns
    if space == "raw":
        assert set(loan) == set(BLOCKS["loan"])
    else:
        assert {"n__duration", "n__credit_amount"} < set(loan) and "n__age" not in loan
        assert sum(name.startswith("c__purpose_") for name in loan) == X["purpose"].nunique()


def test_group_maps_over_columns_instead_of_fields(mixed) -> None:
    pipeline, X = mixed
    names = [c.name for c in Protocol.fit(pipeline, X).columns]
    protocol = Protocol.fit(pipeline, X, groups={"first": names[:4], "rest": names[4:]})
    assert [len(g.columns) for g in protocol.groups] == [4, len(names) - 4]


def test_group_map_from_a_file(mixed, tmp_path) -> None:
    pipeline, X = mixed
    path = tmp_path / "blocks.json"
    path.write_text(
        '{"loan": ["duration", "credit_amount", "purpose"], "person": ["age", "foreign_worker", "checking_status"]}'
    )
    assert Protocol.fit(pipeline, X, groups=path).groups == Protocol.fit(pipeline, X, groups=BLOCKS).groups
    assert Protocol.fit(pipeline, X, groups=str(path)).group_names == ("loan", "person")
    path.write_text("{not json")
    with pytest.raises(EvidenceError, match=r"blocks.json' is not valid JSON"):
        Protocol.fit(pipeline, X, groups=path)
    with pytest.raises(EvidenceError, match=r"'raw-origin', 'merged', a map or a JSON file; cannot read 'domain'"):
        Protocol.fit(pipeline, X, groups="domain")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loan": [*BLOCKS["loan"], "age"]}, "puts 'age' into both 'loan' and 'person'"),
        (
            {"loan": ["duration", "purpose"], "person": ["age"], "credit_amount": ["foreign_worker"]},
            "has a group 'credit_amount', but does not say where the field 'credit_amount' belongs",
        ),
        ({"loan": [*BLOCKS["loan"], "salary"]}, "names 'salary', which is not among the fields 'duration'"),
        ({"loan": 3}, "'loan'"),
    ],
    ids=["overlap", "a group named like a field", "unknown", "not a list"],
)
@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_group_maps_that_are_no_partition_are_refused(mixed, change: dict, message: str, space: str) -> None:
    pipeline, X = mixed
    with pytest.raises(EvidenceError, match=message):
        Protocol.fit(pipeline, X, groups={**BLOCKS, **change}, space=space)


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_fields_that_a_group_map_does_not_list_are_groups_of_their_own(mixed, space: str) -> None:
    pipeline, X = mixed
    some = Protocol.fit(pipeline, X, groups={"loan": ["duration", "purpose"]}, space=space)
    alone = {name: name for name in ("credit_amount", "age", "checking_status", "foreign_worker")}
    every = Protocol.fit(pipeline, X, groups={"duration": "loan", "purpose": "loan", **alone}, space=space)
    assert {group.name: group.columns for group in some.groups} == {group.name: group.columns for group in every.groups}
    assert some.groups[0].name == "loan" and len(some.groups) == 5
    columns = [column for group in some.groups for column in group.columns]
    assert sorted(columns) == sorted(column.name for column in some.columns)  # none left out, none twice


def test_a_merged_group_does_not_take_the_name_of_a_field() -> None:
    first = np.random.default_rng(0).normal(size=60)
    frame = pd.DataFrame({"a": first, "b": 2 * first, "a+b": np.roll(first, 7) ** 2})
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(frame, first > 0)
    protocol = Protocol.fit(pipeline, frame, groups="merged", merge_threshold=0.95)
    assert {group.name: len(group.columns) for group in protocol.groups} == {"a+b (merged)": 2, "a+b": 1}


def test_merged_groups_join_what_goes_together(mixed) -> None:
    _, X = mixed
    y = split("credit_g").y_train
    X = X.assign(
        months=X["duration"] * 30.0 + 1,  # rank correlation 1
        goal=X["purpose"].map({name: f"g{i}" for i, name in enumerate(sorted(X["purpose"].unique()))}),  # V = 1
        level=X["checking_status"].map(
            {name: float(i) for i, name in enumerate(sorted(X["checking_status"].unique()))}
        ),
    )
    numeric, nominal = numeric_names(X), nominal_names(X)
    pipeline = pipeline_of(ColumnTransformer([("n", StandardScaler(), numeric), ("c", OneHotEncoder(), nominal)]), X, y)
    protocol = Protocol.fit(pipeline, X, groups="merged", merge_threshold=0.95)
    assert protocol.grouping == "merged at 0.95"
    members = {frozenset(g.name.split("+")) for g in protocol.groups}
    assert members == {
        frozenset({"duration", "months"}),
        frozenset({"purpose", "goal"}),
        frozenset({"checking_status", "level"}),
        frozenset({"credit_amount"}),
        frozenset({"age"}),
        frozenset({"foreign_worker"}),
    }
    looser = Protocol.fit(pipeline, X, groups="merged", merge_threshold=0.6)
    assert any({"duration", "credit_amount", "months"} <= set(g.name.split("+")) for g in looser.groups)
    with pytest.raises(EvidenceError, match=r"merge_threshold must lie in \(0, 1\], got 1.5"):
        Protocol.fit(pipeline, X, groups="merged", merge_threshold=1.5)


def test_association_against_its_definitions() -> None:
    X = split("credit_g").X_train
    a, b = X["duration"], X["credit_amount"]
    ranks = np.corrcoef(a.rank(), b.rank())[0, 1]
    assert association(a, "numeric", b, "numeric") == pytest.approx(abs(ranks), rel=1e-9)
    c, d = X["housing"], X["property_magnitude"]
    table = pd.crosstab(c, d).to_numpy(dtype=float)
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    chi2 = ((table - expected) ** 2 / expected).sum()
    v = math.sqrt(chi2 / table.sum() / (min(table.shape) - 1))
    assert association(c, "nominal", d, "nominal") == pytest.approx(v, rel=1e-9)
    means = a.groupby(c).mean()
    between = sum(int((c == k).sum()) * (m - a.mean()) ** 2 for k, m in means.items())
    eta = math.sqrt(between / ((a - a.mean()) ** 2).sum())
    assert association(c, "nominal", a, "numeric") == pytest.approx(eta, rel=1e-9)
    assert association(a, "numeric", c, "nominal") == pytest.approx(eta, rel=1e-9)
    constant = pd.Series(1.0, index=a.index)
    assert association(a, "numeric", constant, "numeric") == 0.0


# --- baselines ------------------------------------------------------------------------------------------------------


def baseline_of(protocol: Protocol) -> dict[str, object]:
    return {column.name: column.baseline for column in protocol.columns}


def test_transformed_baselines_against_the_training_matrix(mixed) -> None:
    pipeline, X = mixed
    matrix = sp.csr_matrix(pipeline[:-1].transform(X)).toarray()
    names = list(pipeline[:-1].get_feature_names_out())
    for kind, expected in (("mean", matrix.mean(axis=0)), ("zero", np.zeros(len(names)))):
        protocol = Protocol.fit(pipeline, X, baseline=kind)
        assert protocol.baseline == kind
        assert protocol.artificial == tuple(name for name in X if name in NOMINAL)
        np.testing.assert_allclose([baseline_of(protocol)[n] for n in names], expected, atol=1e-12)
    for kind, numbers in (("typical", matrix.mean(axis=0)), ("median", np.median(matrix, axis=0))):
        protocol = Protocol.fit(pipeline, X, baseline=kind)
        assert protocol.artificial == ()
        for j, name in enumerate(names):
            if name.startswith("n__"):
                assert baseline_of(protocol)[name] == pytest.approx(numbers[j], abs=1e-12)
            else:
                field = next(f for f in NOMINAL if name.startswith(f"c__{f}_"))
                most = Counter(X[field]).most_common(1)[0][0]
                assert baseline_of(protocol)[name] == (1.0 if name == f"c__{field}_{most}" else 0.0)


@pytest.mark.parametrize("decimals", [True, False])
def test_raw_baselines_against_the_training_table(mixed, decimals: bool) -> None:
    """A field of whole numbers takes the nearest whole number; held as decimals, only its typical value is whole."""
    pipeline, X = mixed
    X = X.astype({"age": float}) if decimals else X
    most = {field: Counter(X[field]).most_common(1)[0][0] for field in NOMINAL}
    for kind, number in (
        ("mean", X["age"].mean()),
        ("median", X["age"].median()),
        ("zero", 0.0),
        ("typical", X["age"].mean()),
    ):
        protocol = Protocol.fit(pipeline, X, baseline=kind, space="raw")
        values = baseline_of(protocol)
        assert protocol.artificial == ()  # there is no mean of a raw category
        whole = kind == "typical" or not decimals
        assert values["age"] == (round(number) if whole else pytest.approx(number, rel=1e-11))
        assert {field: values[field] for field in NOMINAL} == most


def test_spreads_are_training_deviations_of_quantities_only(mixed) -> None:
    pipeline, X = mixed
    for space in ("transformed", "raw"):
        protocol = Protocol.fit(pipeline, X, space=space)
        for column in protocol.columns:
            if column.kind == "nominal":
                assert column.spread is None
            else:
                field = column.name.removeprefix("n__")
                expected = 1.0 if space == "transformed" else X[field].std(ddof=0)
                assert column.spread == pytest.approx(expected, rel=1e-9)


def test_missing_baseline_where_the_model_accepts_it() -> None:
    for family in ("lightgbm", "xgboost", "hist_gradient_boosting"):
        case = fitted("credit_g", family, "raw")
        protocol = Protocol.fit(case.model, case.X_train, baseline="missing")
        assert protocol.space == "raw"
        assert all(value is None for value in baseline_of(protocol).values())
        rows = bind(case.model, case.X_test[:5], protocol)
        assert rows.stepwise.all()
        everything = case.X_test[:1].copy()
        for name in everything.columns:
            everything[name] = pd.Series([None], dtype=everything[name].dtype)
        np.testing.assert_allclose(
            rows.predict(rows.baseline[None, :]), case.model.predict_proba(everything), atol=1e-6, err_msg=family
        )


def test_explicit_baselines(mixed) -> None:
    pipeline, X = mixed
    d = len(Protocol.fit(pipeline, X).columns)
    vector = np.linspace(-1, 1, d)
    protocol = Protocol.fit(pipeline, X, baseline=vector, baseline_units="transformed")
    assert protocol.baseline == "explicit"
    assert [c.baseline for c in protocol.columns] == vector.tolist()
    row = X.iloc[[5]]
    through = Protocol.fit(pipeline, X, baseline=row)  # a raw row goes through the preprocessing
    hot = pipeline[:-1].transform(row)
    np.testing.assert_allclose(
        [c.baseline for c in through.columns], np.ravel(hot.toarray() if sp.issparse(hot) else hot)
    )
    raw = Protocol.fit(pipeline, X, baseline=row.iloc[0].to_dict(), space="raw")
    assert baseline_of(raw) == {n: (float(v) if n in NUMERIC else v) for n, v in row.iloc[0].to_dict().items()}


@pytest.mark.parametrize("given", ["series", "mapping", "vector", "table"])
def test_explicit_baselines_are_in_raw_units_whatever_the_preprocessing_names_its_columns(given: str) -> None:
    X, y = credit(NUMERIC)
    middle = X.median() + 0.5
    baseline = {"series": middle, "mapping": dict(middle), "vector": list(middle), "table": middle.to_frame().T}[given]
    plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)  # its columns are named as the fields
    named = pipeline_of(ColumnTransformer([("n", StandardScaler(), NUMERIC)]), X, y)
    expected = (middle.to_numpy() - X.mean().to_numpy()) / X.std(ddof=0).to_numpy()
    for pipeline in (plain, named):
        protocol = Protocol.fit(pipeline, X, baseline=baseline)
        np.testing.assert_allclose([c.baseline for c in protocol.columns], expected, rtol=1e-9)
    said = Protocol.fit(plain, X, baseline=baseline, baseline_units="transformed")
    assert [c.baseline for c in said.columns] == list(middle)


def test_values_in_transformed_units_must_be_said(mixed) -> None:
    pipeline, X = mixed
    names = [c.name for c in Protocol.fit(pipeline, X).columns]
    remedy = r"one per raw field, or add baseline_units='transformed'"
    for baseline in (dict.fromkeys(names, 0.25), np.full(len(names), 0.25)):
        with pytest.raises(EvidenceError, match=remedy):
            Protocol.fit(pipeline, X, baseline=baseline)
        said = Protocol.fit(pipeline, X, baseline=baseline, baseline_units="transformed")
        assert set(baseline_of(said).values()) == {0.25}
    with pytest.raises(EvidenceError, match=r"needs \d+ values, one per transformed column, got 3"):
        Protocol.fit(pipeline, X, baseline=[1.0, 2.0, 3.0], baseline_units="transformed")
    with pytest.raises(EvidenceError, match=r"in the raw space the baseline is in raw units"):
        Protocol.fit(pipeline, X, baseline=dict.fromkeys(names, 0.25), baseline_units="transformed", space="raw")
    with pytest.raises(EvidenceError, match=r"baseline_units must be one of raw, transformed, got 'metric'"):
        Protocol.fit(pipeline, X, baseline=X.iloc[[0]], baseline_units="metric")
    with pytest.raises(EvidenceError, match=r"the baseline 'typical' is fitted: leave baseline_units out"):
        Protocol.fit(pipeline, X, baseline_units="transformed")


def test_without_preprocessing_both_units_are_the_same() -> None:
    X, y = credit(NUMERIC)
    model = LogisticRegression(max_iter=500).fit(X, y)
    values = {"duration": 12, "credit_amount": 1000.5, "age": 40}
    one, other = (Protocol.fit(model, X, baseline=values, baseline_units=units) for units in ("raw", "transformed"))
    assert one == other and baseline_of(one) == values


def test_an_explicit_baseline_has_the_types_of_the_fields(mixed) -> None:
    pipeline, X = mixed
    row = X.iloc[0].to_dict()
    with pytest.raises(EvidenceError, match=r"does not fit the training data: column 'purpose' held text"):
        Protocol.fit(pipeline, X, baseline={**row, "purpose": 7})
    with pytest.raises(EvidenceError, match=r"'age' must be a whole number, as in the training data, got 35.5"):
        Protocol.fit(pipeline, X, baseline={**row, "age": 35.5}, space="raw")
    halfway = Protocol.fit(pipeline, X, baseline={**row, "age": 35.5})
    assert baseline_of(halfway)["n__age"] == pytest.approx((35.5 - X["age"].mean()) / X["age"].std(ddof=0))


def test_explicit_baselines_of_polars_tables_go_through_as_polars() -> None:
    polars = pytest.importorskip("polars")
    X, y = credit([*NUMERIC, *NOMINAL])
    pre = ColumnTransformer([("n", StandardScaler(), NUMERIC), ("c", OneHotEncoder(sparse_output=False), NOMINAL)])
    pipeline = pipeline_of(pre, X, y)
    expected = baseline_of(Protocol.fit(pipeline, X, baseline=X.iloc[[7]]))
    assert baseline_of(Protocol.fit(pipeline, polars.from_pandas(X), baseline=polars.from_pandas(X)[7])) == expected


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ("average", "baseline must be one of typical, mean, median, zero, missing or explicit values, got 'average'"),
        ([1.0, 2.0], "needs 6 values, one per raw field, got 2"),
        ({"age": 1.0}, "must name each raw field once"),
        ("two rows", "exactly one row, got 2"),
        ("infinite", "'age' must be finite, got inf"),
        ("text", "'age' must be a number, got 'old'"),
    ],
)
def test_baselines_that_cannot_be_are_refused(mixed, baseline, message: str) -> None:
    pipeline, X = mixed
    given_row = X.iloc[0].to_dict()
    baseline = (
        {
            "two rows": X[:2],
            "infinite": {**given_row, "age": math.inf},
            "text": {**given_row, "age": "old"},
        }.get(baseline, baseline)
        if isinstance(baseline, str)
        else baseline
    )
    with pytest.raises(EvidenceError, match=message):
        Protocol.fit(pipeline, X, baseline=baseline, space="raw")


def test_number_codes_declared_nominal_are_not_interpolated() -> None:
    X, y = credit(["duration", "existing_credits", "residence_since"])
    forest = RandomForestClassifier(10, random_state=0).fit(X, y)
    protocol = Protocol.fit(forest, X, space="raw", nominal=["existing_credits"])
    kinds = {c.name: c.kind for c in protocol.columns}
    assert kinds == {"duration": "numeric", "existing_credits": "nominal", "residence_since": "numeric"}
    assert baseline_of(protocol)["existing_credits"] == Counter(X["existing_credits"]).most_common(1)[0][0]
    rows = bind(forest, X[:10], protocol)
    assert rows.stepwise.tolist() == [False, True, False]
    np.testing.assert_array_equal(rows.predict(rows.dense()), forest.predict_proba(X[:10]))
    with pytest.raises(FragilityError, match=r"nominal names 'zip', which is not a column"):
        Protocol.fit(forest, X, space="raw", nominal=["zip"])


def test_number_codes_may_take_a_missing_baseline() -> None:
    X, y = credit(["duration", "existing_credits"])
    booster = fitted("credit_g", "lightgbm", "raw").model.__class__(n_estimators=10, verbose=-1, n_jobs=1).fit(X, y)
    protocol = Protocol.fit(booster, X, space="raw", nominal=["existing_credits"], baseline="missing")
    rows = bind(booster, X[:10], protocol)
    mixed_rows = rows.dense()
    mixed_rows[:5] = rows.baseline
    expected = X[:10].astype(float)
    expected[:5] = np.nan
    np.testing.assert_allclose(rows.predict(mixed_rows), booster.predict_proba(expected), rtol=1e-12)


# --- spaces ---------------------------------------------------------------------------------------------------------


def test_space_is_chosen_by_what_the_estimator_is_handed() -> None:
    for family in ("logistic", "random_forest", "lightgbm"):
        case = fitted("credit_g", family, "transformed")
        assert Protocol.fit(case.model, case.X_train).space == "transformed"
    for family in ("lightgbm", "xgboost", "catboost", "hist_gradient_boosting"):
        case = fitted("credit_g", family, "raw")
        assert Protocol.fit(case.model, case.X_train).space == "raw"
        with pytest.raises(FragilityError, match=r"space='raw'"):
            Protocol.fit(case.model, case.X_train, space="transformed")
    with pytest.raises(FragilityError, match=r"space must be one of transformed, raw, got 'latent'"):
        Protocol.fit(case.model, case.X_train, space="latent")


@pytest.mark.samples
@pytest.mark.parametrize("family", ["lightgbm", "xgboost", "catboost", "hist_gradient_boosting", "logistic", "mlp"])
@pytest.mark.parametrize("dataset", ["credit_g", "adult"])
def test_raw_rows_survive_the_encoding(family: str, dataset: str) -> None:
    """Encoded and decoded again, a row gives the model's own probabilities: missing values, categories and all."""
    case = fitted(dataset, family, "raw")
    protocol = Protocol.fit(case.model, case.X_train, space="raw")
    assert [c.name for c in protocol.columns] == list(case.X_train.columns)
    assert protocol.group_names == tuple(case.X_train.columns)
    rows = bind(case.model, case.X_test[:60], protocol)
    np.testing.assert_array_equal(rows.predict(rows.dense()), Model.wrap(case.model).probabilities(case.X_test[:60]))
    nominal = {c.name for c in protocol.columns if c.kind == "nominal"}
    assert nominal == set(nominal_names(case.X_train))


@pytest.mark.parametrize("dtype", ["object", "string", "category", "bool"])
def test_raw_rows_of_every_text_type(dtype: str) -> None:
    X, y = credit(["purpose", "age", "foreign_worker"])
    if dtype == "bool":
        X = X.assign(foreign_worker=X["foreign_worker"] == "yes").drop(columns="purpose")
    else:
        X = X.astype({"purpose": dtype, "foreign_worker": dtype})
    pre = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), [c for c in X if c != "age"]), remainder="passthrough"
    )
    pipeline = pipeline_of(pre, X, y)
    protocol = Protocol.fit(pipeline, X, space="raw")
    rows = bind(pipeline, X[:25], protocol)
    np.testing.assert_allclose(rows.predict(rows.dense()), pipeline.predict_proba(X[:25]), atol=1e-12)
    assert rows.predict(rows.baseline[None, :]).shape == (1, 2)


def test_polars_tables_go_to_the_model_as_polars() -> None:
    polars = pytest.importorskip("polars")
    X, y = credit([*NUMERIC, *NOMINAL])
    X_polars = polars.from_pandas(X)
    seen = []

    class Watch(TransformerMixin, BaseEstimator):
        def fit(self, X, y=None):
            self.fitted_ = True
            return self

        def transform(self, X):
            seen.append(type(X).__module__.split(".")[0])
            return X

        def get_feature_names_out(self, names=None):
            return names

    pre = ColumnTransformer([("n", StandardScaler(), NUMERIC), ("c", OneHotEncoder(), NOMINAL)])
    pipeline = Pipeline([("watch", Watch()), ("p", pre), ("m", LogisticRegression(max_iter=300))]).fit(X_polars, y)
    protocol = Protocol.fit(pipeline, X_polars, space="raw")
    rows = bind(pipeline, X_polars[:10], protocol)
    seen.clear()
    np.testing.assert_allclose(rows.predict(rows.dense()), pipeline.predict_proba(X_polars[:10]), atol=1e-12)
    assert set(seen) == {"polars"}


class Counted(TransformerMixin, BaseEstimator):
    """Doubles its columns and counts the rows of each call."""

    def fit(self, X, y=None):
        self.feature_names_in_, self.n_features_in_ = np.asarray(X.columns, dtype=object), X.shape[1]
        self.calls_ = []
        return self

    def transform(self, X):
        self.calls_.append(len(X))
        return X.to_numpy(dtype=float) * 2

    def get_feature_names_out(self, input_features=None):
        return self.feature_names_in_


@pytest.mark.parametrize("space", [None, "transformed"])
def test_training_rows_are_transformed_and_traced_once(space: str | None) -> None:
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 3)), columns=list("abc"))
    model = make_pipeline(Counted(), LogisticRegression()).fit(X, X["a"] > 0)
    model[0].calls_.clear()
    Protocol.fit(model, X, space=space)
    calls = Counter(model[0].calls_)
    assert calls[300] == 1  # all rows
    assert sum(count for n, count in calls.items() if n > 64 and n != 300) == 1  # the rows on which claims are tried
    assert calls[64] == 3 and calls[1] == 1 and calls.total() == 6  # what the fit asks of a few rows, and of one
