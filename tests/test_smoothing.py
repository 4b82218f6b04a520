"""Smoothing: margins of (p + a) / (1 + C a), and nothing else of a certificate."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pipelines
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naive import naive_brittle, naive_certificate, naive_margin, naive_support_margin
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from traces import assert_same_trace

import fragility as fg
from fragility.analysis.ranking import scores
from fragility.base.errors import ProtocolError
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.choice import find_engine
from fragility.engines.oracle import ModelOracle
from fragility.protocol import Protocol, bind
from fragility.questions.stress.draws import row_keys
from fragility.questions.stress.labels import label_rows, run_stress_rows
from fragility.questions.stress.stressors import Layout
from fragility.scores import READINGS, reading_margin, support_margin

ENGINES = {"logistic": "linear", "mlp": "neural"}  # by family; the others are trees
VOTES = st.integers(1, 500)


# --- the margin itself --------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 200), min_size=2, max_size=6).filter(any),
    st.sampled_from(READINGS),
    st.floats(1e-3, 1.0),
    st.one_of(st.none(), st.floats(0.01, 0.99)),
)
@settings(deadline=None)
def test_it_is_the_slow_twins(votes, reading, smoothing, threshold):
    p = np.array(votes) / sum(votes)
    decision, offset = None, None
    if threshold is not None and len(p) == 2:
        decision, offset = (0, threshold), np.array([np.log1p(-threshold) - np.log(threshold), 0.0])
    for original in range(len(p)):
        found = reading_margin(p, original, reading, offset, smoothing)
        assert found == pytest.approx(naive_margin(p, original, reading, decision, smoothing), rel=1e-9, abs=1e-12)


@given(VOTES, VOTES, st.floats(1e-3, 1.0), st.one_of(st.none(), st.floats(0.001, 0.999)))
@example(0, 7, 1.0, None)
@example(3, 7, 0.5, 0.3)
@settings(deadline=None)
def test_it_keeps_the_side_of_every_decision(mine, others, smoothing, threshold):
    """A smoothed margin is negative exactly where the unsmoothed one is, also at a declared threshold."""
    p = np.array([mine, others]) / (mine + others)
    offset = None if threshold is None else np.array([np.log1p(-threshold) - np.log(threshold), 0.0])
    plain = float(support_margin(p, 0, offset))
    smooth = float(reading_margin(p, 0, "support", offset, smoothing))
    if abs(plain) > 1e-9:
        assert np.sign(smooth) == np.sign(plain)
        assert abs(smooth) < abs(plain) or threshold is not None
    else:
        assert abs(smooth) < 1e-8


@given(st.integers(1, 1000))
@settings(deadline=None)
def test_of_full_agreement_it_is_what_the_votes_say(trees):
    """All of T trees for one class: log((T + 1) / 1), and without smoothing the clip."""
    assert reading_margin([1.0, 0.0], 0, "support", None, 1 / trees) == pytest.approx(np.log(trees + 1))
    assert reading_margin([1.0, 0.0], 0, "support", None, 0.0) == pytest.approx(-np.log(1e-12))


# --- the default --------------------------------------------------------------------------------------------------


def numbers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    return X, (X[:, 0] + 0.3 * rng.normal(size=80) > 0).astype(int)


@pytest.mark.parametrize(
    ("classifier", "expected"),
    [
        (RandomForestClassifier(20, random_state=0), 1 / 20),
        (ExtraTreesClassifier(8, random_state=0), 1 / 8),
        (BaggingClassifier(DecisionTreeClassifier(max_depth=2), 5, random_state=0), 1 / 5),
        (BaggingClassifier(LogisticRegression(), 4, random_state=0), 1 / 4),
        (GradientBoostingClassifier(n_estimators=4), 0.0),
        (AdaBoostClassifier(n_estimators=4), 0.0),
        (DecisionTreeClassifier(max_depth=2), 0.0),
        (LogisticRegression(), 0.0),
        (VotingClassifier([("a", LogisticRegression())], voting="soft"), 0.0),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, float) else f"{value:g}",
)
def test_by_default_one_vote_for_each_class_where_votes_are_averaged(classifier, expected):
    X, y = numbers()
    fitted = classifier.fit(X, y)
    pipeline = make_pipeline(StandardScaler(), classifier).fit(X, y)
    looked_through = [FrozenEstimator(fitted), FixedThresholdClassifier(fitted, threshold=0.4).fit(X, y)]
    for model in (fitted, pipeline, *looked_through, make_pipeline(FrozenEstimator(fitted))):
        assert Protocol.fit(model, X).smoothing == expected
        assert Protocol.paper(model, X).smoothing == 0.0
    assert Protocol.fit(fitted, X, smoothing=0.25).smoothing == 0.25
    assert Protocol.fit(fitted, X, smoothing=0).smoothing == 0.0


def test_imbalanced_learns_forests_and_bags_average_votes_too():
    ensemble = pytest.importorskip("imblearn.ensemble")
    X, y = numbers()
    forest = ensemble.BalancedRandomForestClassifier(6, random_state=0).fit(X, y)
    assert Protocol.fit(forest, X).smoothing == 1 / 6
    bag = ensemble.BalancedBaggingClassifier(n_estimators=3, random_state=0).fit(X, y)
    assert Protocol.fit(bag, X).smoothing == 1 / 3


def test_a_hardened_forest_is_looked_through():
    X, y = numbers()
    hardened = fg.HardenedClassifier(RandomForestClassifier(7, random_state=0)).fit(X, y)
    assert Protocol.fit(hardened, X).smoothing == 1 / 7


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan"), float("inf")])
def test_it_lies_between_0_and_1(wrong):
    X, y = numbers()
    model = LogisticRegression().fit(X, y)
    with pytest.raises(ProtocolError, match=r"smoothing must be a number from 0 to 1, got"):
        Protocol.fit(model, X, smoothing=wrong)
    with pytest.raises(ProtocolError, match=r"smoothing must be a number, got 'much'"):
        Protocol.fit(model, X, smoothing="much")


def test_it_is_part_of_the_document_the_digest_and_what_is_shown():
    X, y = numbers()
    forest = RandomForestClassifier(20, random_state=0).fit(X, y)
    protocol, plain = Protocol.fit(forest, X), Protocol.fit(forest, X, smoothing=0.0)
    assert protocol.digest != plain.digest
    assert Protocol.from_json(protocol.to_json()) == protocol
    assert "smoothing 0.05" in repr(protocol) and "<th>smoothing</th><td>0.05</td>" in protocol._repr_html_()
    document = json.loads(protocol.to_json())
    assert document["smoothing"] == 0.05
    for wrong, message in [
        (True, "smoothing in the protocol must be a number"),
        (2, "from 0 to 1"),
        (None, "must be a number"),
    ]:
        with pytest.raises(ProtocolError, match=message):
            Protocol.from_dict({**document, "smoothing": wrong})
    del document["smoothing"]
    with pytest.raises(ProtocolError, match="lacks the field 'smoothing'"):
        Protocol.from_dict(document)


# --- engines ------------------------------------------------------------------------------------------------------


@pytest.mark.samples
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("dataset", ["credit_g", "credit_g_property"])
@pytest.mark.parametrize("family", ["logistic", "mlp", "random_forest", "lightgbm", "xgboost"])
def test_every_engine_equals_the_slow_twin(family, dataset, reading):
    if family == "mlp":
        pytest.importorskip("torch")
    case = pipelines.fitted(dataset, family, "transformed")
    protocol = Protocol.fit(case.model, case.X_train, smoothing=0.04, reading=reading, depth=4)
    rows = bind(case.model, case.X_test[:5], protocol)
    native = find_engine(rows, ENGINES.get(family, "trees"))(rows).trace(rows, protocol)
    asked = trace_blackbox(rows, protocol)
    groups = [columns.tolist() for columns in rows.group_columns()]
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
            smoothing=0.04,
        )
        for trace in (native, asked):
            assert trace.order[i].tolist() == twin["path"]
            assert trace.path_predicted[i].tolist() == twin["path_predicted"]
            assert [None if np.isinf(value) else value for value in trace.threshold[i]] == twin["threshold"]
            np.testing.assert_allclose(trace.path_margin[i], twin["path_margin"], atol=1e-9)
            np.testing.assert_allclose(trace.one_step_margin[i], twin["one_step_margin"], atol=1e-9)
            known = trace.fade_margin[i][~np.isnan(trace.fade_margin[i])]
            np.testing.assert_allclose(known, twin["fade_margin"], atol=1e-9)
            np.testing.assert_allclose(trace.confidence[i], twin["confidence"], atol=1e-9)


@pytest.mark.samples
@pytest.mark.parametrize("decision", [None, 0.3])
@pytest.mark.parametrize("family", ["logistic", "mlp", "random_forest", "extra_trees", "lightgbm", "catboost"])
def test_engines_agree_with_the_black_box_on_many_rows(family, decision):
    if family == "mlp":
        pytest.importorskip("torch")
    case = pipelines.fitted("credit_g", family, "transformed")
    protocol = Protocol.fit(case.model, case.X_train, smoothing=1 / 25, decision=decision)
    rows = bind(case.model, case.X_test[:200], protocol)
    native = find_engine(rows, ENGINES.get(family, "trees"))(rows).trace(rows, protocol)
    asked = trace_blackbox(rows, protocol)
    assert_same_trace(native, asked)
    np.testing.assert_allclose(native.fade_margin, asked.fade_margin, rtol=0, atol=1e-9)


@pytest.mark.samples
@pytest.mark.parametrize("decision", [None, 0.3])
@pytest.mark.parametrize("family", ["logistic", "random_forest", "lightgbm", "mlp"])
def test_no_decision_depends_on_it(family, decision):
    """Predicted classes, confidences, flips, paths and thresholds of two classes are those without smoothing."""
    case = pipelines.fitted("credit_g", family, "transformed")
    X = case.X_test[:150]
    plain = Protocol.fit(case.model, case.X_train, smoothing=0.0, decision=decision)
    before = fg.audit(case.model, X, plain, progress=False).claims
    for smoothing in (1e-3, 1 / 25, 1.0):
        after = fg.audit(case.model, X, replace(plain, smoothing=smoothing), progress=False).claims
        for name in ("predicted", "path", "path_predicted", "flip_budget", "flipped", "thresholds"):
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name), err_msg=name)
        np.testing.assert_array_equal(after.confidence, before.confidence)
        np.testing.assert_array_equal(np.sign(after.path_margin), np.sign(before.path_margin))
        # a lost decision is fully collapsed, and all is lost from the flip on
        lost = after.path_predicted != after.predicted[:, None]
        assert lost.any() and (after.path_collapse[lost] == 1.0).all()
        assert (np.isnan(after.fade_margin) == np.isnan(before.fade_margin)).all()


def test_many_classes_flip_at_the_same_states():
    """With more than two classes the order of removal may change; whether a state flips does not."""
    case = pipelines.fitted("credit_g_property", "random_forest", "transformed")
    X = case.X_test[:150]
    plain = Protocol.fit(case.model, case.X_train, smoothing=0.0, operators=("attenuate_all",))
    smooth = Protocol.fit(case.model, case.X_train, operators=("attenuate_all",))
    assert smooth.smoothing == 1 / 25
    before, after = (fg.audit(case.model, X, p, progress=False).claims for p in (plain, smooth))
    for name in ("predicted", "confidence", "thresholds"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    same = (np.sort(after.path, axis=1) == np.sort(before.path, axis=1)).all(axis=1)
    np.testing.assert_array_equal(after.path_predicted[same, -1], before.path_predicted[same, -1])
    assert same.any()


@pytest.mark.parametrize("engine", ["auto", "blackbox"])
def test_failing_sets_and_failure_probabilities_do_not_depend_on_it(engine):
    case = pipelines.fitted("credit_g", "random_forest", "transformed")
    blocks = {name: f"block {i % 6}" for i, name in enumerate(case.X_train)}
    X = case.X_test[:25]
    plain = Protocol.fit(case.model, case.X_train, groups=blocks, smoothing=0.0)
    smooth = replace(plain, smoothing=1 / 25)
    before, after = (fg.find_failing_sets(case.model, X, p, engine=engine, progress=False) for p in (plain, smooth))
    np.testing.assert_array_equal(after.size, before.size)
    np.testing.assert_array_equal(after.removed, before.removed)
    np.testing.assert_array_equal(after.margin, before.margin)  # of a set that flips: unsmoothed
    chances = [
        fg.assess_reliability(case.model, X, p, 0.1, engine=engine, progress=False).p_flip for p in (plain, smooth)
    ]
    np.testing.assert_array_equal(*chances)


def test_certificates_of_a_forest_verify():
    case = pipelines.fitted("credit_g", "random_forest", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    certs = fg.audit(case.model, case.X_test[:60], protocol, progress=False)
    assert certs.engine == "trees" and protocol.smoothing > 0
    assert fg.verify(certs, case.model, case.X_test[:60], progress=False).complete


# --- labels and scores --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["expected", "any"])
def test_labels_equal_their_slow_twin(rule):
    case = pipelines.fitted("credit_g", "extra_trees", "transformed")
    protocol = Protocol.fit(case.model, case.X_train, smoothing=0.1)
    rows = bind(case.model, case.X_test[:40], protocol)
    stress = fg.Stress((fg.Mask(0.3), fg.Dropout(0.3)), draws=4, rule=rule, tau_confidence=0.6, tau_collapse=0.4)
    run = run_stress_rows(ModelOracle(rows), protocol, stress)
    labels = label_rows(run, stress)
    layout, expected = Layout.of(protocol, rows), []
    for i in range(len(rows)):
        x = rows.dense(i, i + 1)
        draws = {}
        for stressor in stress.stressors:
            keys = row_keys(stress.seed, stressor.kind, np.array([rows.ids[i]], dtype=object))
            draws[stressor.kind] = rows.stressed(x, stressor.stress_rows(x, keys, np.arange(4), layout)).tolist()
        expected.append(
            naive_brittle(
                lambda cells: rows.predict(np.array(cells, dtype=float))[0].tolist(),
                x[0].tolist(),
                draws,
                rule=rule,
                tau_confidence=0.6,
                tau_kappa=0.4,
                smoothing=0.1,
            )
        )
    assert labels.brittle.tolist() == expected
    assert 0 < labels.brittle.sum() < len(rows)


def test_what_flips_under_stress_does_not_depend_on_it():
    case = pipelines.fitted("credit_g", "random_forest", "transformed")
    stress, X = fg.Stress(draws=4, rule="any"), case.X_test[:80]
    plain, smooth = (
        fg.label_brittle(case.model, X, Protocol.fit(case.model, case.X_train, smoothing=a), stress, progress=False)
        for a in (0.0, 0.04)
    )
    np.testing.assert_array_equal(plain.flip, smooth.flip)
    np.testing.assert_array_equal(plain.run.draw_flip, smooth.run.draw_flip)
    np.testing.assert_array_equal(plain.confidence, smooth.confidence)
    assert plain.flip.any() and not np.allclose(plain.kappa, smooth.kappa)


@pytest.mark.parametrize("dataset", ["credit_g", "credit_g_property"])
def test_scores_of_confidence_are_of_the_models_own_probabilities(dataset):
    case = pipelines.fitted(dataset, "random_forest", "transformed")
    X = case.X_test[:60]
    certs = fg.audit(case.model, X, Protocol.fit(case.model, case.X_train), progress=False)
    full = scores.collect_scores(certs, case.model.predict_proba(X))
    known = scores.collect_scores(certs)
    assert ("margin" in known) == (dataset == "credit_g")
    for name in known:
        np.testing.assert_allclose(known[name], full[name], atol=1e-9, err_msg=name)
    unsmoothed = [abs(naive_support_margin(p, int(np.argmax(p)))) for p in case.model.predict_proba(X)]
    np.testing.assert_allclose(full["margin"], unsmoothed, rtol=1e-9)


def test_orders_of_other_scores_read_smoothed_margins():
    """RCMA along a row's own path is the certificate's."""
    case = pipelines.fitted("credit_g", "extra_trees", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    rows = bind(case.model, case.X_test[:30], protocol)
    claims = fg.audit(case.model, case.X_test[:30], protocol, progress=False).claims
    np.testing.assert_allclose(scores.rcma_along(ModelOracle(rows), protocol, claims.path), claims.rcma, atol=1e-9)
