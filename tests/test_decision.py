"""The certificate speaks of the model's own decision: its predict, its threshold, its answer to the same row."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
from naive import naive_certificate
from pipelines import FAMILIES, SEED, estimator, fitted, numeric_names, preprocessing, split
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

import fragility as fg
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.choice import NATIVE
from fragility.engines.engine import Engine
from fragility.models import Decision, Model
from fragility.models.outputs import label_indices
from fragility.protocol import Protocol, bind

DATASETS = ("credit_g", "adult", "credit_g_property")


def numbers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Credit-G's numeric fields: training rows, their labels, and rows to audit."""
    data = split("credit_g")
    names = numeric_names(data.X_train)
    scale = StandardScaler().fit(data.X_train[names])
    return scale.transform(data.X_train[names]), data.y_train.to_numpy(str), scale.transform(data.X_test[names])


def certified(model, X_train, X, **options) -> fg.Certificates:
    return fg.audit(model, X, Protocol.fit(model, X_train, **options), progress=False)


def named(certs: fg.Certificates) -> list:
    return certs.to_arrow().column("predicted").to_pylist()


# --- parity with predict ------------------------------------------------------------------------------------------


@pytest.mark.samples
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("family", FAMILIES)
def test_predicted_is_what_predict_says(family: str, space: str, dataset: str) -> None:
    case = fitted(dataset, family, space)
    X = case.X_test[:120]
    certs = certified(case.model, case.X_train, X, space=space, depth=2, operators=())
    assert named(certs) == np.asarray(case.model.predict(X)).reshape(-1).tolist()


@pytest.mark.parametrize(
    "classifier",
    [
        SGDClassifier(loss="log_loss", random_state=0),
        SGDClassifier(loss="modified_huber", random_state=0),
        GradientBoostingClassifier(loss="exponential", n_estimators=10),
        GaussianNB(),
        KNeighborsClassifier(4),
        LinearDiscriminantAnalysis(),
        LogisticRegression(solver="liblinear"),
        RandomForestClassifier(4, max_depth=2, random_state=0),
        CalibratedClassifierCV(LogisticRegression(), cv=3),
        CalibratedClassifierCV(SVC(), cv=3),
    ],
    ids=lambda c: type(c).__name__ + str(getattr(c, "loss", "")),
)
def test_predicted_is_what_predict_says_for_less_usual_classifiers(classifier) -> None:
    X_train, y, X = numbers()
    model = classifier.fit(X_train, y)
    assert named(certified(model, X_train, X, depth=2, operators=())) == model.predict(X).tolist()


@pytest.mark.samples
@pytest.mark.parametrize("kind", ["string", "integer", "boolean", "float"])
@pytest.mark.parametrize("family", ["logistic", "lightgbm", "catboost"])
def test_labels_of_every_type_are_recognised(family: str, kind: str) -> None:
    X_train, y, X = numbers()
    good = y == "good"
    labels = {"string": y, "integer": good * 7, "boolean": good, "float": good * 2.0}[kind]
    model = estimator(family).fit(X_train, labels)
    claimed = named(certified(model, X_train, X[:60], depth=1, operators=()))
    assert [str(label) for label in claimed] == [str(label) for label in np.asarray(model.predict(X[:60])).reshape(-1)]


def test_labels_are_found_among_the_classes_whatever_their_shape_and_type() -> None:
    assert label_indices(np.array([["b"], ["a"]], dtype=object), ["a", "b"], 2).tolist() == [1, 0]
    assert label_indices(np.array(["True", "False"]), [False, True], 2).tolist() == [1, 0]
    assert label_indices(np.array([1.0, 0.0]), [0, 1], 2).tolist() == [1, 0]
    assert label_indices(np.array(["c", "a"]), ["a", "b"], 2) is None
    assert label_indices(np.zeros((2, 2)), [0, 1], 2) is None
    assert label_indices(np.zeros(3), [0, 1], 2) is None


