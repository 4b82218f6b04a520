"""ONNX files as classifiers: inputs, outputs, classes, precision, workers."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from converting import COLUMNS, convert, convert_pipeline, make_rows, onnx
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg
from fragility.base.errors import DataError, ModelError
from fragility.models.loading import load_model
from fragility.models.onnx_classifier import OnnxClassifier

catboost = pytest.importorskip("catboost")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

RAW, OWN = "raw score, link applied in float64", "predict_proba"
MODELS = {
    "logistic": (LogisticRegression(), RAW),
    "forest": (RandomForestClassifier(8, max_depth=5, random_state=0), OWN),
    "boosting": (GradientBoostingClassifier(n_estimators=6, random_state=0), RAW),
    "histogram": (HistGradientBoostingClassifier(max_iter=6, random_state=0), RAW),
    "network": (MLPClassifier((5,), max_iter=30, random_state=0), RAW),
    "calibrated": (CalibratedClassifierCV(LogisticRegression(), cv=2), OWN),
    "lightgbm": (lightgbm.LGBMClassifier(n_estimators=6, verbose=-1, n_jobs=1), RAW),
    "xgboost": (xgboost.XGBClassifier(n_estimators=6, n_jobs=1), RAW),
    "catboost": (
        catboost.CatBoostClassifier(iterations=6, depth=3, verbose=0, thread_count=1, allow_writing_files=False),
        RAW,
    ),
}


def read(path: Path, **options: Any) -> fg.Model:
    """The model of a file without the trial in a process of its own, which test_loading and the fuzzing see to."""
    return fg.Model.wrap(OnnxClassifier(path.read_bytes()), **options)


@pytest.mark.filterwarnings("ignore:.*:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_converted_classifiers_answer_as_their_originals(tmp_path, name: str, n_classes: int) -> None:
    X, y = make_rows(n_classes)
    original, link = MODELS[name]
    original = original.fit(X, y)
    model = read(convert(original, tmp_path / "model.onnx"))
    assert model.classes == tuple(range(n_classes)) and model.link == link
    assert model.kind == "OnnxClassifier" and model.n_columns == COLUMNS and model.columns is None
    np.testing.assert_allclose(model.probabilities(X), original.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(model.estimator.predict_proba(X), model.probabilities(X), atol=1e-6)
    assert (model.estimator.predict(X) == original.predict(X).ravel()).all()
    assert model.votes == (8 if name == "forest" else None)
    alone = np.concatenate([model.probabilities(X[i : i + 1]) for i in range(40)])
    assert np.array_equal(alone, model.probabilities(X[:40]))  # to the last bit, however rows come


def test_loading_needs_no_trust_and_finds_what_the_file_says(tmp_path) -> None:
    X, y = make_rows()
    names = np.array(["good", "bäd"])[y]
    path = convert(LogisticRegression().fit(X, names), tmp_path / "model.onnx")
    model = load_model(path)
    assert model.classes == ("bäd", "good") and set(model.estimator.predict(X)) == {"bäd", "good"}
    with pytest.raises(ModelError, match=r"the model's own classes are \['bäd', 'good'\]"):
        load_model(path, classes=["good", "bäd"])
    again = pickle.loads(pickle.dumps(model))
    assert again.fingerprint == model.fingerprint and not model.fingerprint_partial
    assert np.array_equal(again.probabilities(X), model.probabilities(X))
    with ThreadPoolExecutor(4) as pool:
        several = list(pool.map(model.probabilities, np.split(X, 10)))
    assert np.array_equal(np.concatenate(several), model.probabilities(X))
    other = convert(LogisticRegression(C=0.9).fit(X, names), tmp_path / "other.onnx")
    assert read(other).fingerprint != model.fingerprint


def test_confident_rows_keep_their_digits(tmp_path) -> None:
    """In float32, 1 - p has no digit left beyond p = 0.9999999; the raw score has all of its own."""
    X, y = make_rows()
    original = LogisticRegression().fit(X, y)
    model = read(convert(original, tmp_path / "model.onnx"))
    far = 12 * X
    rare = original.predict_proba(far).min(axis=1)
    sure = (rare > 1e-11) & (rare < 1e-8)
    assert sure.sum() > 10
    np.testing.assert_allclose(np.log(model.probabilities(far).min(axis=1)[sure]), np.log(rare[sure]), rtol=1e-5)
    in_single = model.estimator.predict_proba(far[sure])
    assert (in_single.max(axis=1) == 1.0).all()


def test_classes_are_found_or_asked_for(tmp_path) -> None:
    X, y = make_rows(3)
    network = MLPClassifier((4,), max_iter=5, random_state=0).fit(X, np.array(["a", "b", "c"])[y])
    plain = read(convert(network, tmp_path / "plain.onnx", zipmap=False))
    assert plain.classes == ("a", "b", "c") and plain.link == RAW  # read beside the label
    proto = onnx.load(tmp_path / "plain.onnx")
    del proto.graph.output[0]  # only the probabilities are left
    onnx.save(proto, tmp_path / "bare.onnx")
    with pytest.raises(ModelError, match=r"does not name the classes of its probabilities; declare them in"):
        read(tmp_path / "bare.onnx")
    named = read(tmp_path / "bare.onnx", classes=["x", "y", "z"])
    assert named.classes == ("x", "y", "z") and not hasattr(named.estimator, "predict")
    assert np.array_equal(named.probabilities(X), plain.probabilities(X))


def test_what_a_file_returns_can_be_declared(tmp_path) -> None:
    """A network that was exported without its last step, for three classes and for two."""
    for n_classes, kind in ((3, "logits"), (2, "binary_logit")):
        X, y = make_rows(n_classes)
        network = MLPClassifier((4,), max_iter=300, random_state=0).fit(X, y)
        proto = onnx.load(convert(network, tmp_path / "whole.onnx", zipmap=False))
        last = next(node for node in proto.graph.node if node.op_type in ("Softmax", "Sigmoid"))
        del proto.graph.output[:]
        proto.graph.output.append(onnx.helper.make_tensor_value_info(last.input[0], 1, [None, None]))
        onnx.save(proto, tmp_path / "scores.onnx")
        model = read(tmp_path / "scores.onnx", classes=list(range(n_classes)), output=kind)
        assert model.link == f"{kind} of an ONNX file, link in float64"
        np.testing.assert_allclose(model.probabilities(X), network.predict_proba(X), atol=1e-6)
        table = pd.DataFrame(X, columns=list("abcdef"))
        certs = fg.audit(model, table[:20], fg.Protocol.fit(model, table), progress=False)
        assert certs.manifest.model.probabilities == model.link
        with pytest.raises(ModelError, match=r"the ONNX file itself turns its scores into probabilities, so it does"):
            read(tmp_path / "whole.onnx", output="logits")
        with pytest.raises(ModelError, match=r"output must be one of probabilities, logits, .* got 'odds'"):
            read(tmp_path / "scores.onnx", classes=list(range(n_classes)), output="odds")
        undeclared = read(tmp_path / "scores.onnx", classes=list(range(n_classes)))
        said = (
            "the model's output is not a probability" if n_classes == 3 else r"does not declare its meaning; if it is a"
        )
        with pytest.raises(ModelError, match=said):
            undeclared.probabilities(X)


def test_fixed_batches_are_filled_up(tmp_path) -> None:
    X, y = make_rows()
    path = convert(GradientBoostingClassifier(n_estimators=3).fit(X, y), tmp_path / "model.onnx", zipmap=False)
    free = read(path)
    for rows in (1, 7):
        proto = onnx.load(path)
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = rows
        onnx.save(proto, tmp_path / "fixed.onnx")
        assert np.array_equal(read(tmp_path / "fixed.onnx").probabilities(X[:20]), free.probabilities(X[:20]))


# --- columns of several types ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tuple[Any, Path, pd.DataFrame]:
    """A pipeline over whole numbers, decimals and texts, its file and rows."""
    X, y = fg.load_credit_g()
    X = X[["duration", "credit_amount", "purpose", "housing"]].astype({"purpose": str, "housing": str})
    X = X.assign(duration=X["duration"].astype("int64"), credit_amount=X["credit_amount"].astype("float32"))
    encode = ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["duration", "credit_amount"]),
            ("texts", OneHotEncoder(handle_unknown="ignore"), ["purpose", "housing"]),
        ]
    )
    original = make_pipeline(encode, GradientBoostingClassifier(n_estimators=8, random_state=0)).fit(X[:600], y[:600])
    path = tmp_path_factory.mktemp("mixed") / "pipeline.onnx"
    onnx.save(convert_pipeline(original, X[:1]), str(path))
    return original, path, X[600:700]


def test_one_input_per_column_is_fed_by_name_and_type(mixed) -> None:
    original, path, X = mixed
    model = read(path)
    assert model.columns == tuple(X.columns) and model.classes == ("bad", "good")
    np.testing.assert_allclose(model.probabilities(X), original.predict_proba(X), atol=1e-6)
    protocol = fg.Protocol.fit(model, X)
    certs = fg.audit(model, X[list(X.columns[::-1])][:20], protocol, progress=False)
    assert protocol.space == "raw" and certs.manifest.engine.name == "blackbox"
    assert {group.name for group in protocol.groups} == set(X.columns)
    assert fg.verify(certs, model, X[:20])


def test_cells_that_an_input_cannot_take_are_named(mixed) -> None:
    _, path, X = mixed
    head = read(path).head
    with pytest.raises(DataError, match=r"^column 'purpose' must hold texts without gaps: the ONNX input 'purpose'"):
        head.predict_proba(X.assign(purpose=None))
    with pytest.raises(DataError, match=r"^column 'duration' must hold whole numbers without gaps: .* takes int64$"):
        head.predict_proba(X.assign(duration=1.5))
    with pytest.raises(DataError, match=r"^column 'credit_amount' must hold numbers: .* takes float32$"):
        head.predict_proba(X.assign(credit_amount="much"))
    with pytest.raises(DataError, match=r"^the ONNX file takes 4 columns, the rows have 3$"):
        head.predict_proba(X[["duration", "purpose", "housing"]])


def test_a_table_for_a_single_tensor_goes_by_position(tmp_path) -> None:
    X, y = make_rows()
    model = read(convert(LogisticRegression().fit(X, y), tmp_path / "model.onnx"))
    table = pd.DataFrame(X, columns=list("abcdef"))
    assert np.array_equal(model.probabilities(table), model.probabilities(X))
    protocol = fg.Protocol.fit(model, table)
    certs = fg.audit(model, table[:30], protocol, progress=False)
    assert fg.verify(certs, model, table[:30]) and [group.name for group in protocol.groups] == list("abcdef")
    with pytest.raises(DataError, match=r"the model expects column 'a', which the data lack"):
        fg.audit(model, table.rename(columns={"a": "other"})[:30], protocol)
    with pytest.raises(DataError, match=r"the model was fitted on 6 columns, the table has 5"):
        fg.Protocol.fit(model, table.drop(columns="a"))
