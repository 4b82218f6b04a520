"""Ranking scores and metrics: equal to scikit-learn, to hand-computed values and to their slow twins."""

import ast
import math
from dataclasses import dataclass, replace
from pathlib import Path

import naive_ranking
import numpy as np
import pandas as pd
import pipelines
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    f1_score,
    log_loss,
    roc_auc_score,
)

import fragility
from fragility import ranking
from fragility._audit import audit
from fragility.errors import DataError
from fragility.protocol import Protocol, bind
from fragility.stress import Stress, brittle_labels

NAN = math.nan


@dataclass(frozen=True)
class Given:
    """Labels as plain arrays: all that the metrics ask for."""

    id: np.ndarray
    high_confidence: np.ndarray
    brittle: np.ndarray
    brittle_rate: np.ndarray


def labels_of(brittle, high_confidence=None, rate=None):
    brittle = np.asarray(brittle, dtype=bool)
    confident = (
        np.ones(len(brittle), dtype=bool) if high_confidence is None else np.asarray(high_confidence, dtype=bool)
    )
    return Given(np.arange(len(brittle)), confident, brittle & confident, np.asarray(brittle if rate is None else rate))


# --- the label channel stays out ----------------------------------------------------------------------------------


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
    """Nothing that `ranking` imports, directly or through others, imports `stress`."""
    seen, waiting = set(), {"ranking"}
    while waiting:
        module = waiting.pop()
        seen.add(module)
        waiting |= imports_of(module) - seen
    assert {"certificate", "scores", "protocol"} <= seen
    assert "stress" not in seen and "_evaluate" not in seen
    assert "stress" in imports_of("_evaluate")  # the inspection does see such imports


def test_label_seeds_change_no_score():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    X = case.X_test.iloc[:80]
    found = []
    for seed in (0, 1):
        labels = brittle_labels(case.model, X, protocol, Stress(seed=seed, tau_confidence=0.6, draws=4))
        certs = audit(case.model, X, protocol, engine="blackbox")
        rows = bind(case.model, X, protocol)
        scores = {**ranking.scores_of(certs), "random_order": ranking.random_order_score(rows, protocol, repeats=2)}
        found.append((labels.run.draw_margin, scores))
    assert not np.array_equal(found[0][0], found[1][0])
    for name, scores in found[0][1].items():
        assert np.array_equal(scores, found[1][1][name]), name


# --- scores -------------------------------------------------------------------------------------------------------


def test_confidence_scores_by_hand():
    p = np.array([[0.5, 0.5], [0.9, 0.1], [0.0, 1.0]])
    assert ranking.max_softmax(p) == pytest.approx([0.5, 0.9, 1.0])
    assert ranking.negative_entropy(p) == pytest.approx(
        [math.log(0.5), 0.9 * math.log(0.9) + 0.1 * math.log(0.1), 0.0], abs=1e-9
    )
    assert ranking.margin(p) == pytest.approx([0.0, math.log(9), math.log(1e12)])
    m = ranking.margin(p)
    assert ranking.negative_energy(p) == pytest.approx(np.log(2 * np.cosh(m / 2)))


@given(st.lists(st.tuples(st.floats(1e-9, 1 - 1e-9), st.booleans()), min_size=2, max_size=40))
@settings(max_examples=60, deadline=None)
def test_with_two_classes_energy_and_margin_rank_alike(rows):
    """log(2 cosh(m / 2)) is strictly increasing in m >= 0, so the AUROCs must be equal."""
    share = np.round([p for p, _ in rows], 3).clip(1e-3, 1 - 1e-3)  # apart by more than rounding
    p = np.column_stack([share, 1 - share])
    # p and 1 - p have one margin; computed apart they can differ in the last bit, so ties are made exact first.
    margin, energy = np.round(ranking.margin(p), 9), np.round(ranking.negative_energy(p), 12)
    brittle = np.array([b for _, b in rows])
    assert ranking.auroc(energy, brittle) == pytest.approx(ranking.auroc(margin, brittle), nan_ok=True)


