"""One unit: models, leakage, and the pieces that analyses are made of."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from study_helpers import LOGREG, TINY

from fragility.models import Model
from fragility_paper.data import Dataset, load, split
from fragility_paper.models import MODELS
from fragility_paper.plan import Unit
from fragility_paper.tidy import COLUMNS, Recorder
from fragility_paper.training import train
from fragility_paper.unit import fit_unit, measure
from fragility_paper.unit.attribution import masked_group_shap
from fragility_paper.unit.fitted import declared_protocol
from fragility_paper.unit.rows import select_rows
from fragility_paper.unit.scores import orientations
from fragility_paper.unit.sensitivity import rank_correlation

SPLIT, PROTOCOLS = "fragility_paper.unit.fitted.split", "fragility_paper.unit.fitted._PROTOCOLS"


@pytest.fixture(scope="module")
def credit_g() -> Dataset:
    return load("credit_g")


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.slow
def test_every_model_trains_twice_the_same(name, credit_g):
    parts = split(credit_g.y, 0)

    def fitted() -> np.ndarray:
        model = train(MODELS[name], credit_g, parts)
        return Model.wrap(model).probabilities(credit_g.X.iloc[parts.test])

    first, second = fitted(), fitted()
    assert first.shape == (200, 2)
    assert np.array_equal(first, second)


# --- leakage -----------------------------------------------------------------------------------------------------


def spoiled(data: Dataset, positions: np.ndarray) -> Dataset:
    """The data set with nonsense in some rows: other numbers, other categories, other classes."""
    X, y = data.X.copy(), data.y.copy()
    for name in data.spec.fields:
        X.loc[positions, name] = "nonsense" if name in data.spec.nominal else 1e9
    y[positions] = 1 - y[positions]
    return replace(data, X=X, y=y)


@pytest.mark.slow
def test_no_test_row_reaches_preprocessing_or_baseline(credit_g, monkeypatch):
    """The splits of the clean data, with nonsense in the test rows: everything that is fitted stays the same."""
    parts = split(credit_g.y, 0)
    monkeypatch.setattr(SPLIT, lambda *_, **__: parts)
    monkeypatch.setattr(PROTOCOLS, {})
    clean = fit_unit(LOGREG, credit_g, TINY)
    monkeypatch.setattr(PROTOCOLS, {})
    dirty = fit_unit(LOGREG, spoiled(credit_g, parts.test), TINY)
    assert clean.protocol.digest == dirty.protocol.digest
    assert clean.model.fingerprint == dirty.model.fingerprint
    for grouping in ("domain", "merged"):
        assert clean.variant(grouping=grouping).digest == dirty.variant(grouping=grouping).digest


@pytest.mark.slow
def test_no_test_row_reaches_calibration_or_orientation(credit_g, monkeypatch):
    """Flipping the truth of test rows moves neither temperature, eta nor any score's direction."""
    parts = split(credit_g.y, 0)
    monkeypatch.setattr(SPLIT, lambda *_, **__: parts)
    y = credit_g.y.copy()
    y[parts.test] = 1 - y[parts.test]
    clean, dirty = (measure(LOGREG, data, TINY).table for data in (credit_g, replace(credit_g, y=y)))
    for metric in ("temperature", "eta"):
        assert _value(clean, "calibration", metric) == _value(dirty, "calibration", metric)
    ranked = (clean["analysis"] == "ranking") & (clean["metric"] == "auroc")
    pd.testing.assert_frame_equal(clean[ranked], dirty[ranked])


def _value(table: pd.DataFrame, analysis: str, metric: str) -> float:
    rows = table[(table["analysis"] == analysis) & (table["metric"] == metric)]
    return float(rows["value"].iloc[0])


@pytest.mark.slow
def test_the_label_channels_seed_changes_no_score(credit_g):
    one, other = (measure(LOGREG, credit_g, TINY, label_seed=seed) for seed in (0, 99))
    scores = [name for name in one.rows.columns if not name.startswith("brittle")]
    pd.testing.assert_frame_equal(one.rows[scores], other.rows[scores])
    assert not np.array_equal(one.rows["brittle_rate"], other.rows["brittle_rate"])
    certificates = one.table["analysis"].isin(["certificate", "path", "predictive", "calibration"])
    pd.testing.assert_frame_equal(one.table[certificates], other.table[certificates])


@pytest.mark.slow
def test_the_protocol_of_a_split_is_the_same_for_every_model(credit_g, monkeypatch):
    fitted = {}
    for name in ("logreg", "rf"):
        monkeypatch.setattr(PROTOCOLS, {})
        fitted[name] = fit_unit(Unit("credit_g", name, 0), credit_g, TINY)
    assert fitted["logreg"].protocol.digest == fitted["rf"].protocol.digest
    groups = fitted["logreg"].variant(grouping="domain").group_names
    assert sorted(groups) == sorted(name for name, _ in credit_g.spec.blocks)


# --- pieces ------------------------------------------------------------------------------------------------------


def test_a_smaller_selection_is_part_of_a_larger_one():
    confidence = np.linspace(0.5, 1.0, 400)
    small = select_rows(confidence, 0, confident=20, nearly=10, anyone=30)
    large = select_rows(confidence, 0, confident=50, nearly=30, anyone=60)
    assert (confidence[small.confident] >= 0.90).all() and len(small.confident) == 20
    assert (confidence[small.nearly] >= 0.85).all()
    for name in ("confident", "nearly", "anyone"):
        assert set(getattr(small, name)) <= set(getattr(large, name))


def test_certificate_scores_are_never_turned_and_others_fall_back():
    found = orientations({"cfc_fds": np.zeros(1), "max_softmax": np.zeros(1), "one_step_drop": np.zeros(1)}, {}, None)
    assert found == {"cfc_fds": 1, "max_softmax": -1, "one_step_drop": 1}


def test_masked_shap_of_a_linear_model_is_its_contributions(credit_g):
    """For an additive margin every order gives the same Shapley value: half the group's share of the margin."""
    fitted = fit_unit(LOGREG, credit_g, TINY)
    oracle = fitted.oracle(fitted.split.test[:5])
    rows, found = oracle.rows, masked_group_shap(oracle, fitted.protocol, seed=0)
    coefficients = fitted.pipeline[-1].coef_[0]
    contribution = (rows.dense() - rows.baseline) * coefficients
    expected = np.stack([contribution[:, rows.column_group == g].sum(axis=1) for g in range(rows.n_groups)], axis=1)
    np.testing.assert_allclose(found, np.abs(expected) / 2, atol=1e-9)


def test_rank_correlation_of_a_constant_is_undefined():
    assert np.isnan(rank_correlation(np.ones(5), np.arange(5)))
    assert rank_correlation(np.arange(5), np.arange(5) ** 3) == pytest.approx(1.0)


def test_the_tidy_table_refuses_unknown_settings_and_keeps_undefined_values():
    record = Recorder("credit_g", "rf", 0)
    record.add("ranking", "auroc", float("nan"), score="cfc_fds", state="undefined: no brittle rows")
    with pytest.raises(TypeError, match="unknown settings"):
        record.add("ranking", "auroc", 0.5, colour="red")
    frame = record.frame()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["value"].isna().all() and frame.loc[0, "state"] == "undefined: no brittle rows"


def test_the_declared_protocol_is_cached_by_split(credit_g):
    parts = split(credit_g.y, 0)
    model = fit_unit(LOGREG, credit_g, TINY).model
    first, second = (declared_protocol(LOGREG, credit_g, parts, model, "mean", 0.0) for _ in range(2))
    assert first is second