def test_a_tie_is_settled_by_the_model_itself() -> None:
    class LastOfEquals(GaussianNB):
        def predict_proba(self, X):
            return np.where(np.asarray(X)[:, :1] > 0, [[0.5, 0.5]], [[0.8, 0.2]])

        def predict(self, X):
            return np.where(np.asarray(X)[:, 0] > 0, "good", "bad")

    X_train, y, X = numbers()
    model = LastOfEquals().fit(X_train, y)
    certs = certified(model, X_train, X)
    assert named(certs) == model.predict(X).tolist()
    table = certs.to_pandas()
    tied = table["predicted"] == "good"
    assert tied.any() and (table.loc[tied, "margin"] == 0.0).all()
    assert fg.verify(certs, model, X)


def test_a_forest_that_settles_a_tie_differently_the_next_time_still_verifies() -> None:
    class EitherOfEquals(GaussianNB):
        chance = np.random.RandomState(1)

        def predict_proba(self, X):
            return np.full((len(X), 2), 0.5)

        def predict(self, X):
            return np.full(len(X), self.classes_[self.chance.randint(2)])

    X_train, y, X = numbers()
    model = EitherOfEquals().fit(X_train, y)
    certs = certified(model, X_train, X[:5])
    assert all(fg.verify(certs, model, X[:5]) for _ in range(4))


# --- models that decide otherwise ----------------------------------------------------------------------------------


def test_labels_that_contradict_the_probabilities_are_refused_with_the_rows() -> None:
    X_train, y, X = numbers()
    model = SVC(probability=True, random_state=SEED).fit(X_train, y)
    differs = model.predict(X) != model.classes_[model.predict_proba(X).argmax(axis=1)]
    assert differs.any()
    first = int(np.argmax(differs))
    told = (
        rf"the predict of SVC differs .* in {differs.sum()} of {len(X)} rows "
        rf"\(first: row {first}, predict says '{model.predict(X)[first]}'.*CalibratedClassifierCV\(SVC\(\)\)"
    )
    with pytest.raises(fg.ModelError, match=told):
        certified(model, X_train, X)


class Cautious(ClassifierMixin, BaseEstimator):
    """A model of a user's own that approves above a probability of 0.7 only."""

    def fit(self, X, y):
        self.inner_ = LogisticRegression().fit(X, y)
        self.classes_ = self.inner_.classes_
        return self

    def predict_proba(self, X):
        return self.inner_.predict_proba(X)

    def predict(self, X):
        return np.where(self.predict_proba(X)[:, 1] >= 0.7, self.classes_[1], self.classes_[0])


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_a_hidden_threshold_is_refused_until_it_is_declared(space: str) -> None:
    data = split("credit_g")
    model = make_pipeline(preprocessing(data.X_train), Cautious()).fit(data.X_train, data.y_train.to_numpy(str))
    with pytest.raises(fg.ModelError, match=r"differs .* declare it in the protocol \(decision=0.3, or --threshold"):
        certified(model, data.X_train, data.X_test, space=space)
    certs = certified(model, data.X_train, data.X_test[:60], space=space, decision=0.7)
    assert named(certs) == model.predict(data.X_test[:60]).tolist()


def test_the_check_covers_every_row_not_only_the_first() -> None:
    """The engines that never call the model for a row's probabilities are held to its labels as well."""
    X_train, y, X = numbers()

    model = LogisticRegression().fit(X_train, y)

    def predict(X):
        labels = LogisticRegression.predict(model, X)
        labels[X[:, 0] == odd] = "bad"
        return labels

    model.predict = predict
    X = X[np.argsort(LogisticRegression().fit(X_train, y).predict_proba(X)[:, 1])]
    odd = X[-1, 0]
    X = X[(X[:, 0] != odd) | (np.arange(len(X)) == len(X) - 1)]
    for engine in ("linear", "blackbox"):
        with pytest.raises(
            fg.ModelError, match=rf"in 1 of {len(X)} rows \(first: row {len(X) - 1}, predict says 'bad'"
        ):
            fg.audit(model, X, Protocol.fit(model, X_train), engine=engine)