@pytest.mark.parametrize("family", ["lightgbm", "logistic", "random_forest"])
def test_the_binary_identity_on_real_models(family):
    case = pipelines.fitted("credit_g", family, "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    labels = brittle_labels(case.model, case.X_test, protocol, Stress(tau_confidence=0.6, draws=4))
    p = bind(case.model, case.X_test, protocol).predict(bind(case.model, case.X_test, protocol).dense())
    keep = labels.high_confidence
    areas = {n: ranking.auroc(s[keep], labels.brittle[keep]) for n, s in ranking.confidence_scores(p).items()}
    assert areas["negative_energy"] == pytest.approx(areas["margin"], abs=1e-12)
    assert areas["max_softmax"] == pytest.approx(areas["margin"], abs=1e-12)


def test_with_three_classes_energy_and_margin_differ():
    p = np.random.default_rng(0).dirichlet([1, 1, 1], size=200)
    assert not np.array_equal(np.argsort(ranking.negative_energy(p)), np.argsort(ranking.margin(p)))


def test_certificate_scores_are_the_certificates_columns():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    certs = audit(case.model, case.X_test.iloc[:50], protocol, engine="blackbox")
    scores, table = ranking.scores_of(certs), certs.to_pandas()
    assert scores["cfc_fds"].tolist() == table["fds"].tolist()
    assert scores["cfc_rcma"].tolist() == table["rcma"].tolist()
    assert scores["inverse_flip_budget"].tolist() == (1 / table["flip_budget"]).tolist()
    lambdas = table[[f"lambda_{operator}" for operator in protocol.operators]]
    assert scores["inverse_threshold"] == pytest.approx((1 / (lambdas + 1e-8)).fillna(0.0).mean(axis=1).to_numpy())
    assert scores["one_step_drop"].tolist() == [max(row) for row in table["one_step_drop"]]
    p = bind(case.model, case.X_test.iloc[:50], protocol)
    from_p = ranking.scores_of(certs, p.predict(p.dense()))
    for name in ranking.CONFIDENCE_SCORES:
        assert scores[name] == pytest.approx(from_p[name], abs=1e-9)


def test_many_classes_without_probabilities_leave_entropy_and_energy_out():
    case = pipelines.fitted("credit_g_property", "lightgbm", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    X = case.X_test.iloc[:20]
    certs = audit(case.model, X, protocol, engine="blackbox")
    known = ranking.scores_of(certs)
    assert set(ranking.CONFIDENCE_SCORES) - set(known) == {"negative_entropy", "negative_energy"}
    rows = bind(case.model, X, protocol)
    full = ranking.scores_of(certs, rows.predict(rows.dense()))
    assert set(ranking.CONFIDENCE_SCORES) <= set(full)
    assert full["margin"] == pytest.approx(known["margin"], abs=1e-9)


@pytest.mark.parametrize("space", ["transformed", "raw"])
@pytest.mark.parametrize("reading", ["support", "current", "support_unbounded"])
def test_rcma_along_the_certificates_own_path_is_the_certificates(space, reading):
    case = pipelines.fitted("credit_g", "lightgbm", space)
    protocol = Protocol.fit(case.model, case.X_train, space=space, reading=reading)
    X = case.X_test.iloc[:25]
    certs, rows = audit(case.model, X, protocol, engine="blackbox"), bind(case.model, X, protocol)
    path = certs.claims.path
    assert ranking.rcma_along(rows, protocol, path) == pytest.approx(certs.claims.rcma, abs=1e-9)
    assert ranking.rcma_along(rows, protocol, path, byte_budget=1) == pytest.approx(certs.claims.rcma, abs=1e-9)


def test_random_orders_are_the_mean_over_declared_orders():
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    rows = bind(case.model, case.X_test.iloc[:20], protocol)
    generator = np.random.default_rng(3)
    orders = [generator.permutation(rows.n_groups) for _ in range(4)]
    expected = np.mean([ranking.rcma_along(rows, protocol, order) for order in orders], axis=0)
    assert ranking.random_order_score(rows, protocol, repeats=4, seed=3) == pytest.approx(expected)


def test_permutation_importance_puts_the_useful_group_first():
    class OneField:
        classes_ = np.array([0, 1])
        n_features_in_ = 3

        def predict_proba(self, X):
            p = 1 / (1 + np.exp(-4 * np.asarray(X, dtype=float)[:, 1] - 0.5 * np.asarray(X, dtype=float)[:, 2]))
            return np.column_stack([1 - p, p])

    X = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 3)), columns=["a", "b", "c"])
    protocol = Protocol.fit(OneField(), X)
    y = (4 * X["b"] + 0.5 * X["c"] > 0).astype(int).to_numpy()
    order = ranking.permutation_importance_order(bind(OneField(), X, protocol), y)
    assert order.tolist() == [1, 2, 0]


