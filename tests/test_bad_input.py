"""Bad input: every mistake a user can make gets an error of ours, with what was expected, what came and what to do."""

from __future__ import annotations

import copy
import pickle
import re

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import skops.io
from pipelines import estimator, fitted, split
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import fragility.base.errors
from fragility.auditing.pipeline import audit
from fragility.base.errors import DataError, EvidenceError, FragilityError, ModelError, ProtocolError
from fragility.models import Model
from fragility.models.loading import load_model
from fragility.protocol import Protocol
from fragility.verification.verifying import verify


@pytest.fixture(scope="module")
def case():
    return fitted("credit_g", "logistic", "transformed")


@pytest.fixture(scope="module")
def protocol(case) -> Protocol:
    return Protocol.fit(case.model, case.X_train)


@pytest.fixture(scope="module")
def raw_protocol(case) -> Protocol:
    return Protocol.fit(case.model, case.X_train, space="raw")


def test_every_error_is_ours_and_a_value_error() -> None:
    own = [e for e in vars(fragility.base.errors).values() if getattr(e, "__name__", "").endswith("Error")]
    assert len(own) >= 8
    for error in own:
        assert issubclass(error, FragilityError) and issubclass(error, ValueError)


# --- rows -------------------------------------------------------------------------------------------------


def bad_rows(X: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, str]]:
    """Mistake -> (rows, what the error must say)."""
    X = X[:6].copy()
    infinite = X.astype({"age": float})
    infinite.loc[3, "age"] = np.inf
    return {
        "missing column": (X.drop(columns="age"), r"the model expects column 'age', which the data lack"),
        "missing columns": (
            X.drop(columns=["age", "purpose"]),
            r"the model expects columns 'purpose', 'age', which the data lack",
        ),
        "extra column": (
            X.assign(income=1.0),
            r"the data have column 'income', which the model does not know; drop them",
        ),
        "renamed column": (
            X.rename(columns={"age": "Age"}),
            r"expects column 'age', which the data lack; the data have column 'Age', which .*: rename or drop",
        ),
        "repeated column": (
            pd.concat([X, X[["age"]]], axis=1),
            r"column names must be distinct, 'age' appears 2 times",
        ),
        "numbers as text": (
            X.astype({"age": str}),
            r"column 'age' held whole numbers in the training data, now it holds text .*convert it to numbers",
        ),
        "numbers as dates": (
            X.assign(age=pd.Timestamp("2020-01-01")),
            r"column 'age' held whole numbers in the training data, now it holds dates",
        ),
        "infinite": (infinite, r"column 'age' holds an infinite value \(row 3, 1 in all\); replace it"),
        "negative infinity": (infinite.replace(np.inf, -np.inf), r"'age' holds an infinite value"),
        "no rows": (X[:0], r"at least one row and one column are needed, got 0 rows and 20 columns"),
        "no columns": (X[[]], r"expects columns|at least one"),
    }  # fmt: skip


@pytest.mark.samples
@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("mistake", list(bad_rows(split("credit_g").X_test)))
def test_rows_that_are_not_the_models_are_refused(case, mistake: str, space: str) -> None:
    rows, message = bad_rows(case.X_test)[mistake]
    with pytest.raises(DataError, match=message):
        audit(case.model, rows, Protocol.fit(case.model, case.X_train, space=space))


@pytest.mark.parametrize("mistake", ["missing column", "extra column", "infinite", "no rows", "repeated column"])
def test_training_rows_are_checked_alike(case, mistake: str) -> None:
    rows, message = bad_rows(case.X_train)[mistake]
    with pytest.raises(DataError, match=message):
        Protocol.fit(case.model, rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([1.0, 2.0], r"rows must form a 2-d array \(rows x columns\), got 1 dimension"),
        (np.zeros((2, 2, 2)), r"rows must form a 2-d array"),
        (np.zeros((3, 4)), r"the model was fitted on 20 columns, the array has 4"),
        ("credit.csv", r"rows must be a pandas, polars or Arrow table or a 2-d array, got str"),
        (None, r"rows must be .* got NoneType"),
        ({"age": [1]}, r"rows must be .* got dict"),
        (pd.Series([1.0, 2.0]), r"rows must be .* got Series"),
    ],
    ids=["list", "cube", "narrow array", "path", "None", "dict", "series"],
)
def test_things_that_are_no_rows_are_refused(case, protocol, rows, message: str) -> None:
    with pytest.raises(DataError, match=message):
        audit(case.model, rows, protocol)