def test_predict_that_gives_no_class_is_refused() -> None:
    class Fuzzy(LogisticRegression):
        def predict(self, X):
            return self.predict_proba(X)[:, 1]

    X_train, y, X = numbers()
    with pytest.raises(fg.ModelError, match=r"Fuzzy.predict must give one of the classes \['bad', 'good'\]"):
        certified(Fuzzy().fit(X_train, y), X_train, X)


# --- thresholds ------------------------------------------------------------------------------------------------------


def threshold_models() -> dict:
    data = split("credit_g")
    X, y = data.X_train, data.y_train.to_numpy(str)
    prepare = preprocessing(X)
    logistic = make_pipeline(prepare, LogisticRegression(max_iter=400)).fit(X, y)
    fixed = {"threshold": 0.3, "pos_label": "bad"}
    return {
        "around a pipeline": FixedThresholdClassifier(logistic, **fixed).fit(X, y),
        "not fitted itself": FixedThresholdClassifier(logistic, **fixed),
        "frozen inside": FixedThresholdClassifier(FrozenEstimator(logistic), **fixed).fit(X, y),
        "in a pipeline": make_pipeline(prepare, FixedThresholdClassifier(estimator("lightgbm"), **fixed)).fit(X, y),
        "automatic": FixedThresholdClassifier(logistic, pos_label="bad").fit(X, y),
        "tuned": TunedThresholdClassifierCV(
            make_pipeline(prepare, RandomForestClassifier(10, random_state=0)), cv=3, scoring="balanced_accuracy"
        ).fit(X, y),
        "neural": make_pipeline(
            prepare, FixedThresholdClassifier(MLPClassifier((8,), max_iter=40, random_state=0), **fixed)
        ).fit(X, y),
    }


@pytest.fixture(scope="module")
def thresholds() -> dict:
    return threshold_models()


NAMES = ("around a pipeline", "not fitted itself", "frozen inside", "in a pipeline", "automatic", "tuned", "neural")
OWN_ENGINE = {"in a pipeline": "trees", "tuned": "trees", "neural": "neural"}


def native_engine(name: str) -> type[Engine]:
    """A native engine; the test skips where the library it needs is not installed."""
    native = next(engine for engine in NATIVE if engine.name == name)
    for library in native.needs:
        pytest.importorskip(library, reason=f"the {name} engine needs {library}")
    return native


@pytest.mark.samples
@pytest.mark.parametrize("reading", ["support", "current"])
@pytest.mark.parametrize("name", NAMES)
def test_a_models_own_threshold_is_its_decision(thresholds, name: str, reading: str) -> None:
    native_engine(OWN_ENGINE.get(name, "linear"))
    model, data = thresholds[name], split("credit_g")
    certs = certified(model, data.X_train, data.X_test[:80], reading=reading)
    assert certs.protocol.decision is not None
    assert named(certs) == model.predict(data.X_test[:80]).tolist()
    assert certs.engine == OWN_ENGINE.get(name, "linear")
    assert "ThresholdClassifier" in certs.manifest.model.kind
    asked = fg.audit(model, data.X_test[:80], certs.protocol, engine="blackbox")
    assert [(c.path, c.flip_budget, c.path_predicted) for c in asked] == [
        (c.path, c.flip_budget, c.path_predicted) for c in certs
    ]
    assert fg.verify(certs, model, data.X_test[:80])


def test_raw_space_looks_through_the_threshold_too(thresholds) -> None:
    model, data = thresholds["around a pipeline"], split("credit_g")
    certs = certified(model, data.X_train, data.X_test[:40], space="raw", baseline="typical")
    assert named(certs) == model.predict(data.X_test[:40]).tolist()


