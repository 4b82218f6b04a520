"""Group-SHAP for every kind of model."""

import numpy as np
import pipelines
import pytest

from fragility.analysis.ranking import scores
from fragility.engines.oracle import ModelOracle
from fragility.protocol import Protocol, bind


@pytest.mark.parametrize(
    ("family", "space", "explainer"),
    [
        ("lightgbm", "transformed", "tree"),
        ("xgboost", "transformed", "tree"),
        ("catboost", "transformed", "tree"),
        ("random_forest", "transformed", "tree"),
        ("logistic", "transformed", "linear"),
        # shap compiles its permutation code at the first call of a process, about 20 s
        pytest.param("mlp", "transformed", "permutation", marks=pytest.mark.slow),
        pytest.param("lightgbm", "raw", "permutation", marks=pytest.mark.slow),
    ],
)
def test_group_shap_for_every_kind_of_model(family, space, explainer):
    pytest.importorskip("shap")
    case = pipelines.fitted("credit_g", family, space)
    protocol = Protocol.fit(case.model, case.X_train, space=space)
    rows = bind(case.model, case.X_test.iloc[:12], protocol)
    found = scores.group_shap(ModelOracle(rows), protocol, max_rows=5)
    assert found.explainer == explainer
    assert found.mass.shape == (5, rows.n_groups) and (found.mass >= 0).all() and found.mass.sum() > 0
    assert np.isnan(found.score).sum() == 7
    assert ((found.score[found.explained] > 0) & (found.score[found.explained] <= 1)).all()


def test_group_shap_of_a_linear_model_is_its_contributions():
    """For a linear score the SHAP value of a column against one reference row is weight * (x - reference)."""
    pytest.importorskip("shap")
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    rows = bind(case.model, case.X_test.iloc[:6], protocol)
    contribution = np.abs((rows.dense() - rows.baseline) * case.model[-1].coef_[0])
    expected = np.column_stack([contribution[:, protocol.column_group == g].sum(axis=1) for g in range(rows.n_groups)])
    assert scores.group_shap(ModelOracle(rows), protocol).mass == pytest.approx(expected, abs=1e-9)


def test_group_shap_with_many_classes_explains_the_predicted_one():
    pytest.importorskip("shap")
    case = pipelines.fitted("credit_g_property", "lightgbm", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    rows = bind(case.model, case.X_test.iloc[:4], protocol)
    assert scores.group_shap(ModelOracle(rows), protocol).mass.shape == (4, rows.n_groups)


def test_group_shap_chooses_among_the_rows_it_is_told():
    pytest.importorskip("shap")
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    rows = bind(case.model, case.X_test.iloc[:12], protocol)
    among = np.arange(12) % 2 == 0
    assert set(scores.group_shap(ModelOracle(rows), protocol, max_rows=3, among=among).explained) <= set(
        range(0, 12, 2)
    )


def test_concentration_by_hand():
    mass = np.array([[4.0, 1.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    assert scores.concentration(mass, top=2) == pytest.approx([0.7, 0.0, 0.5])