def test_missing_values_where_the_model_refuses_them() -> None:
    data = split("credit_g")
    X = data.X_train[["age", "duration"]].astype(float)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, data.y_train)
    gaps = X[:5].copy()
    gaps.loc[2, "duration"] = np.nan
    for space in ("transformed", "raw"):
        protocol = Protocol.fit(model, X, space=space)
        with pytest.raises(DataError, match=r"column 'duration' holds missing values and the model refuses .*impute"):
            audit(model, gaps, protocol)


def test_missing_values_where_the_pipeline_imputes_them(case, protocol) -> None:
    gaps = case.X_test[:5].astype({"age": float})
    gaps.loc[2, "age"] = np.nan
    assert len(audit(case.model, gaps, protocol)) == 5


def test_a_missing_category_that_the_model_refuses() -> None:
    own = fitted("credit_g", "catboost", "raw")
    with pytest.raises(EvidenceError, match=r"the model cannot take the baseline 'missing'.*choose another"):
        Protocol.fit(own.model, own.X_train, baseline="missing")


def test_unseen_categories_are_the_encoders_business(case, protocol, raw_protocol) -> None:
    new = case.X_test[:3].copy()
    new.loc[1, "purpose"] = "spaceship"
    for own in (protocol, raw_protocol):
        assert len(audit(case.model, new, own)) == 3  # this encoder was told to ignore them


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_one_row_works(case, space: str) -> None:
    protocol = Protocol.fit(case.model, case.X_train, space=space)
    certs = audit(case.model, case.X_test[:1], protocol)
    assert len(certs) == 1 and verify(certs, case.model, case.X_test[:1])