@pytest.mark.repeats
@pytest.mark.parametrize("reading", ["support", "current", "support_unbounded"])
@pytest.mark.parametrize("family", ["logistic", "random_forest", "xgboost", "mlp"])
def test_every_engine_equals_the_slow_twin_under_a_threshold(family: str, reading: str) -> None:
    case = fitted("credit_g", family, "transformed")
    label = case.model.classes_[0].item() if family == "xgboost" else "bad"
    protocol = Protocol.fit(
        case.model, case.X_train, decision={"class": label, "threshold": 0.2}, reading=reading, depth=4
    )
    rows = bind(case.model, case.X_test[:6], protocol)
    engine = native_engine({"logistic": "linear", "mlp": "neural"}.get(family, "trees"))
    groups = [columns.tolist() for columns in rows.group_columns()]
    for trace in (trace_blackbox(rows, protocol), engine(rows).trace(rows, protocol)):
        for i in range(len(rows)):
            twin = naive_certificate(
                lambda cells: rows.predict(np.array(cells, dtype=float))[0],
                rows.dense(i, i + 1)[0].tolist(),
                rows.baseline.tolist(),
                groups,
                protocol.depth,
                protocol.operators,
                protocol.severities,
                reading,
                protocol.weights,
                protocol.resolution,
                decision=(0, 0.2),
                smoothing=protocol.smoothing,
            )
            assert trace.predicted[i] == twin["predicted"]
            assert trace.order[i].tolist() == twin["path"]
            assert trace.path_predicted[i].tolist() == twin["path_predicted"]
            np.testing.assert_allclose(trace.path_margin[i], twin["path_margin"], atol=1e-6)
            np.testing.assert_allclose(trace.confidence[i], twin["confidence"], atol=1e-6)
            found = [None if np.isinf(value) else value for value in trace.threshold[i]]
            assert found == twin["threshold"]


def test_a_declared_threshold_moves_the_flip_not_the_confidence() -> None:
    data = split("credit_g")
    model = fitted("credit_g", "logistic", "transformed").model
    X = data.X_test[:100]
    p = model.predict_proba(X)
    plain = certified(model, data.X_train, X).to_pandas()
    table = certified(model, data.X_train, X, decision={"class": "bad", "threshold": 0.3}).to_pandas()
    expected = np.where(p[:, 0] >= 0.3, "bad", "good")
    assert table["predicted"].tolist() == expected.tolist()
    np.testing.assert_allclose(table["confidence"], np.where(expected == "bad", p[:, 0], p[:, 1]), atol=1e-9)
    shift = np.where(expected == "bad", 1.0, -1.0) * -np.log(0.3 / 0.7)
    signed = plain["margin"] * np.where(plain["predicted"] == expected, 1.0, -1.0)
    np.testing.assert_allclose(table["margin"], signed + shift, atol=1e-9)
    assert (table["margin"] > -1e-6).all() and (table["predicted"] != plain["predicted"]).any()


def test_at_least_the_threshold_is_enough() -> None:
    X_train, y, X = numbers()
    model = Model.wrap(lambda rows: np.tile([0.7, 0.3], (len(rows), 1)), classes=["bad", "good"])
    certs = certified(model, X_train, X[:3], decision={"class": "good", "threshold": 0.3})
    assert named(certs) == ["good"] * 3
    own = FixedThresholdClassifier(GaussianNB(), threshold=0.3, pos_label="good").fit(X_train, y)
    assert Protocol.fit(own, X_train).decision == Decision("good", 0.3)


def test_search_and_stress_judge_the_declared_decision() -> None:
    X_train, y, X = numbers()
    model = LogisticRegression().fit(X_train, y)
    protocol = Protocol.fit(model, X_train, decision={"class": "bad", "threshold": 0.3})
    certs = fg.audit(model, X[:40], protocol)
    found = fg.find_failing_sets(model, X[:40], protocol)
    budget = certs.to_pandas()["flip_budget"].to_numpy()
    assert (found.size <= budget).all()
    labels = fg.label_brittle(model, X[:40], protocol)
    assert [certs.classes[i] for i in labels.predicted] == named(certs)
    np.testing.assert_allclose(labels.margin, certs.to_pandas()["margin"], atol=1e-9)


