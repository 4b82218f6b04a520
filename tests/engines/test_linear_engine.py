"""The linear engine against the black box: the same certificates, without a model pass."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import fitted, preprocessing, read_table, split
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from traces import assert_same_trace, covertype_groups, trace_by

import fragility as fg
from fragility.base.errors import DataError, EngineError
from fragility.engines import linear
from fragility.engines.blackbox import trace_blackbox
from fragility.engines.linear import LinearEngine
from fragility.engines.linear_traces import BOUND
from fragility.protocol import Protocol, bind
from fragility.scores import READINGS, DecisionRule


def check(model, X_train, X, **settings_):
    protocol = Protocol.fit(model, X_train, **settings_)
    rows = bind(model, X, protocol)
    assert LinearEngine.refusal(rows) is None
    claimed = LinearEngine(rows).trace(rows, protocol)
    assert claimed.engine == "linear"
    assert claimed.evaluations == 0
    assert_same_trace(claimed, trace_blackbox(rows, protocol))
    return rows, protocol, claimed


def covertype_sample() -> tuple[pd.DataFrame, np.ndarray]:
    table = read_table("covertype").sample(1500, random_state=3).reset_index(drop=True)
    return table.drop(columns="Cover_Type"), table["Cover_Type"].to_numpy()


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("baseline", ["mean", "typical"])
def test_credit_logistic(reading, baseline):
    case = fitted("credit_g", "logistic", "transformed")
    check(
        case.model,
        case.X_train,
        case.X_test,
        reading=reading,
        baseline=baseline,
        operators=("attenuate_all", "attenuate_top1", "attenuate_top3", "attenuate_top15"),
    )


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(max_iter=200),
        LogisticRegression(solver="newton-cg", C=1e6, max_iter=200),
        LinearDiscriminantAnalysis(),
        LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1),
        SGDClassifier(loss="log_loss", random_state=0),
    ],
    ids=lambda e: repr(e)[:40],
)
@pytest.mark.parametrize("dataset", ["credit_g", "credit_g_property"])
def test_known_estimators(estimator, dataset):
    data = split(dataset)
    model = make_pipeline(preprocessing(data.X_train), estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data.X_train, data.y_train.to_numpy(dtype=object))
    check(model, data.X_train, data.X_test[:150], operators=("attenuate_all", "attenuate_top2", "attenuate_top13"))


@pytest.mark.parametrize("factor", [1.0, 10.0, 60.0, 3000.0])
def test_many_classes_take_the_direct_way(factor, monkeypatch):
    """No link is applied to a state, whether its probabilities are clipped or not, or too small for any number."""
    data = split("credit_g_property")
    model = make_pipeline(preprocessing(data.X_train), LogisticRegression(max_iter=300))
    model.fit(data.X_train, data.y_train.to_numpy(dtype=object))
    model[-1].coef_ = model[-1].coef_ * factor
    protocol = Protocol.fit(model, data.X_train)
    rows = bind(model, data.X_test[:200], protocol)
    asked = trace_blackbox(rows, protocol)
    monkeypatch.setattr(DecisionRule, "settle", lambda *_: pytest.fail("the slow way was taken"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        claimed = LinearEngine(rows).trace(rows, protocol)
    assert_same_trace(claimed, asked)
    np.testing.assert_allclose(claimed.fade_margin, asked.fade_margin, rtol=0, atol=1e-9)
    if factor == 60.0:  # also behind a leader that shares its lead
        lost = claimed.path_margin < -BOUND + np.log(1.5)
        assert lost.any() and (claimed.path_margin[lost] > -BOUND + 1e-3).any()


def test_sparse_rows_without_a_stored_cell():
    cells = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    model = LogisticRegression().fit(cells, [0, 1, 0, 1])
    protocol = Protocol.fit(model, cells)
    rows = bind(model, sp.csr_matrix((2, 2)), protocol)
    assert_same_trace(LinearEngine(rows).trace(rows, protocol), trace_blackbox(rows, protocol))


def test_logistic_cross_validated():
    data = split("credit_g_property")
    model = make_pipeline(preprocessing(data.X_train), LogisticRegressionCV(Cs=2, cv=2, max_iter=300))
    with warnings.catch_warnings():  # its defaults are changing; none of them matters here
        warnings.simplefilter("ignore")
        model.fit(data.X_train, data.y_train.to_numpy(dtype=object))
    check(model, data.X_train, data.X_test[:60])


def test_sparsified_weights():
    data = split("credit_g")
    model = make_pipeline(preprocessing(data.X_train), SGDClassifier(loss="log_loss", penalty="l1", random_state=0))
    model.fit(data.X_train, data.y_train.to_numpy(dtype=object))
    model[-1].sparsify()
    check(model, data.X_train, data.X_test[:60])


@pytest.mark.parametrize("dataset", ["credit_g", "credit_g_property"])
def test_sparse_rows(dataset):
    data = split(dataset)
    model = make_pipeline(preprocessing(data.X_train, sparse=True), LogisticRegression(max_iter=300))
    model.fit(data.X_train, data.y_train.to_numpy(dtype=object))
    rows, _, _ = check(model, data.X_train, data.X_test[:120])
    assert sp.issparse(rows.matrix)


def test_covertype_many_classes():
    X, y = covertype_sample()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)).fit(X[:1000], y[:1000])
    rows, _, _ = check(model, X[:1000], X[1000:], groups=covertype_groups(X.columns))
    assert (rows.n_groups, rows.n_classes) == (12, 7)


def test_groups_in_any_order_of_columns():
    X, y = covertype_sample()
    model = LogisticRegression(max_iter=50).fit(StandardScaler().fit_transform(X[:600]), y[:600] > 2)
    Z = StandardScaler().fit_transform(X)
    scattered = {str(j): f"block {(7 * j) % 5}" for j in range(Z.shape[1])}
    names = Protocol.fit(model, Z).to_dict()["columns"]
    groups = {c["name"]: scattered[str(j)] for j, c in enumerate(names)}
    check(model, Z[:600], Z[600:800], groups=groups)


@pytest.mark.parametrize("dataset", ["credit_g", "credit_g_property"])
def test_confident_rows_are_clipped_as_probabilities_are(dataset):
    data = split(dataset)
    model = make_pipeline(preprocessing(data.X_train), LogisticRegression(max_iter=300))
    model.fit(data.X_train, data.y_train.to_numpy(dtype=object))
    model[-1].coef_ = model[-1].coef_ * 60.0
    for reading in READINGS:
        _, _, claimed = check(model, data.X_train, data.X_test[:200], reading=reading)
        assert np.isclose(claimed.margin.max(), BOUND)
        assert claimed.margin.max() <= BOUND


@pytest.mark.parametrize("size", [1, 2**12, 2**15])
def test_pieces_change_nothing(monkeypatch, size):
    case = fitted("credit_g", "logistic", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    rows = bind(case.model, case.X_test, protocol)
    whole = LinearEngine(rows).trace(rows, protocol)
    monkeypatch.setattr(linear, "PIECE_BYTES", size)
    seen = []
    assert_same_trace(
        LinearEngine(rows).trace(rows, protocol, lambda done, all_: seen.append((done, all_))), whole, 1e-13
    )
    assert seen[-1] == (len(rows), len(rows))


@pytest.mark.parametrize("resolution", [1e-9, 1e-3, 0.5, 30.0])
def test_any_resolution(resolution, monkeypatch):
    monkeypatch.setattr(
        "fragility.evidence.protocol_parts.MAX_RESOLUTION", 100.0
    )  # the engine does not rest on that limit
    case = fitted("credit_g", "logistic", "transformed")
    protocol = Protocol.fit(case.model, case.X_train, resolution=resolution)
    rows = bind(case.model, case.X_test[:100], protocol)
    claimed, asked = LinearEngine(rows).trace(rows, protocol), trace_blackbox(rows, protocol)
    np.testing.assert_array_equal(claimed.predicted, asked.predicted)
    if resolution > 1e-9:  # finer than rounding noise, two engines may order equal drops differently
        assert_same_trace(claimed, asked)


@st.composite
def small_problems(draw):
    """A linear model of small whole weights over small whole cells: ties, constant columns, unused fields abound."""
    d, classes, n = draw(st.integers(1, 6)), draw(st.integers(2, 4)), draw(st.integers(1, 8))
    whole = st.integers(-3, 3)
    outputs = 1 if classes == 2 else classes
    weights = np.array(draw(st.lists(whole, min_size=d * outputs, max_size=d * outputs)), float).reshape(outputs, d)
    cells = np.array(draw(st.lists(whole, min_size=n * d, max_size=n * d)), float).reshape(n, d)
    intercept = np.array(draw(st.lists(whole, min_size=outputs, max_size=outputs)), float)
    baseline = np.array(draw(st.lists(whole, min_size=d, max_size=d)), float)
    groups = draw(st.lists(st.integers(0, 2), min_size=d, max_size=d))
    return weights, intercept, cells, baseline, groups, draw(st.sampled_from(READINGS)), draw(st.booleans())


@settings(max_examples=80, deadline=None)
@given(small_problems())
def test_random_small_models_with_ties(problem):
    weights, intercept, cells, baseline, groups, reading, as_sparse = problem
    classes = 2 if len(weights) == 1 else len(weights)
    d = cells.shape[1]
    model = LogisticRegression()
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(rng.normal(size=(4 * classes, d)), np.arange(4 * classes) % classes)
    model.coef_, model.intercept_ = weights * 0.5, intercept * 0.5
    # severities off the tenths: the tie of two halves at 0.5 is then no edge of the flip rule
    protocol = Protocol.fit(
        model,
        cells,
        baseline=baseline,
        groups={f"x{j}": f"g{g}" for j, g in enumerate(groups)} if _names(model, cells) else "raw-origin",
        reading=reading,
        severities=(0.15, 0.35, 0.55, 0.75, 1.0),
    )
    rows = bind(model, sp.csr_matrix(cells) if as_sparse else cells, protocol)
    assert LinearEngine.refusal(rows) is None
    assert_same_trace(LinearEngine(rows).trace(rows, protocol), trace_blackbox(rows, protocol))


def _names(model, cells) -> bool:
    return [column.name for column in Protocol.fit(model, cells).columns][:1] == ["x0"]


def test_refusals():
    data = split("credit_g")
    y = data.y_train.to_numpy(dtype=object)
    forest = make_pipeline(preprocessing(data.X_train), RandomForestClassifier(3)).fit(data.X_train, y)
    case = fitted("credit_g", "logistic", "transformed")

    def reason(model, **settings_):
        protocol = Protocol.fit(model, data.X_train, **settings_)
        return LinearEngine.refusal(bind(model, data.X_test[:5], protocol))

    assert "not a linear classifier" in reason(forest)
    assert "preprocessing stands between" in reason(case.model, space="raw")
    with pytest.raises(EngineError, match="does not know"):
        protocol = Protocol.fit(forest, data.X_train)
        trace_by(LinearEngine, bind(forest, data.X_test[:5], protocol), protocol)


def test_float32_rows_are_left_to_the_black_box():
    X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    model = LogisticRegression().fit(X, X[:, 0] > 0)
    protocol = Protocol.fit(model, X)
    rows = bind(model, X, protocol)
    assert "float32" in LinearEngine.refusal(rows)
    assert fg.audit(model, X, protocol).manifest.engine.name == "blackbox"


def test_missing_cells_get_the_models_own_complaint():
    X = np.random.default_rng(0).normal(size=(60, 4))
    model = LogisticRegression().fit(X, X[:, 0] > 0)
    protocol = Protocol.fit(model, X)
    X[3, 2] = np.nan
    with pytest.raises(DataError, match="missing values"):
        trace_by(LinearEngine, bind(model, X, protocol), protocol)


def test_audit_chooses_it():
    case = fitted("credit_g", "logistic", "transformed")
    protocol = Protocol.fit(case.model, case.X_train)
    certificates = fg.audit(case.model, case.X_test, protocol)
    assert certificates.manifest.engine.name == "linear"
    asked = fg.audit(case.model, case.X_test, protocol, engine="blackbox")
    for name in ("predicted", "flip_budget", "path"):
        assert certificates.to_arrow()[name].to_pylist() == asked.to_arrow()[name].to_pylist()