def test_one_training_row_works_for_a_protocol(case) -> None:
    protocol = Protocol.fit(case.model, case.X_train[:1])
    assert len(audit(case.model, case.X_test[:2], protocol)) == 2


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 1, 2], r"ids must be distinct, 1 appears 2 times; pass ids=, or reset the index"),
        (["a", "b"], r"one id per row is needed: 3 rows, 2 ids"),
        (["a", None, "c"], r"an id is missing; every row needs one"),
        ([1, "1", 2], r"ids must be distinct, '1' appears 2 times"),
        ([1.0, np.nan, 2.0], r"an id is missing"),
        ([1, 2, 2**63], r"an id is a whole number beyond 64 bits; pass the ids as text"),
    ],
)
def test_ids_that_do_not_identify_are_refused(case, protocol, ids: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        audit(case.model, case.X_test[:3], protocol, ids=ids)


def test_two_ids_a_row_are_refused(case, protocol) -> None:
    with pytest.raises(DataError, match=r"an id must be one number or text per row"):
        audit(case.model, case.X_test[:3], protocol, ids=np.zeros((3, 2)))


def test_lists_in_cells_are_refused(case, raw_protocol) -> None:
    with pytest.raises(
        DataError, match=r"column 'purpose' held text .* values of no one type \(for example \['car'\]\)"
    ):
        audit(case.model, case.X_test[:3].assign(purpose=pd.Series([["car"]] * 3)), raw_protocol)


def test_numbers_in_a_text_column_are_not_called_missing_values(case, protocol) -> None:
    with pytest.raises(DataError, match=r"column 'purpose' held text .* now it holds whole numbers \(for example 3\)"):
        audit(case.model, case.X_test[:3].assign(purpose=3), protocol)


@pytest.mark.samples
@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("kind", ["numpy_nullable", "pyarrow", "category"])
def test_unusual_types_of_the_same_values_are_the_same_rows(case, kind: str, space: str) -> None:
    protocol = Protocol.fit(case.model, case.X_train, space=space)
    X = case.X_test[:5]
    usual = audit(case.model, X, protocol, engine="blackbox")
    if kind == "category":
        other = X.astype({name: "category" for name in X if not pd.api.types.is_numeric_dtype(X[name])})
    else:
        other = X.convert_dtypes(dtype_backend=kind)
    same = audit(case.model, other, protocol, engine="blackbox")
    assert same.manifest.input == usual.manifest.input
    np.testing.assert_allclose(same.claims.path_margin, usual.claims.path_margin, rtol=1e-12)


def test_arrays_of_mixed_values_have_a_type_for_each_column() -> None:
    data = split("credit_g")
    X = data.X_train[["age", "purpose", "duration"]].to_numpy(dtype=object)
    model = estimator("catboost").set_params(cat_features=[1]).fit(X, data.y_train.to_numpy(dtype=str))
    protocol = Protocol.fit(model, X)
    assert [field.kind for field in protocol.fields] == ["numeric", "nominal", "numeric"]
    rows = data.X_test[["age", "purpose", "duration"]].to_numpy(dtype=object)[:6]
    certs = audit(model, rows, protocol)
    np.testing.assert_allclose(certs.claims.confidence, model.predict_proba(rows).max(axis=1), atol=1e-12)


def test_a_repeated_index_is_refused(case, protocol) -> None:
    with pytest.raises(DataError, match=r"ids must be distinct, 0 appears 2 times"):
        audit(case.model, pd.concat([case.X_test[:2], case.X_test[:1]]), protocol)


def test_infinite_sparse_cells_are_refused() -> None:
    X = sp.random(30, 4, density=0.5, format="csr", random_state=0)
    model = LogisticRegression().fit(X, np.arange(30) % 2)
    protocol = Protocol.fit(model, X)
    bad = X.copy()
    bad.data[0] = np.inf
    with pytest.raises(DataError, match=r"the sparse matrix holds an infinite or missing value"):
        audit(model, bad, protocol)
    with pytest.raises(EvidenceError, match=r"the raw evidence space needs a table or dense array, got a sparse"):
        Protocol.fit(model, X, space="raw")


# --- protocols --------------------------------------------------------------------------------------------


def test_depth_beyond_the_groups_is_refused(case) -> None:
    with pytest.raises(ProtocolError, match=r"from 1 to the number of groups, 20, got 21; leave it out"):
        Protocol.fit(case.model, case.X_train, depth=21)


def test_a_protocol_for_other_columns_is_refused(protocol, raw_protocol) -> None:
    other = fitted("adult", "logistic", "transformed")
    for own in (protocol, raw_protocol):
        with pytest.raises(ProtocolError, match=r"made for the columns .*the model expects .*fit a protocol for this"):
            audit(other.model, other.X_test[:3], own)


def test_a_protocol_that_is_none_is_refused(case) -> None:
    for junk in ({"depth": 3}, "protocol.json"):
        with pytest.raises(ProtocolError, match=r"a Protocol was expected, got (dict|str)"):
            audit(case.model, case.X_test[:3], junk)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": None}, r"weights must be a list, got None"),
        ({"weights": ("a", 1, 1)}, r"a weight must be a number, got 'a'"),
        ({"severities": "0.5"}, r"severities must be a list, got '0\.5'"),
        ({"severities": 0.5}, r"severities must be a list, got 0\.5"),
        ({"operators": "attenuate_all"}, r"operators must be a list, got 'attenuate_all'"),
        ({"operators": [3]}, r"an operator is a name such as attenuate_all, got 3"),
        ({"resolution": "fine"}, r"resolution must be a number, got 'fine'"),
        ({"groups": ["age"]}, r"groups must be 'raw-origin', 'merged', a map or a JSON file, got \['age'\]"),
        ({"groups": {}}, r"the group map is empty; leave it out"),
        ({"groups": "merged", "merge_threshold": "high"}, r"merge_threshold must lie in \(0, 1\], got 'high'"),
        ({"baseline": None}, r"an explicit baseline needs \d+ values"),
    ],
    ids=str,
)
def test_settings_of_the_wrong_kind_are_refused(case, changes: dict, message: str) -> None:
    with pytest.raises(FragilityError, match=message):
        Protocol.fit(case.model, case.X_train, **changes)


# --- models -----------------------------------------------------------------------------------------------


def function_model(output, classes=("bad", "good")) -> tuple[Model, pd.DataFrame, Protocol]:
    X = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0.0, 1.0, 0.5]})
    good = Model.wrap(lambda rows: np.tile([0.4, 0.6], (len(rows), 1)), classes=list(classes))
    return Model.wrap(output, classes=list(classes)), X, Protocol.fit(good, X)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda rows: np.tile([-0.1, 1.1], (len(rows), 1)), r"not a probability in 3 of 3 rows"),
        (lambda rows: np.tile([0.3, 0.3], (len(rows), 1)), r"add up to 1; .*with sum 0\.6"),
        (lambda rows: np.tile([np.nan, 1.0], (len(rows), 1)), r"not a probability in 3 of 3 rows"),
        (lambda rows: np.full(len(rows), 0.5), r"must have shape \(3, 2\).*got shape \(3,\)"),
        (lambda rows: np.full((len(rows), 3), 1 / 3), r"one column for each of the classes .*got shape \(3, 3\)"),
        (lambda rows: np.full((1, 2), 0.5), r"must have shape \(3, 2\).*got shape \(1, 2\)"),
        (lambda rows: "no", r"the model failed on these rows|must have shape"),
        (lambda rows: [[2.0, -3.0]] * len(rows), r"if these are logits, declare output='logits'"),
    ],
    ids=["negative", "sum", "nan", "one dimension", "three columns", "one row", "text", "logits"],
)
def test_output_that_is_no_probability_is_refused(output, message: str) -> None:
    model, X, protocol = function_model(output)
    with pytest.raises(ModelError, match=message):
        audit(model, X, protocol)