def test_a_threshold_on_scores_is_refused_with_the_remedy() -> None:
    X_train, y, X = numbers()
    model = FixedThresholdClassifier(
        LogisticRegression(), threshold=0.2, pos_label="bad", response_method="decision_function"
    ).fit(X_train, y)
    with pytest.raises(fg.ModelError, match=r"thresholds the decision function.*response_method='predict_proba'"):
        certified(model, X_train, X)


def test_a_threshold_that_decides_everything_is_refused() -> None:
    X_train, y, X = numbers()
    model = FixedThresholdClassifier(LogisticRegression(), threshold=0.0, pos_label="bad").fit(X_train, y)
    with pytest.raises(fg.ModelError, match=r"threshold 0, at which one class is predicted"):
        certified(model, X_train, X)


def test_a_protocol_for_another_decision_is_refused() -> None:
    X_train, y, X = numbers()
    plain = LogisticRegression().fit(X_train, y)
    model = FixedThresholdClassifier(plain, threshold=0.3, pos_label="bad").fit(X_train, y)
    with pytest.raises(fg.ProtocolError, match=r"predicts 'bad' .* at least 0.3, the protocol declares the class with"):
        fg.audit(model, X, Protocol.fit(plain, X_train))
    with pytest.raises(fg.ProtocolError, match=r"at least 0.3, the protocol declares 'bad' .* 0.4; fit a protocol"):
        Protocol.fit(model, X_train, decision={"class": "bad", "threshold": 0.4})


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        (1.0, "must be a number between 0 and 1"),
        (0, "must be a number between 0 and 1"),
        ("0.3", "must be a number .*, got '0.3'"),
        (True, "must be a number .*, got true"),
        ({"class": "ugly", "threshold": 0.3}, r"names the class 'ugly', but the classes are \['bad', 'good'\]"),
        ({"class": "bad"}, "has the entries 'class' and 'threshold'"),
        (
            {"class": ["bad"], "threshold": 0.3},
            "label of a decision must be text, a whole number",
        ),
    ],
)
def test_decisions_that_make_no_sense_are_refused(decision, told: str) -> None:
    X_train, y, _ = numbers()
    with pytest.raises(fg.ProtocolError, match=told):
        Protocol.fit(LogisticRegression().fit(X_train, y), X_train, decision=decision)


def test_a_threshold_needs_two_classes() -> None:
    case = fitted("credit_g_property", "logistic", "transformed")
    with pytest.raises(fg.ProtocolError, match="needs a model with two classes, this one has 4"):
        Protocol.fit(case.model, case.X_train, decision=0.3)


def test_the_decision_is_part_of_the_protocol_file() -> None:
    X_train, y, _ = numbers()
    model = LogisticRegression().fit(X_train, y)
    protocol = Protocol.fit(model, X_train, decision=0.25)
    assert protocol.decision == Decision("good", 0.25)
    assert protocol.to_dict()["decision"] == {"class": "good", "threshold": 0.25}
    again = Protocol.from_json(protocol.to_json())
    assert again == protocol and again.digest == protocol.digest
    assert "'good' where its probability is at least 0.25" in repr(protocol)
    digests = {protocol.digest}
    for other in (None, Decision("bad", 0.25), Decision("good", 0.3)):
        digests.add(dataclasses.replace(protocol, decision=other).digest)
    assert len(digests) == 4
    with pytest.raises(fg.ProtocolError, match="lacks the field 'decision'"):
        Protocol.from_dict({key: value for key, value in protocol.to_dict().items() if key != "decision"})
    with pytest.raises(fg.ProtocolError, match=r"decision in the protocol must be an object or null, got 0\.3"):
        Protocol.from_dict({**protocol.to_dict(), "decision": 0.3})


