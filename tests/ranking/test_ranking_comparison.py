"""compare_scores and its report."""

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pipelines
import pytest
from sklearn.metrics import (
    roc_auc_score,
)

from fragility.analysis.ranking import comparison, metrics
from fragility.auditing.pipeline import audit
from fragility.base.errors import DataError
from fragility.protocol import Protocol
from fragility.questions.stress.declaration import Stress
from fragility.questions.stress.labels import label_brittle

NAN = math.nan


@dataclass(frozen=True)
class Given:
    """Labels as plain arrays: all that the metrics ask for."""

    id: np.ndarray
    high_confidence: np.ndarray
    brittle: np.ndarray
    statistic: np.ndarray


def labels_of(brittle, high_confidence=None, rate=None):
    brittle = np.asarray(brittle, dtype=bool)
    confident = (
        np.ones(len(brittle), dtype=bool) if high_confidence is None else np.asarray(high_confidence, dtype=bool)
    )
    return Given(np.arange(len(brittle)), confident, brittle & confident, np.asarray(brittle if rate is None else rate))


@pytest.fixture(scope="module")
def judged():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    stress = Stress(tau_confidence=0.6, tau_collapse=0.3)
    certs = audit(case.model, case.X_test, protocol, engine="blackbox")
    labels = label_brittle(case.model, case.X_test, protocol, stress)
    independent = label_brittle(case.model, case.X_test, protocol, stress.independent())
    return certs, labels, independent


def test_report_on_a_real_model(judged):
    certs, labels, independent = judged
    wrong = np.arange(len(certs)) % 5 == 0
    report = comparison.compare_scores(certs, labels, wrong=wrong, independent=independent, resamples=200)
    keep = labels.high_confidence
    assert (report.rows, report.high_confidence, report.brittle) == (400, keep.sum(), labels.brittle.sum())
    assert report.wrong_brittle == int((wrong & labels.brittle).sum())
    fds = report.result("cfc_fds")
    assert fds.auroc == pytest.approx(roc_auc_score(labels.brittle[keep], certs.claims.fds[keep]))
    assert fds.direction == 1
    margin = report.result("margin", "paper")
    assert margin.auroc == pytest.approx(roc_auc_score(labels.brittle[keep], certs.claims.margin[keep]))
    turned = report.result("margin", "oriented")
    assert turned.auroc == pytest.approx(max(margin.auroc, 1 - margin.auroc))
    assert report.ceiling.auroc == pytest.approx(roc_auc_score(labels.brittle[keep], independent.statistic[keep]))
    assert report.ceiling.auroc > 0.8
    found = next(c for c in report.comparisons if (c.score, c.baseline) == ("cfc_fds", "margin"))
    assert found.difference == pytest.approx(fds.auroc - turned.auroc)
    assert found.low <= found.difference <= found.high
    assert report.strongest(("confidence",)).kind == "confidence"
    table = report.to_pandas()
    assert len(table) == 2 * len(set(table["score"]))
    assert report.to_dict()["results"][0]["score"] == "max_softmax"
    assert "Label-noise ceiling" in str(report) and "cfc_fds" in report.to_text()
    again = [comparison.compare_scores(certs, labels, resamples=200).to_dict() for _ in range(2)]
    assert again[0] == again[1]  # as documents: in Python 3.13 a data class that holds NaN is not equal to itself


def test_labels_are_matched_by_id(judged):
    certs, labels, _ = judged
    order = np.random.default_rng(0).permutation(len(labels))
    shuffled = Given(labels.id[order], labels.high_confidence[order], labels.brittle[order], labels.statistic[order])
    reports = [comparison.compare_scores(certs, given, resamples=100).to_dict() for given in (shuffled, labels)]
    assert reports[0] == reports[1]
    with pytest.raises(DataError, match="labels lack 399 of the 400 certified rows"):
        comparison.compare_scores(certs, Given(*(getattr(labels, n)[:1] for n in Given.__dataclass_fields__)))


def test_validation_rows_decide_the_direction():
    scores, brittle = np.array([1.0, 2, 3, 4]), [0, 0, 1, 1]
    same = ({"mine": scores}, labels_of([1, 1, 0, 0]))
    report = comparison.compare_scores(None, labels_of(brittle), scores={"mine": scores}, validation=same)
    assert report.result("mine", "paper").auroc == 1.0
    assert report.result("mine").auroc == 0.0 and report.result("mine").direction == -1
    assert report.orientation_source == "validation rows"
    favoured = comparison.compare_scores(None, labels_of(brittle), scores={"mine": -scores})
    assert favoured.result("mine").auroc == 1.0