def test_an_output_that_is_not_known_is_refused() -> None:
    with pytest.raises(ModelError, match=r"output must be one of probabilities, logits.*got 'margin'"):
        Model.wrap(lambda rows: rows, classes=[0, 1], output="margin")


def test_a_model_that_raises_is_reported_in_one_sentence() -> None:
    def broken(rows):
        raise ZeroDivisionError("my own bug\nwith details")

    model, X, protocol = function_model(broken)
    with pytest.raises(ModelError, match=r"the model failed on these rows: ZeroDivisionError: my own bug$"):
        audit(model, X, protocol)


def test_models_without_probabilities_classes_or_choice_are_refused(case, protocol) -> None:
    with pytest.raises(ModelError, match=r"has no predict_proba"):
        audit(object(), case.X_test[:3], protocol)
    one = RandomForestClassifier(3).fit(case.X_train[["age"]], np.zeros(600))
    with pytest.raises(ModelError, match=r"at least 2 classes was expected, this one has 1"):
        Protocol.fit(one, case.X_train[["age"]])


# --- model files ------------------------------------------------------------------------------------------


def saved_models(folder, case) -> dict[str, object]:
    """One file of every kind; name -> probabilities it must give."""
    rows = case.X_test[:10]
    expected = {"pipeline.skops": case.model.predict_proba(rows)}
    skops.io.dump(case.model, folder / "pipeline.skops")
    joblib.dump(case.model, folder / "pipeline.joblib")
    (folder / "pipeline.pkl").write_bytes(pickle.dumps(case.model))
    expected["pipeline.joblib"] = expected["pipeline.pkl"] = expected["pipeline.skops"]
    return expected


def test_files_of_every_kind_load_and_keep_their_fingerprint(case, tmp_path) -> None:
    fingerprint = Model.wrap(case.model).fingerprint
    for name, expected in saved_models(tmp_path, case).items():
        model = load_model(tmp_path / name, trust=name != "pipeline.skops")
        np.testing.assert_array_equal(
            model.probabilities(case.X_test[:10]), Model.wrap(case.model).probabilities(case.X_test[:10])
        )
        np.testing.assert_allclose(model.probabilities(case.X_test[:10]), expected, atol=1e-12)
        assert model.fingerprint == fingerprint, name


@pytest.mark.parametrize(
    ("family", "suffix"), [("xgboost", "json"), ("xgboost", "ubj"), ("lightgbm", "txt"), ("catboost", "cbm")]
)
@pytest.mark.parametrize("dataset", ["credit_g", pytest.param("credit_g_property", marks=pytest.mark.slow)])
def test_booster_files_load_without_trust(family: str, suffix: str, dataset: str, tmp_path) -> None:
    own = fitted(dataset, family, "raw")
    path = tmp_path / f"model.{suffix}"
    booster = own.model.booster_ if family == "lightgbm" else own.model
    booster.save_model(str(path))
    names = [str(label) for label in own.model.classes_]
    model = load_model(path, classes=names)
    assert list(model.classes) == names
    np.testing.assert_allclose(
        model.probabilities(own.X_test[:20]), own.model.predict_proba(own.X_test[:20]), atol=1e-6
    )
    again = load_model(path, classes=names)
    assert again.fingerprint == model.fingerprint
    protocol = Protocol.fit(model, own.X_train)
    certs = audit(model, own.X_test[:4], protocol)
    assert verify(certs, again, own.X_test[:4])


def test_pickles_are_refused_without_trust(case, tmp_path) -> None:
    saved_models(tmp_path, case)
    for name in ("pipeline.joblib", "pipeline.pkl"):
        with pytest.raises(ModelError, match=rf"{re.escape(name)} is a pickle, .*load it with trust=True"):
            load_model(tmp_path / name)