def test_rows_that_are_taken_keep_their_decisions() -> None:
    X_train, y, X = numbers()
    model = LogisticRegression().fit(X_train, y)
    rows = bind(model, X, Protocol.fit(model, X_train))
    assert rows.take([5, 2]).decided.tolist() == rows.decided[[5, 2]].tolist()


def test_the_fingerprint_covers_the_threshold(thresholds) -> None:
    data = split("credit_g")
    inner = thresholds["around a pipeline"].estimator
    y = data.y_train.to_numpy(str)
    prints = {
        Model.wrap(FixedThresholdClassifier(inner, threshold=t, pos_label="bad").fit(data.X_train, y)).fingerprint
        for t in (0.3, 0.31)
    }
    assert len(prints | {Model.wrap(inner).fingerprint}) == 3


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_the_threshold_of_a_catboost_model_is_its_decision(space: str, tmp_path: Any) -> None:
    catboost = pytest.importorskip("catboost")
    X_train, y, X = numbers()
    settings = {"iterations": 20, "depth": 3, "verbose": 0, "thread_count": 1, "allow_writing_files": False}
    model = catboost.CatBoostClassifier(**settings).fit(X_train, y)
    plain = Model.wrap(model).fingerprint
    model.set_probability_threshold(0.8)
    wrapped = Model.wrap(model)
    assert wrapped.decision == Decision(str(model.classes_[1]), 0.8) and wrapped.kind == "CatBoostClassifier"
    assert wrapped.fingerprint != plain
    certs = certified(model, X_train, X, space=space)
    assert certs.engine != "blackbox" and named(certs) == model.predict(X).tolist()
    assert certs.protocol.decision == wrapped.decision and fg.verify(certs, model, X)
    model.save_model(tmp_path / "model.cbm")
    loaded = fg.load_model(tmp_path / "model.cbm")
    assert (loaded.fingerprint, loaded.decision) == (wrapped.fingerprint, wrapped.decision)
    model.set_probability_threshold(0.5)
    assert Model.wrap(model).decision is None and Model.wrap(model).fingerprint == plain
    assert not fg.verify(certs, loaded.estimator.set_probability_threshold(0.7) or loaded.estimator, X)
    model.set_probability_threshold(1.0)
    with pytest.raises(fg.ModelError, match="CatBoostClassifier has the threshold 1, at which one class is predicted"):
        Model.wrap(model)


def test_a_frozen_classifier_is_looked_through_at_the_end_of_a_pipeline() -> None:
    X_train, y, X = numbers()
    scale = StandardScaler().fit(X_train)
    head = LogisticRegression().fit(scale.transform(X_train), y)
    model = make_pipeline(scale, FrozenEstimator(head))
    certs = certified(model, X_train, X)
    assert certs.engine == "linear" and named(certs) == model.predict(X).tolist()


# --- steadiness ------------------------------------------------------------------------------------------------------


def sigmoid(score: np.ndarray) -> np.ndarray:
    p = 1.0 / (1.0 + np.exp(-score))
    return np.column_stack([1.0 - p, p])


@pytest.mark.parametrize("space", ["transformed", "raw"])
def test_a_model_that_depends_on_its_batch_is_refused(space: str) -> None:
    X_train, _, X = numbers()
    model = Model.wrap(lambda rows: sigmoid(rows[:, 0] - rows[:, 0].mean()), classes=[0, 1])
    with pytest.raises(fg.ModelError, match="depends on the other rows of its batch"):
        certified(model, X_train, X, space=space)


