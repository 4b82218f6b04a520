"""Brittleness-aware temperature: the algorithm, its two promises, files, the classifier and the pictures."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pipelines import fitted, split
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fragility.analysis.calibration import (
    ETAS,
    METHODS,
    FragilityCalibratedClassifier,
    FragilityTemperature,
    calibration_report,
    corrections,
    fragile_rows,
    global_temperature,
    scaled_probabilities,
)
from fragility.analysis.ranking.metrics import brier_score, expected_calibration_error, negative_log_likelihood
from fragility.auditing.pipeline import audit
from fragility.base.errors import DataError, ModelError
from fragility.protocol import Protocol
from fragility.scores import pseudo_logits


def overconfident(seed: int = 0, n: int = 2000, n_classes: int = 2, by_fds: float = 2.0):
    """Rows whose stated log odds are too large, the more so the higher their FDS."""
    rng = np.random.default_rng(seed)
    fds = rng.beta(2, 3, n)
    honest = rng.normal(size=(n, n_classes)) * 1.5
    p = np.exp(honest) / np.exp(honest).sum(axis=1, keepdims=True)
    y = (rng.random((n, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(max=n_classes - 1)
    stated = honest * (1.2 + by_fds * fds[:, None])
    q = np.exp(stated) / np.exp(stated).sum(axis=1, keepdims=True)
    return q, y, fds


def slow_correction(p, y, fds, new_p, new_fds):
    """alg:bats_calibration by loops, with T0 as given by a plain one-dimensional search."""

    def softmax(z):
        return [np.exp(v - max(z)) / sum(np.exp(u - max(z)) for u in z) for v in z]

    def scaled(rows, temperatures):
        pairs = zip(rows, temperatures, strict=True)
        return np.array([softmax([v / t for v in pseudo_logits(row)]) for row, t in pairs])

    def nll(rows, temperatures):
        q = scaled(rows, temperatures)
        return -np.mean([np.log(max(q[i][y[i]], 1e-12)) for i in range(len(y))])

    t0 = np.exp(minimize_scalar(lambda log_t: nll(p, [np.exp(log_t)] * len(p)), bounds=(-3, 3), method="bounded").x)
    low, high = min(fds), max(fds)

    def norm(f):
        return min(max((f - low) / (high - low), 0.0), 1.0)

    best = min((nll(p, [t0 + eta * norm(f) for f in fds]), eta) for eta in ETAS)[1]
    return t0, best, scaled(new_p, [t0 + best * norm(f) for f in new_fds])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_correction_equals_its_slow_twin(n_classes):
    p, y, fds = overconfident(1, 400, n_classes)
    new_p, _, new_fds = overconfident(2, 50, n_classes)
    new_fds = new_fds * 1.5 - 0.2  # beyond the validation range on both sides
    calibrator = FragilityTemperature().fit(p, y, fds)
    t0, eta, expected = slow_correction(p, y, fds, new_p, new_fds)
    assert calibrator.temperature_ == pytest.approx(t0, rel=1e-4)
    assert calibrator.eta_ == eta > 0
    np.testing.assert_allclose(calibrator.transform(new_p, new_fds), expected, atol=1e-4)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_global_temperature_is_recovered(n_classes):
    rng = np.random.default_rng(0)
    honest = rng.normal(size=(20_000, n_classes))
    p = np.exp(honest) / np.exp(honest).sum(axis=1, keepdims=True)
    y = (rng.random((20_000, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(max=n_classes - 1)
    assert global_temperature(p, y) == pytest.approx(1.0, rel=0.05)
    assert global_temperature(scaled_probabilities(p, 0.4), y) == pytest.approx(2.5, rel=0.05)


def test_the_global_temperature_is_a_minimum_of_the_validation_nll():
    p, y, _ = overconfident(3)
    t0 = global_temperature(p, y)
    at = negative_log_likelihood(scaled_probabilities(p, t0), y)
    assert at <= negative_log_likelihood(scaled_probabilities(p, t0 * 1.01), y)
    assert at <= negative_log_likelihood(scaled_probabilities(p, t0 / 1.01), y)


def test_a_class_without_validation_rows_is_allowed():
    p, y, fds = overconfident(4, 600, 4)
    kept = y != 2
    calibrator = FragilityTemperature().fit(p[kept], y[kept], fds[kept])
    assert calibrator.n_classes_ == 4
    only = FragilityTemperature().fit(p[y == 0], y[y == 0], fds[y == 0])
    assert only.temperature_ > 0


# --- the two promises -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 60),
    n_classes=st.integers(2, 4),
    by_fds=st.floats(-1.0, 6.0),
)
def test_never_worse_than_temperature_scaling_on_validation(seed, n, n_classes, by_fds):
    p, y, fds = overconfident(seed, n, n_classes, by_fds)
    calibrator = FragilityTemperature().fit(p, y, fds)
    corrected = corrections(calibrator, p, fds)
    aware = negative_log_likelihood(corrected["brittleness-aware"], y)
    assert aware <= negative_log_likelihood(corrected["temperature"], y)
    assert aware == calibrator.validation_nll_[calibrator.eta_]


def near_ties():
    """Probabilities at, and a few rounding steps beside, ties; and rows where a class has none."""
    base = st.sampled_from([0.5, 0.25, 1 / 3, 1e-13, 1e-300, 0.0, 1.0])
    step = st.integers(-3, 3).map(lambda k: k * 2.0**-53)
    return st.lists(st.tuples(base, step).map(lambda pair: max(pair[0] + pair[1], 0.0)), min_size=2, max_size=5)


@settings(max_examples=300, deadline=None)
@given(
    row=st.one_of(near_ties(), st.lists(st.floats(0, 1), min_size=2, max_size=5)),
    temperature=st.one_of(st.floats(1e-4, 1e4), st.sampled_from([4.5e-5, 1.0, 22026.0])),
)
def test_no_temperature_changes_a_label_not_even_at_ties(row, temperature):
    assume(sum(row) > 0)
    p = np.array([row]) / sum(row)
    q = scaled_probabilities(p, temperature)
    assert q.argmax() == p.argmax()
    assert q.sum() == pytest.approx(1.0)
    assert (q >= 0).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), n_classes=st.integers(2, 5), fds=st.floats(-1, 3))
def test_the_correction_never_changes_a_label(seed, n_classes, fds):
    p, y, f = overconfident(seed, 80, n_classes)
    calibrator = FragilityTemperature().fit(p, y, f)
    new = np.random.default_rng(seed).dirichlet(np.full(n_classes, 0.3), 40)
    corrected = calibrator.transform(new, np.full(40, fds))
    assert np.array_equal(corrected.argmax(axis=1), new.argmax(axis=1))


def test_an_exact_tie_stays_a_tie():
    q = scaled_probabilities([[0.4, 0.4, 0.2]], 7.0)
    assert q[0, 0] == q[0, 1] > q[0, 2]


# --- what the parts mean --------------------------------------------------------------------------------------


def test_fragile_rows_lose_more_confidence():
    p, y, fds = overconfident()
    calibrator = FragilityTemperature().fit(p, y, fds)
    assert calibrator.eta_ > 0
    same = np.tile([0.95, 0.05], (3, 1))
    confidence = calibrator.transform(same, [0.1, 0.5, 0.9])[:, 0]
    assert confidence[0] > confidence[1] > confidence[2] > 0.5


def test_new_fds_are_clipped_to_the_validation_range():
    p, y, fds = overconfident()
    calibrator = FragilityTemperature().fit(p, y, fds)
    low, high = calibrator.fds_range_
    assert calibrator.normalised([low - 1, low, high, high + 1]).tolist() == [0.0, 0.0, 1.0, 1.0]


def test_equal_fds_leave_plain_temperature_scaling():
    p, y, _ = overconfident()
    calibrator = FragilityTemperature().fit(p, y, np.full(len(y), 0.4))
    assert calibrator.eta_ == 0.0
    np.testing.assert_array_equal(calibrator.temperatures([0.0, 0.9]), calibrator.temperature_)


def test_when_fds_says_nothing_eta_is_small_and_zero_wins_ties():
    p, y, fds = overconfident(by_fds=0.0)
    shuffled = np.random.default_rng(0).permutation(fds)
    assert FragilityTemperature().fit(p, y, shuffled).eta_ <= 0.25
    assert FragilityTemperature(etas=[0.0]).fit(p, y, fds).eta_ == 0.0


def test_labels_may_be_given_with_declared_classes():
    p, y, fds = overconfident()
    names = np.array(["no", "yes"])
    by_code = FragilityTemperature().fit(p, y, fds)
    by_name = FragilityTemperature(classes=("no", "yes")).fit(p, names[y], fds)
    assert by_code.temperature_ == by_name.temperature_
    assert clone(by_name).classes == ("no", "yes")


def test_the_correction_travels_as_json(tmp_path):
    p, y, fds = overconfident()
    calibrator = FragilityTemperature(classes=("no", "yes")).fit(p, np.array(["no", "yes"])[y], fds)
    calibrator.save(tmp_path / "t.json")
    again = FragilityTemperature.load(tmp_path / "t.json")
    assert np.array_equal(again.transform(p, fds), calibrator.transform(p, fds))
    assert again.to_dict() == calibrator.to_dict()


def test_report_figures_are_those_of_the_metrics():
    p, y, fds = overconfident(0)
    calibrator = FragilityTemperature().fit(p, y, fds)
    new_p, new_y, new_fds = overconfident(1)
    report = calibration_report(calibrator, new_p, new_y, new_fds)
    found = {(line.method, line.subset) for line in report.lines}
    assert found == {(method, subset) for method in METHODS for subset in ("all", "fragile")}
    fragile = np.argsort(-new_fds, kind="stable")[:400]
    line = report.line("brittleness-aware", "fragile")
    q = calibrator.transform(new_p, new_fds)[fragile]
    assert line.rows == 400
    assert line.ece == pytest.approx(expected_calibration_error(q, new_y[fragile]))
    assert line.brier == pytest.approx(brier_score(q, new_y[fragile]))
    assert line.nll == pytest.approx(negative_log_likelihood(q, new_y[fragile]))
    assert report.line("raw", "all").nll == pytest.approx(negative_log_likelihood(new_p, new_y))
    assert line.nll < report.line("temperature", "fragile").nll < report.line("raw", "fragile").nll
    assert report.to_pandas().shape == (6, 6)
    assert "brittleness-aware" in str(report)
    json.dumps(report.to_dict())


@pytest.mark.parametrize(("n", "expected"), [(10, 2), (11, 3), (1, 1), (5, 1)])
def test_the_fragile_fifth_is_rounded_up(n, expected):
    chosen = fragile_rows(np.arange(n))
    assert chosen.sum() == expected
    assert chosen[-expected:].all()


def test_among_equals_the_earlier_rows_are_taken():
    assert fragile_rows([0.5] * 5, 0.4).tolist() == [True, True, False, False, False]


# --- a real model ---------------------------------------------------------------------------------------------


@functools.cache
def audited():
    case, part = fitted("credit_g", "random_forest", "transformed"), split("credit_g")
    return case.model, Protocol.fit(case.model, part.X_train), part


def test_the_classifier_audits_new_rows_then_corrects():
    model, protocol, part = audited()
    X_val, y_val = part.X_test[:200], part.y_test[:200]
    X_new = part.X_test[200:260]
    aware = FragilityCalibratedClassifier(model, protocol, engine="blackbox").fit(X_val, y_val)
    fds = audit(model, X_new, protocol, engine="blackbox").claims.fds
    expected = aware.calibrator_.transform(model.predict_proba(X_new), fds)
    np.testing.assert_allclose(aware.predict_proba(X_new), expected, atol=1e-12)
    assert np.array_equal(aware.predict(X_new), model.predict(X_new))
    assert np.array_equal(aware.classes_, model.classes_)
    assert aware.score(X_new, part.y_test[200:260]) == model.score(X_new, part.y_test[200:260])
    turned = X_new[X_new.columns[::-1]]
    np.testing.assert_array_equal(aware.predict_proba(turned), aware.predict_proba(X_new))
    one_by_one = np.vstack([aware.predict_proba(X_new[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(one_by_one, expected[:5], atol=1e-12)


def test_the_classifier_takes_a_fitted_correction_and_needs_one():
    model, protocol, part = audited()
    with pytest.raises(NotFittedError):
        FragilityCalibratedClassifier(model, protocol, engine="blackbox").predict_proba(part.X_test[:2])
    first = FragilityCalibratedClassifier(model, protocol, engine="blackbox").fit(part.X_test[:200], part.y_test[:200])
    second = FragilityCalibratedClassifier(model, protocol, first.calibrator_, engine="blackbox")
    assert np.array_equal(second.predict_proba(part.X_test[200:210]), first.predict_proba(part.X_test[200:210]))
    with pytest.raises(DataError, match="not among the model's classes"):
        FragilityCalibratedClassifier(model, protocol, engine="blackbox").fit(part.X_test[:3], ["good", "bad", "ugly"])


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "y", "fds", "message"),
    [
        ([0.5, 0.5], [0], [0.1], "probabilities must be"),
        ([[0.5, 0.5]], [0], [0.1, 0.2], "one number for each of the 1 rows"),
        ([[0.5, 0.5]], [0], [np.nan], "fds must be finite; 1 of 1 rows are not"),
        ([[0.5, 0.7]], [0], [0.1], "sum to 1"),
        ([[0.5, 0.5]], ["a"], [0.1], r"declare classes=\[...\]"),
        ([[0.5, 0.5]], [3], [0.1], r"must lie in 0\.\.1"),
    ],
)
def test_bad_rows_are_refused(p, y, fds, message):
    with pytest.raises(DataError, match=message):
        FragilityTemperature().fit(p, y, fds)


def test_other_refusals(tmp_path):
    p, y, fds = overconfident(n=50)
    with pytest.raises(DataError, match="contain 0"):
        FragilityTemperature(etas=[0.5]).fit(p, y, fds)
    with pytest.raises(DataError, match="classes names 3 labels, the probabilities have 2 columns"):
        FragilityTemperature(classes=(0, 1, 2)).fit(p, y, fds)
    with pytest.raises(NotFittedError):
        FragilityTemperature().transform(p, fds)
    calibrator = FragilityTemperature().fit(p, y, fds)
    with pytest.raises(DataError, match="fitted on 2 classes, these rows have 3"):
        calibrator.transform(np.full((1, 3), 1 / 3), [0.1])
    with pytest.raises(DataError, match=r"the fragile share must lie in \(0, 1\], got 0.0"):
        fragile_rows(fds, 0.0)
    with pytest.raises(ModelError, match="expected a temperature correction of format"):
        FragilityTemperature.from_dict({"format": "other"})
    with pytest.raises(ModelError, match="could change a predicted label"):
        FragilityTemperature.from_dict({**calibrator.to_dict(), "temperature": -1.0})
    with pytest.raises(ModelError, match="cannot read the temperature correction"):
        FragilityTemperature.load(tmp_path / "absent.json")
    with pytest.raises(ModelError, match="malformed"):
        FragilityTemperature.from_dict({"format": calibrator.to_dict()["format"]})
    with pytest.raises(DataError, match="no line 'isotonic'"):
        calibration_report(calibrator, p, y, fds).line("isotonic", "all")