# --- group-SHAP ---------------------------------------------------------------------------------------------------


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
    found = ranking.group_shap(rows, protocol, max_rows=5)
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
    assert ranking.group_shap(rows, protocol).mass == pytest.approx(expected, abs=1e-9)


def test_group_shap_with_many_classes_explains_the_predicted_one():
    pytest.importorskip("shap")
    case = pipelines.fitted("credit_g_property", "lightgbm", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    rows = bind(case.model, case.X_test.iloc[:4], protocol)
    assert ranking.group_shap(rows, protocol).mass.shape == (4, rows.n_groups)


def test_group_shap_chooses_among_the_rows_it_is_told():
    pytest.importorskip("shap")
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    rows = bind(case.model, case.X_test.iloc[:12], protocol)
    among = np.arange(12) % 2 == 0
    assert set(ranking.group_shap(rows, protocol, max_rows=3, among=among).explained) <= set(range(0, 12, 2))


def test_concentration_by_hand():
    mass = np.array([[4.0, 1.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    assert ranking.concentration(mass, top=2) == pytest.approx([0.7, 0.0, 0.5])


# --- metrics ------------------------------------------------------------------------------------------------------

ranked_rows = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6)


@given(ranked_rows, st.sampled_from([0.05, 0.1, 0.2, 0.5, 1.0]))
@settings(max_examples=150, deadline=None)
def test_metrics_equal_their_slow_twins_with_ties(rows, budget):
    scores, positive = [float(s) for s, _ in rows], [b for _, b in rows]
    assert ranking.auroc(scores, positive) == pytest.approx(naive_ranking.naive_auroc(scores, positive), nan_ok=True)
    assert ranking.capture_at(scores, positive, budget) == pytest.approx(
        naive_ranking.naive_capture(scores, positive, budget), nan_ok=True
    )
    assert ranking.aurc(scores, positive) == pytest.approx(naive_ranking.naive_aurc(scores, positive), nan_ok=True)


def test_auroc_equals_scikit_learn_with_ties():
    generator = np.random.default_rng(0)
    for _ in range(20):
        scores, positive = generator.integers(0, 8, 60), generator.random(60) < 0.3
        assert ranking.auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))


def test_metrics_by_hand():
    scores, brittle = [5, 4, 3, 2, 1], [1, 0, 1, 0, 0]
    assert ranking.auroc(scores, brittle) == pytest.approx(5 / 6)
    assert ranking.capture_at(scores, brittle, 0.2) == 0.5
    assert ranking.capture_at(scores, brittle, 0.6) == 1.0
    assert ranking.residual_risk(scores, brittle) == pytest.approx([2 / 5, 1 / 4, 1 / 3, 0, 0])
    assert ranking.aurc(scores, brittle) == pytest.approx((2 / 5 + 1 / 4 + 1 / 3) / 5)
    assert ranking.false_confidence_captured(scores, brittle, [0, 1, 1, 1, 0], 0.2) == 0.0
    assert ranking.false_confidence_captured(scores, brittle, [1, 0, 0, 0, 0], 0.2) == 1.0


def test_a_budget_of_ten_percent_of_thirty_rows_is_three_rows():
    scores = np.arange(30)[::-1]
    assert ranking.capture_at(scores, np.arange(30) < 4, 0.1) == pytest.approx(3 / 4)
    assert ranking.capture_at(scores[:21], np.arange(21) < 4, 0.1) == pytest.approx(3 / 4)  # 2.1 rows: three


def test_turning_a_score_round_mirrors_its_auroc():
    scores, brittle = np.array([1.0, 2, 2, 3, 5]), np.array([0, 1, 0, 1, 0], dtype=bool)
    assert ranking.auroc(-scores, brittle) == pytest.approx(1 - ranking.auroc(scores, brittle))


@pytest.mark.parametrize("function", [ranking.auroc, ranking.aurc])
def test_undefined_is_nan(function):
    assert math.isnan(function([1.0, 2.0], [False, False]))
    assert math.isnan(function([], []))
    assert math.isnan(function([NAN, NAN], [True, False]))


def test_all_brittle_has_captures_but_no_auroc():
    assert math.isnan(ranking.auroc([1.0, 2.0], [True, True]))
    assert ranking.capture_at([1.0, 2.0], [True, True], 0.5) == 0.5
    assert ranking.aurc([1.0, 2.0], [True, True]) == 1.0


def test_missing_scores_are_left_out():
    assert ranking.auroc([1.0, NAN, 2.0], [False, False, True]) == 1.0


@pytest.mark.parametrize(
    ("scores", "brittle", "state"),
    [
        ([], [], ranking.NO_ROWS),
        ([NAN], [True], ranking.NO_SCORE),
        ([1.0, 2.0], [False, False], ranking.NO_BRITTLE),
        ([1.0, NAN], [True, False], ranking.ALL_BRITTLE),
        ([1.0, 2.0], [True, False], ranking.DEFINED),
    ],
)
def test_states_say_why(scores, brittle, state):
    assert ranking.ranking_state(np.asarray(scores, dtype=float), np.asarray(brittle, dtype=bool)) == state


def test_wrong_shapes_and_budgets_are_refused():
    with pytest.raises(DataError, match="one value a row"):
        ranking.auroc([1.0], [True, False])
    with pytest.raises(DataError, match=r"a share in \(0, 1\], got 20"):
        ranking.capture_at([1.0], [True], 20)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_predictive_metrics_equal_scikit_learn(n_classes):
    generator = np.random.default_rng(1)
    p, y = generator.dirichlet(np.ones(n_classes), 300), generator.integers(0, n_classes, 300)
    found = ranking.predictive_metrics(p, y)
    assert found.rows == 300
    assert found.accuracy == pytest.approx(accuracy_score(y, p.argmax(1)))
    assert found.macro_f1 == pytest.approx(f1_score(y, p.argmax(1), average="macro"))
    assert found.nll == pytest.approx(log_loss(y, p))
    if n_classes == 2:
        assert found.auroc == pytest.approx(roc_auc_score(y, p[:, 1]))
        assert found.average_precision == pytest.approx(average_precision_score(y, p[:, 1]))
        assert found.brier == pytest.approx(brier_score_loss(y, p[:, 1]))
    else:
        assert found.auroc == pytest.approx(roc_auc_score(y, p, multi_class="ovr", average="macro"))
        one_hot = np.eye(n_classes)[y]
        assert found.average_precision == pytest.approx(average_precision_score(one_hot, p, average="macro"))
    absent = ranking.predictive_metrics(p, np.zeros(300, dtype=int))
    assert math.isnan(absent.auroc) and math.isnan(absent.average_precision)


# --- orientation and uncertainty ----------------------------------------------------------------------------------


def test_better_direction():
    assert ranking.better_direction([1, 2, 3], [0, 0, 1]) == 1
    assert ranking.better_direction([1, 2, 3], [1, 0, 0]) == -1
    assert ranking.better_direction([1, 1], [1, 0], fallback=-1) == -1
    assert ranking.better_direction([1, 2], [0, 0], fallback=-1) == -1


def test_paired_bootstrap_against_a_plain_loop():
    generator = np.random.default_rng(0)
    a, b = generator.normal(0.8, 0.1, 40), generator.normal(0.7, 0.1, 40)
    found = ranking.paired_bootstrap(a, b, resamples=4000)
    draws = np.array([(a - b)[generator.integers(0, 40, 40)].mean() for _ in range(4000)])
    assert found.mean == pytest.approx((a - b).mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])), abs=0.006)
    assert found.win_rate == pytest.approx((a > b).mean())
    assert found.not_better == pytest.approx(1 - found.win_rate)
    assert ranking.paired_bootstrap(a, b, resamples=4000) == found