@pytest.mark.parametrize("size", [33, 100, 600])
def test_a_model_that_answers_otherwise_in_larger_batches_is_refused(size: int) -> None:
    """Sixteen rows twice, and two alone, agree: the steadiness of thirty-two rows says nothing of a thousand."""
    X = np.random.default_rng(1).normal(size=(1200, 3))
    model = Model.wrap(lambda rows: sigmoid(rows[:, 0] * (1.0 if len(rows) < size else -1.0)), classes=[0, 1])
    protocol = fg.Protocol.fit(model, X[:20])
    with pytest.raises(fg.ModelError, match="depends on the other rows of its batch"):
        fg.audit(model, X, protocol)


def test_preprocessing_that_depends_on_its_batch_is_refused() -> None:
    X_train, y, X = numbers()
    centre = FunctionTransformer(lambda rows: rows - rows.mean(axis=0), feature_names_out="one-to-one")
    model = make_pipeline(centre, LogisticRegression()).fit(X_train, y)
    with pytest.raises(fg.ModelError, match="depends on the other rows of its batch") as refused:
        certified(model, X_train, X)
    step = (
        "its step 'functiontransformer' (FunctionTransformer) makes something else of a row among other rows; replace"
    )
    assert step in str(refused.value)


class KNNImputer(SimpleImputer):
    """Like its namesake where neighbours are equally far: the batch decides which of them it takes."""

    def transform(self, X):
        return super().transform(X) + 1e-3 * len(X)


def test_an_imputer_that_depends_on_its_batch_is_named_with_what_to_do() -> None:
    X_train, y, X = numbers()
    inside = make_column_transformer((make_pipeline(StandardScaler(), KNNImputer()), [0, 1]), remainder="passthrough")
    model = make_pipeline(inside, LogisticRegression()).fit(X_train, y)
    with pytest.raises(fg.ModelError, match="depends on the other rows of its batch") as refused:
        certified(model, X_train, X, space="raw")
    told = str(refused.value)
    assert "its step 'knnimputer' (KNNImputer) makes something else" in told and "SimpleImputer or IterativeImp" in told


def test_preprocessing_that_counts_its_rows_is_refused() -> None:
    X_train, y, X = numbers()
    lone = FunctionTransformer(lambda rows: rows if len(rows) > 1 else 1.0 - rows, feature_names_out="one-to-one")
    model = make_pipeline(lone, LogisticRegression()).fit(X_train, y)
    with pytest.raises(fg.ModelError, match="depends on the other rows of its batch"):
        certified(model, X_train, X)


class Counting:
    """Answers unstressed rows as they are, and stressed ones by another rule in the batches of an audit."""

    def __init__(self, baseline: np.ndarray, deceives: Any) -> None:
        self.baseline, self.deceives = baseline, deceives

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        score = 3.0 * rows[:, 0]
        if self.deceives(len(rows)):
            stressed = (np.abs(rows - self.baseline) < 1e-9).any(axis=1)
            score = np.where(stressed, 6.0, score)
        return sigmoid(score)


@pytest.mark.parametrize(
    ("deceives", "asked"),
    [
        (lambda count: count > 1, "alone"),
        (lambda count: count >= 128, "alone"),
        (lambda count: count == 1 or count > 128, "in a batch of"),
    ],
)
def test_a_model_that_counts_the_states_it_is_asked_about_is_refused(deceives: Any, asked: str) -> None:
    X = np.random.default_rng(1).normal(size=(400, 3))
    X[:, 0] = np.abs(X[:, 0])
    honest = Model.wrap(Counting(np.zeros(3), lambda count: False), classes=[0, 1])
    protocol = Protocol.fit(honest, X)
    baseline = np.array([column.baseline for column in protocol.columns])
    model = Model.wrap(Counting(baseline, deceives), classes=[0, 1])
    message = rf"answers a stressed row otherwise when it is asked {asked}.*give a model that answers row by row"
    with pytest.raises(fg.ModelError, match=message):
        fg.audit(model, X, protocol)


