"""Ranking scores by hand and from real certificates; no score can see the label channel."""

import ast
import math
from pathlib import Path

import numpy as np
import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fragility
from fragility.analysis.ranking import metrics, scores
from fragility.auditing.pipeline import audit
from fragility.engines.oracle import ModelOracle
from fragility.protocol import Protocol, bind
from fragility.questions.stress.declaration import Stress
from fragility.questions.stress.labels import label_brittle

SOURCE = Path(fragility.__file__).parent


def imports_of(module):
    """Own modules that a module imports, anywhere in its file; a package stands for its __init__."""
    path = SOURCE / f"{module.replace('.', '/')}.py"
    if not path.exists():
        path = SOURCE / module.replace(".", "/") / "__init__.py"
    if not path.exists():
        return set()
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("fragility.") for name in found if name.startswith("fragility.")}


def test_no_score_can_reach_the_label_channel():
    """Nothing that the scores and their comparison import, directly or through others, makes labels of stress."""
    seen, waiting = set(), {"analysis.ranking.scores", "analysis.ranking.comparison"}
    while waiting:
        module = waiting.pop()
        seen.add(module)
        waiting |= imports_of(module) - seen

    def reaches_labels(modules):
        return any(name.startswith("questions.stress.labels") for name in modules)

    assert {"audits", "engines.oracle", "scores", "protocol"} <= seen
    assert not reaches_labels(seen) and "analysis.ranking.evaluating" not in seen
    assert reaches_labels(imports_of("analysis.ranking.evaluating"))  # the inspection does see such imports


def test_label_seeds_change_no_score():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    X = case.X_test.iloc[:80]
    found = []
    for seed in (0, 1):
        labels = label_brittle(case.model, X, protocol, Stress(seed=seed, tau_confidence=0.6, draws=4))
        certs = audit(case.model, X, protocol, engine="blackbox")
        rows = bind(case.model, X, protocol)
        own = {
            **scores.collect_scores(certs),
            "random_order": scores.random_order_score(ModelOracle(rows), protocol, repeats=2),
        }
        found.append((labels.run.draw_margin, own))
    assert not np.array_equal(found[0][0], found[1][0])
    for name, values in found[0][1].items():
        assert np.array_equal(values, found[1][1][name]), name


def test_confidence_scores_by_hand():
    p = np.array([[0.5, 0.5], [0.9, 0.1], [0.0, 1.0]])
    assert scores.confidence_scores(p)["max_softmax"] == pytest.approx([0.5, 0.9, 1.0])
    assert scores.confidence_scores(p)["negative_entropy"] == pytest.approx(
        [math.log(0.5), 0.9 * math.log(0.9) + 0.1 * math.log(0.1), 0.0], abs=1e-9
    )
    assert scores.confidence_scores(p)["margin"] == pytest.approx([0.0, math.log(9), math.log(1e12)])
    m = scores.confidence_scores(p)["margin"]
    assert scores.confidence_scores(p)["negative_energy"] == pytest.approx(np.log(2 * np.cosh(m / 2)))


@given(st.lists(st.tuples(st.floats(1e-9, 1 - 1e-9), st.booleans()), min_size=2, max_size=40))
@settings(max_examples=60, deadline=None)
def test_with_two_classes_energy_and_margin_rank_alike(rows):
    """log(2 cosh(m / 2)) is strictly increasing in m >= 0, so the AUROCs must be equal."""
    share = np.round([p for p, _ in rows], 3).clip(1e-3, 1 - 1e-3)  # apart by more than rounding
    p = np.column_stack([share, 1 - share])
    # p and 1 - p have one margin; computed apart they can differ in the last bit, so ties are made exact first.
    margin, energy = (
        np.round(scores.confidence_scores(p)["margin"], 9),
        np.round(scores.confidence_scores(p)["negative_energy"], 12),
    )
    brittle = np.array([b for _, b in rows])
    assert metrics.auroc(energy, brittle) == pytest.approx(metrics.auroc(margin, brittle), nan_ok=True)


@pytest.mark.parametrize("family", ["lightgbm", "logistic", "random_forest"])
def test_the_binary_identity_on_real_models(family):
    case = pipelines.fitted("credit_g", family, "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    labels = label_brittle(case.model, case.X_test, protocol, Stress(tau_confidence=0.6, draws=4))
    p = bind(case.model, case.X_test, protocol).predict(bind(case.model, case.X_test, protocol).dense())
    keep = labels.high_confidence
    areas = {n: metrics.auroc(s[keep], labels.brittle[keep]) for n, s in scores.confidence_scores(p).items()}
    assert areas["negative_energy"] == pytest.approx(areas["margin"], abs=1e-12)
    assert areas["max_softmax"] == pytest.approx(areas["margin"], abs=1e-12)


def test_with_three_classes_energy_and_margin_differ():
    p = np.random.default_rng(0).dirichlet([1, 1, 1], size=200)
    assert not np.array_equal(
        np.argsort(scores.confidence_scores(p)["negative_energy"]), np.argsort(scores.confidence_scores(p)["margin"])
    )


def test_certificate_scores_are_the_certificates_columns():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    certs = audit(case.model, case.X_test.iloc[:50], protocol, engine="blackbox")
    found, table = scores.collect_scores(certs), certs.to_pandas()
    assert found["cfc_fds"].tolist() == table["fds"].tolist()
    assert found["cfc_rcma"].tolist() == table["rcma"].tolist()
    assert found["inverse_flip_budget"].tolist() == (1 / table["flip_budget"]).tolist()
    lambdas = table[[f"lambda_{operator}" for operator in protocol.operators]]
    assert found["inverse_threshold"] == pytest.approx((1 / (lambdas + 1e-8)).fillna(0.0).mean(axis=1).to_numpy())
    assert found["one_step_drop"].tolist() == [max(row) for row in table["one_step_drop"]]
    p = bind(case.model, case.X_test.iloc[:50], protocol)
    from_p = scores.collect_scores(certs, p.predict(p.dense()))
    for name in scores.CONFIDENCE_SCORES:
        assert found[name] == pytest.approx(from_p[name], abs=1e-9)


def test_many_classes_without_probabilities_leave_entropy_and_energy_out():
    case = pipelines.fitted("credit_g_property", "lightgbm", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    X = case.X_test.iloc[:20]
    certs = audit(case.model, X, protocol, engine="blackbox")
    known = scores.collect_scores(certs)
    assert set(scores.CONFIDENCE_SCORES) - set(known) == {"negative_entropy", "negative_energy"}
    rows = bind(case.model, X, protocol)
    full = scores.collect_scores(certs, rows.predict(rows.dense()))
    assert set(scores.CONFIDENCE_SCORES) <= set(full)
    assert full["margin"] == pytest.approx(known["margin"], abs=1e-9)