class Bomb:
    """Unpickling it would leave a mark."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_an_untrusted_pickle_is_never_opened(tmp_path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Bomb(str(mark))))
    with pytest.raises(ModelError, match=r"is a pickle"):
        load_model(tmp_path / "model.pkl")
    (tmp_path / "model.joblib").write_bytes(pickle.dumps(Bomb(str(mark))))
    with pytest.raises(ModelError, match=r"is a pickle"):
        load_model(tmp_path / "model.joblib")
    assert not mark.exists()


def doubled(X):
    return X * 2


def test_unknown_types_in_a_skops_file_are_shown(case, tmp_path) -> None:
    X = case.X_train[["age", "duration"]].astype(float)
    pipeline = make_pipeline(FunctionTransformer(doubled), LogisticRegression()).fit(X, split("credit_g").y_train)
    skops.io.dump(pipeline, tmp_path / "odd.skops")
    with pytest.raises(
        ModelError, match=r"odd\.skops contains types that skops does not know to be safe: .*doubled.*trust=True"
    ):
        load_model(tmp_path / "odd.skops")
    assert load_model(tmp_path / "odd.skops", trust=True).classes == ("bad", "good")


@pytest.mark.samples
@pytest.mark.parametrize(
    "name", ["model.skops", "model.pkl", "model.joblib", "model.json", "model.ubj", "model.txt", "model.cbm"]
)
@pytest.mark.parametrize("content", [b"", b"not a model", "truncated"])
def test_damaged_model_files_are_refused_in_words(case, name: str, content, tmp_path) -> None:
    path = tmp_path / name
    if content == "truncated":
        whole = whole_file(case, tmp_path, name)
        content = whole[: len(whole) // 2]
    path.write_bytes(content)
    with pytest.raises(ModelError, match=rf"{re.escape(name)}"):
        load_model(path, trust=True)


def whole_file(case, folder, name: str) -> bytes:
    suffix = name.rpartition(".")[2]
    if suffix in ("skops", "pkl", "joblib"):
        saved_models(folder, case)
        return (folder / f"pipeline.{suffix}").read_bytes()
    family = {"json": "xgboost", "ubj": "xgboost", "txt": "lightgbm", "cbm": "catboost"}[suffix]
    model = fitted("credit_g", family, "raw").model
    path = folder / f"whole.{suffix}"
    (model.booster_ if family == "lightgbm" else model).save_model(str(path))
    return path.read_bytes()


def test_absent_and_unknown_model_files_are_refused(tmp_path) -> None:
    with pytest.raises(ModelError, match=r"there is no model file .*absent\.skops.*a model is one of: \.skops"):
        load_model(tmp_path / "absent.skops")
    (tmp_path / "model.pmml").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"model\.pmml' is a PMML file"):
        load_model(tmp_path / "model.pmml")
    with pytest.raises(ModelError, match=r"is a folder; a model is one of"):
        load_model(tmp_path)


def test_models_by_import(tmp_path, monkeypatch) -> None:
    (tmp_path / "my_scoring.py").write_text(
        "import numpy as np\nclass Nested:\n    model = staticmethod(lambda X: np.tile([0.25, 0.75], (len(X), 1)))\n"
    )
    monkeypatch.chdir(tmp_path)
    model = load_model("my_scoring:Nested.model", classes=["no", "yes"])
    assert model.probabilities(np.zeros((2, 1))).tolist() == [[0.25, 0.75]] * 2
    with pytest.raises(ModelError, match=r"cannot import the model 'my_scoring:absent'"):
        load_model("my_scoring:absent")
    with pytest.raises(ModelError, match=r"cannot import the model 'no_such_module:x'"):
        load_model("no_such_module:x")


# --- interrupted runs -------------------------------------------------------------------------------------


def test_an_interrupted_audit_leaves_nothing_and_the_model_as_it_was(case, protocol, tmp_path) -> None:
    before = copy.deepcopy(Model.wrap(case.model).fingerprint)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(case.model, case.X_test[:5], protocol, engine="blackbox", progress=stop).save(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    assert Model.wrap(case.model).fingerprint == before


def test_auditing_changes_neither_rows_nor_protocol(case, protocol, raw_protocol) -> None:
    X = case.X_test[:5].copy()
    before, digest = X.copy(deep=True), protocol.digest
    for own in (protocol, raw_protocol):
        audit(case.model, X, own, engine="blackbox")
    pd.testing.assert_frame_equal(X, before)
    assert protocol.digest == digest