def test_a_verifier_asks_states_alone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(1).normal(size=(400, 3))
    X[:, 0] = np.abs(X[:, 0])
    protocol = Protocol.fit(Model.wrap(Counting(np.zeros(3), lambda count: False), classes=[0, 1]), X)
    baseline = np.array([column.baseline for column in protocol.columns])
    model = Model.wrap(Counting(baseline, lambda count: count > 1), classes=[0, 1])
    with monkeypatch.context() as patched:  # an auditor who does not look
        patched.setattr("fragility.engines.oracle.check_steady_states", lambda *_, **__: None)
        certs = fg.audit(model, X, protocol)
    for sample in (None, 3):
        with pytest.raises(fg.VerificationError, match="otherwise when it is asked alone than among the states of an"):
            fg.verify(certs, model, X, sample=sample)


def test_a_random_model_is_refused() -> None:
    X_train, _, X = numbers()
    generator = np.random.default_rng(0)
    model = Model.wrap(lambda rows: sigmoid(rows[:, 0] + generator.normal(size=len(rows))), classes=[0, 1])
    with pytest.raises(fg.ModelError, match="gives different answers for the same row"):
        certified(model, X_train, X)


def test_rounding_of_a_float32_network_passes_with_a_warning_above_the_resolution() -> None:
    X_train, _, X = numbers()

    def rounds(rows: np.ndarray) -> np.ndarray:
        return sigmoid(rows[:, 0] + 2e-5 * (len(rows) % 2))  # as a product in single precision may

    model = Model.wrap(rounds, classes=[0, 1])
    with pytest.warns(UserWarning, match=r"rounds margins by about 2e-05 .* declare a resolution of 1e-4"):
        certified(model, X_train, X[:31])
    protocol = Protocol.fit(model, X_train, resolution=1e-4)
    assert len(fg.audit(model, X[:31], protocol)) == 31


@pytest.mark.parametrize(
    ("score", "moved", "outcome"),
    [
        (0.0, 3e-4, "refused"),  # more than single precision rounds a margin by
        (0.0, 5e-5, "warned"),
        (-12.0, 0.3, "warned"),  # of a small probability, 2e-6 of it: its logarithm is steep
        (-18.0, 0.3, "warned"),  # 5e-9
        (-21.0, 0.3, "silent"),  # 3e-10, as double precision rounds
    ],
)
def test_how_far_answers_may_depend_on_the_batch(score: float, moved: float, outcome: str) -> None:
    X_train, _, X = numbers()
    model = Model.wrap(lambda rows: sigmoid(np.full(len(rows), score + moved * (len(rows) % 2))), classes=[0, 1])
    protocol = Protocol.fit(model, X_train)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if outcome == "refused":
            with pytest.raises(fg.ModelError, match="depends on the other rows of its batch"):
                bind(model, X[:32], protocol)
            return
        bind(model, X[:32], protocol)
    assert any("rounds margins by about" in str(warning.message) for warning in told) == (outcome == "warned")


@pytest.mark.parametrize(("lag", "refused"), [(5e-5, False), (3e-4, True)])
def test_a_label_may_lag_behind_by_rounding_and_no_more(lag: float, refused: bool) -> None:
    class Lagging(GaussianNB):
        def predict_proba(self, X):
            return sigmoid(np.full(len(X), -lag))

        def predict(self, X):
            return np.full(len(X), self.classes_[1])

    X_train, y, X = numbers()
    model = Lagging().fit(X_train, y)
    if refused:
        with pytest.raises(fg.ModelError, match="differs from its probabilities in 20 of 20 rows"):
            certified(model, X_train, X[:20])
        return
    certs = certified(model, X_train, X[:20])
    assert set(named(certs)) == {"good"} and certs.claims.margin == pytest.approx(-lag)


def test_tables_with_any_index_are_probed_by_position() -> None:
    data = split("credit_g")
    model = fitted("credit_g", "logistic", "transformed").model
    X = data.X_test[:40].set_axis(np.linspace(5.0, 1.0, 40))
    assert len(certified(model, data.X_train, X)) == 40