def test_bootstrap_counts_undefined_units():
    found = ranking.paired_bootstrap([0.9, NAN, 0.8, 0.7], [0.5, 0.5, NAN, 0.7])
    assert (found.units, found.undefined) == (2, 2)
    assert (found.win_rate, found.not_better) == (0.5, 0.5)
    alone = ranking.bootstrap_mean([0.9, NAN])
    assert alone.mean == 0.9 and alone.units == 1 and math.isnan(alone.low) and math.isnan(alone.standard_deviation)
    nothing = ranking.bootstrap_mean([NAN])
    assert math.isnan(nothing.mean) and nothing.undefined == 1
    same = ranking.bootstrap_mean([0.5, 0.5, 0.5])
    assert (same.low, same.high) == (0.5, 0.5)


def test_resampled_aurocs_equal_repeated_rows():
    """A weight vector is a resample: its AUROC equals that of the rows repeated."""
    generator = np.random.default_rng(5)
    scores, label = generator.integers(0, 6, 50).astype(float), generator.random(50) < 0.4
    drawn = ranking.resampled_aurocs([scores, -scores], label, resamples=30, seed=9)
    weights = np.random.default_rng(9).multinomial(50, np.full(50, 1 / 50), size=30)
    for index, weight in enumerate(weights):
        rows = np.repeat(np.arange(50), weight)
        assert drawn[0, index] == pytest.approx(roc_auc_score(label[rows], scores[rows]))
    assert drawn[0] + drawn[1] == pytest.approx(1.0)