def test_certificate_scores_are_never_turned():
    report = comparison.compare_scores(None, labels_of([1, 1, 0, 0]), scores={"cfc_fds": np.array([1.0, 2, 3, 4])})
    assert report.result("cfc_fds").auroc == 0.0 and report.result("cfc_fds").direction == 1


def test_an_undefined_validation_falls_back_on_the_meaning():
    nothing = ({"margin": np.ones(2), "mine": np.ones(2)}, labels_of([0, 0]))
    scores = {"margin": np.array([1.0, 2.0]), "mine": np.array([1.0, 2.0])}
    report = comparison.compare_scores(None, labels_of([1, 0]), scores=scores, validation=nothing)
    assert report.result("margin").direction == -1 and report.result("mine").direction == 1


def test_low_confidence_rows_are_not_judged():
    scores = {"mine": np.array([1.0, 2.0, 9.0])}
    report = comparison.compare_scores(None, labels_of([0, 1, 0], high_confidence=[1, 1, 0]), scores=scores)
    assert report.high_confidence == 2 and report.result("mine", "paper").auroc == 1.0


@pytest.mark.parametrize(
    ("brittle", "confident", "state"),
    [
        ([0, 0, 0], [1, 1, 1], metrics.NO_BRITTLE),
        ([1, 1, 1], [1, 1, 1], metrics.ALL_BRITTLE),
        ([1, 1, 1], [0, 0, 0], metrics.NO_ROWS),
    ],
)
def test_undefined_reports_are_made_and_counted(brittle, confident, state):
    scores = {"mine": np.array([1.0, 2.0, 3.0]), "cfc_fds": np.array([1.0, 2.0, 3.0])}
    labels = labels_of(brittle, confident)
    report = comparison.compare_scores(None, labels, scores=scores, independent=labels, wrong=[0, 0, 0])
    assert report.undefined() == {state: 2}
    assert math.isnan(report.result("mine").auroc)
    assert report.ceiling.state == state
    assert report.strongest(("other",)) is None
    assert state in report.to_text()
    assert report.to_dict()["results"][0]["auroc"] is None


def test_a_subset_score_is_compared_on_its_own_rows():
    brittle = np.array([1, 0, 1, 0, 1, 0])
    scores = {"group_shap": np.array([3.0, 1, NAN, NAN, 2, 0]), "cfc_fds": np.array([1.0, 2, 9, 0, 3, 0])}
    report = comparison.compare_scores(None, labels_of(brittle), scores=scores, resamples=100)
    line = report.result("group_shap")
    assert (line.rows, line.brittle, line.auroc) == (4, 2, 1.0)
    assert report.comparisons[0].rows == 4
    assert report.comparisons[0].difference == pytest.approx(0.75 - 1.0)
    assert "on 4 rows" in report.to_text()


def test_a_report_is_saved_as_its_name_says(judged, tmp_path):
    certs, labels, _ = judged
    report = comparison.compare_scores(certs, labels, resamples=100)
    for name in ("r.json", "r.csv", "r.parquet"):
        report.save(tmp_path / name)
    assert json.loads((tmp_path / "r.json").read_text()) == report.to_dict()
    for table in (pd.read_csv(tmp_path / "r.csv"), pd.read_parquet(tmp_path / "r.parquet")):
        assert table["score"].tolist() == report.to_pandas()["score"].tolist()


def test_a_score_of_another_length_is_named(judged):
    certs, labels, _ = judged
    with pytest.raises(DataError, match=r"score 'mine' must have one value for each of the 400 rows, got \(3,\)"):
        comparison.compare_scores(certs, labels, scores={"mine": [1.0, 2.0, 3.0]})
    with pytest.raises(DataError, match="no result for score 'other'"):
        comparison.compare_scores(certs, labels, resamples=100).result("other")


def test_ceiling_of_perfect_draws_is_one():
    labels = labels_of([1, 0, 1], rate=[0.9, 0.1, 0.8])
    assert comparison.label_noise_ceiling(labels, labels).auroc == 1.0
    assert comparison.label_noise_ceiling(labels, replace(labels, statistic=np.zeros(3))).auroc == 0.5