def test_auroc_difference_interval():
    generator = np.random.default_rng(2)
    label = generator.random(300) < 0.3
    good, bad = label + generator.normal(0, 0.5, 300), generator.normal(size=300)
    low, high = ranking.bootstrap_auroc_difference(good, bad, label)
    assert 0.0 < low < ranking.auroc(good, label) - ranking.auroc(bad, label) < high
    assert all(math.isnan(v) for v in ranking.bootstrap_auroc_difference(good, bad, np.zeros(300, dtype=bool)))


# --- the report ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judged():
    case = pipelines.fitted("credit_g", "lightgbm", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    stress = Stress(tau_confidence=0.6, tau_collapse=0.3)
    certs = audit(case.model, case.X_test, protocol, engine="blackbox")
    labels = brittle_labels(case.model, case.X_test, protocol, stress)
    independent = brittle_labels(case.model, case.X_test, protocol, stress.independent())
    return certs, labels, independent


def test_report_on_a_real_model(judged):
    certs, labels, independent = judged
    wrong = np.arange(len(certs)) % 5 == 0
    report = ranking.ranking_report(certs, labels, wrong=wrong, independent=independent, resamples=200)
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
    assert report.ceiling.auroc == pytest.approx(roc_auc_score(labels.brittle[keep], independent.brittle_rate[keep]))
    assert report.ceiling.auroc > 0.8
    found = next(c for c in report.comparisons if (c.score, c.baseline) == ("cfc_fds", "margin"))
    assert found.difference == pytest.approx(fds.auroc - turned.auroc)
    assert found.low <= found.difference <= found.high
    assert report.strongest(("confidence",)).kind == "confidence"
    table = report.to_pandas()
    assert len(table) == 2 * len(set(table["score"]))
    assert report.to_dict()["results"][0]["score"] == "max_softmax"
    assert "Label-noise ceiling" in str(report) and "cfc_fds" in report.to_text()
    assert ranking.ranking_report(certs, labels, resamples=200) == ranking.ranking_report(certs, labels, resamples=200)


def test_labels_are_matched_by_id(judged):
    certs, labels, _ = judged
    order = np.random.default_rng(0).permutation(len(labels))
    shuffled = Given(labels.id[order], labels.high_confidence[order], labels.brittle[order], labels.brittle_rate[order])
    assert ranking.ranking_report(certs, shuffled, resamples=100) == ranking.ranking_report(
        certs, labels, resamples=100
    )
    with pytest.raises(DataError, match="labels lack 399 of the 400 certified rows"):
        ranking.ranking_report(certs, Given(*(getattr(labels, n)[:1] for n in Given.__dataclass_fields__)))


def test_validation_rows_decide_the_direction():
    scores, brittle = np.array([1.0, 2, 3, 4]), [0, 0, 1, 1]
    same = ({"mine": scores}, labels_of([1, 1, 0, 0]))
    report = ranking.ranking_report(None, labels_of(brittle), scores={"mine": scores}, validation=same)
    assert report.result("mine", "paper").auroc == 1.0
    assert report.result("mine").auroc == 0.0 and report.result("mine").direction == -1
    assert report.orientation_source == "validation rows"
    favoured = ranking.ranking_report(None, labels_of(brittle), scores={"mine": -scores})
    assert favoured.result("mine").auroc == 1.0


def test_certificate_scores_are_never_turned():
    report = ranking.ranking_report(None, labels_of([1, 1, 0, 0]), scores={"cfc_fds": np.array([1.0, 2, 3, 4])})
    assert report.result("cfc_fds").auroc == 0.0 and report.result("cfc_fds").direction == 1


def test_an_undefined_validation_falls_back_on_the_meaning():
    nothing = ({"margin": np.ones(2), "mine": np.ones(2)}, labels_of([0, 0]))
    scores = {"margin": np.array([1.0, 2.0]), "mine": np.array([1.0, 2.0])}
    report = ranking.ranking_report(None, labels_of([1, 0]), scores=scores, validation=nothing)
    assert report.result("margin").direction == -1 and report.result("mine").direction == 1


def test_low_confidence_rows_are_not_judged():
    scores = {"mine": np.array([1.0, 2.0, 9.0])}
    report = ranking.ranking_report(None, labels_of([0, 1, 0], high_confidence=[1, 1, 0]), scores=scores)
    assert report.high_confidence == 2 and report.result("mine", "paper").auroc == 1.0


@pytest.mark.parametrize(
    ("brittle", "confident", "state"),
    [
        ([0, 0, 0], [1, 1, 1], ranking.NO_BRITTLE),
        ([1, 1, 1], [1, 1, 1], ranking.ALL_BRITTLE),
        ([1, 1, 1], [0, 0, 0], ranking.NO_ROWS),
    ],
)
def test_undefined_reports_are_made_and_counted(brittle, confident, state):
    scores = {"mine": np.array([1.0, 2.0, 3.0]), "cfc_fds": np.array([1.0, 2.0, 3.0])}
    labels = labels_of(brittle, confident)
    report = ranking.ranking_report(None, labels, scores=scores, independent=labels, wrong=[0, 0, 0])
    assert report.undefined() == {state: 2}
    assert math.isnan(report.result("mine").auroc)
    assert report.ceiling.state == state
    assert report.strongest(("other",)) is None
    assert state in report.to_text()
    assert report.to_dict()["results"][0]["auroc"] is None


def test_a_subset_score_is_compared_on_its_own_rows():
    brittle = np.array([1, 0, 1, 0, 1, 0])
    scores = {"group_shap": np.array([3.0, 1, NAN, NAN, 2, 0]), "cfc_fds": np.array([1.0, 2, 9, 0, 3, 0])}
    report = ranking.ranking_report(None, labels_of(brittle), scores=scores, resamples=100)
    line = report.result("group_shap")
    assert (line.rows, line.brittle, line.auroc) == (4, 2, 1.0)
    assert report.comparisons[0].rows == 4
    assert report.comparisons[0].difference == pytest.approx(0.75 - 1.0)
    assert "on 4 rows" in report.to_text()


def test_a_score_of_another_length_is_named(judged):
    certs, labels, _ = judged
    with pytest.raises(DataError, match=r"score 'mine' must have one value for each of the 400 rows, got \(3,\)"):
        ranking.ranking_report(certs, labels, scores={"mine": [1.0, 2.0, 3.0]})
    with pytest.raises(DataError, match="no result for score 'other'"):
        ranking.ranking_report(certs, labels, resamples=100).result("other")


def test_ceiling_of_perfect_draws_is_one():
    labels = labels_of([1, 0, 1], rate=[0.9, 0.1, 0.8])
    assert ranking.label_noise_ceiling(labels, labels).auroc == 1.0
    assert ranking.label_noise_ceiling(labels, replace(labels, brittle_rate=np.zeros(3))).auroc == 0.5
