"""`harden`: what the final estimator is trained on, and what comes back."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from naive_hardening import naive_training_set
from pipelines import FAMILIES, NATIVE, estimator, fitted, labels_for, native_estimator, preprocessing, split
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler, TargetEncoder
from sklearn.tree import DecisionTreeClassifier

import fragility as fg
from fragility.base.errors import DataError, EvidenceError, ModelError, ProtocolError
from fragility.models.fingerprint import fingerprint

DATA = split("credit_g")
X, Y = DATA.X_train, DATA.y_train.to_numpy(dtype=object)
NUMBERS = X.select_dtypes("number").astype(float)


class Recording(GaussianNB):
    """Naive Bayes that keeps what it was trained on."""

    def fit(self, X, y, sample_weight=None):
        self.seen_ = (X, y, sample_weight)
        return super().fit(X, y, sample_weight)


class RecordingHist(HistGradientBoostingClassifier):
    """Histogram boosting that keeps what it was trained on."""

    def fit(self, X, y, sample_weight=None, *, X_val=None, y_val=None, sample_weight_val=None):
        self.seen_ = (X, y, sample_weight, X_val, y_val, sample_weight_val)
        validation = {"X_val": X_val, "y_val": y_val, "sample_weight_val": sample_weight_val}
        return super().fit(X, y, sample_weight, **validation)


def alike(one, other, rows=X):
    return np.array_equal(one.predict_proba(rows), other.predict_proba(rows))


# --- what it is trained on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mask", "attenuate"])
@pytest.mark.parametrize("copies", [1, 3])
def test_training_set_is_that_of_the_definition(kind, copies):
    rows = pd.concat([NUMBERS[:40], NUMBERS[:7]], ignore_index=True)  # some rows twice, with another label or weight
    y, w = Y[:47], np.r_[np.linspace(0.5, 2, 43), 1, 1, 1, 1]
    model = make_pipeline(StandardScaler(), Recording())
    done = fg.harden(model, rows, y, rate=0.3, copies=copies, kind=kind, sample_weight=w, seed=5)
    seen, labels, weights = done[-1].seen_
    protocol, grid = fg.Protocol.fit(done, rows), [k / 10 for k in range(1, 11)]
    stack, expected_labels, expected_weights = naive_training_set(
        rows.to_numpy().tolist(),
        done[0].transform(rows).tolist(),
        list(y),
        list(w),
        [[j] for j in range(rows.shape[1])],
        [column.baseline for column in protocol.columns],
        rate=0.3,
        copies=copies,
        seed=5,
        severities=grid if kind == "attenuate" else None,
    )
    np.testing.assert_allclose(seen, stack, rtol=0, atol=1e-12)
    assert list(labels) == expected_labels
    np.testing.assert_allclose(weights, expected_weights)
    assert weights.sum() == pytest.approx(w.sum())


def test_all_columns_of_a_group_are_lost_together():
    model = make_pipeline(preprocessing(X), Recording())
    mean = fg.Protocol.fit(model.fit(X, Y), X, baseline="mean")
    done = fg.harden(model, X, Y, rate=0.5, protocol=mean)
    protocol, seen = fg.Protocol.fit(done, X, baseline="mean"), done[-1].seen_[0]
    baseline = np.array([column.baseline for column in protocol.columns])
    struck = np.isclose(seen[len(X) :], baseline, rtol=0, atol=1e-12)
    for g, group in enumerate(protocol.groups):
        columns = protocol.column_group == g
        if len(group.columns) > 1:  # a mean of indicators is nobody's own value
            lost = struck[:, columns]
            assert set(lost.sum(axis=1)) == {0, lost.shape[1]}
            assert 0.4 < lost.all(axis=1).mean() < 0.6


def test_recorded_outages_strike_what_they_lacked():
    mean = fg.Protocol.fit(Recording().fit(NUMBERS, Y), NUMBERS, baseline="mean")  # which no row has
    done = fg.harden(
        Recording(), NUMBERS, Y, kind="outages", outages=[{"duration", "age"}, {"duration"}], protocol=mean
    )
    twins, moved = done.seen_[0][len(X) :], {}
    for name in NUMBERS.columns:
        moved[name] = (twins[name].to_numpy() != NUMBERS[name].to_numpy()).mean()
    assert moved["duration"] == 1.0 and 0.4 < moved["age"] < 0.6
    assert sum(share for name, share in moved.items() if name not in ("duration", "age")) == 0.0
    few = fg.harden(Recording(), NUMBERS, Y, kind="outages", outages=[{"duration"}], rate=0.25).seen_[0][len(X) :]
    assert 0.15 < (few["duration"].to_numpy() != NUMBERS["duration"].to_numpy()).mean() < 0.35


def test_raw_fields_keep_their_types():
    case = fitted("credit_g", "lightgbm", "raw")
    seen = []

    class Kept(type(case.model)):
        def fit(self, X, y, sample_weight=None, **more):
            seen.append(X)
            return super().fit(X, y, sample_weight, **more)

    fg.harden(Kept(**case.model.get_params()), case.X_train, Y)
    assert len(seen[-1]) == 2 * len(case.X_train)
    assert seen[-1].dtypes.to_dict() == case.X_train.dtypes.to_dict()


def test_sparse_rows_stay_sparse():
    model = make_pipeline(preprocessing(X, sparse=True), Pipeline([("a", LogisticRegression(max_iter=300))])[-1])
    plain = model.fit(X, Y)
    zero = fg.Protocol.fit(plain, X, baseline="zero")
    dense = make_pipeline(preprocessing(X), LogisticRegression(max_iter=300))
    one, other = (fg.harden(m, X, Y, protocol=zero) for m in (plain, dense.fit(X, Y)))
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X), atol=1e-4)
    matrix = sp.random(60, 30, density=0.1, format="csr", random_state=0)
    y = np.arange(60) % 2

    class Sparse(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            self.seen_ = X
            return super().fit(X, y, sample_weight)

    unnamed = LogisticRegression().fit(matrix, y)
    seen = fg.harden(Sparse(), matrix, y, protocol=fg.Protocol.fit(unnamed, matrix, baseline="zero"), rate=0.5).seen_
    assert sp.issparse(seen) and seen.shape == (120, 30)
    assert 0.3 * matrix.nnz < seen[60:].nnz < 0.7 * matrix.nnz


def test_twins_of_a_wide_sparse_matrix_are_refused_before_memory_runs_out(monkeypatch):
    from fragility.analysis.hardening import twins

    monkeypatch.setattr(twins, "SPARSE_LIMIT", 1000)
    matrix = sp.random(60, 30, density=0.1, format="csr", random_state=0)
    with pytest.raises(EvidenceError, match=r"twins of this sparse matrix would take about .* baseline='zero'"):
        fg.harden(LogisticRegression(), matrix, np.arange(60) % 2)


# --- properties -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_hardened_and_audited_by_its_own_engine(family):
    case = fitted("credit_g", family, "transformed")
    y = labels_for(family, DATA.y_train)
    one, again = (fg.harden(case.model, case.X_train, y, seed=3) for _ in range(2))
    assert alike(one, again, case.X_test), "same seed, same model"
    assert type(one) is Pipeline and type(one[-1]) is type(case.model[-1])
    assert own_classes_inside(one) == set()
    protocol = fg.Protocol.fit(case.model, case.X_train)
    assert fg.Protocol.fit(one, case.X_train).digest == protocol.digest
    few = case.X_test[:20]
    assert fg.audit(one, few, protocol).engine == fg.audit(case.model, few, protocol).engine


@pytest.mark.slow
@pytest.mark.parametrize("family", NATIVE)
def test_native_categories_and_gaps(family):
    case = fitted("credit_g", family, "raw")
    y = labels_for(family, DATA.y_train)
    done = fg.harden(native_estimator(family, case.X_train), case.X_train, y)
    assert type(done) is type(case.model) and own_classes_inside(done) == set()
    protocol = fg.Protocol.fit(done, case.X_train)
    assert protocol.space == "raw"
    few = case.X_test[:20]
    plain = fg.audit(case.model, few, fg.Protocol.fit(case.model, case.X_train))
    assert fg.audit(done, few, protocol).engine == plain.engine


def own_classes_inside(model):
    """Names of this package's classes anywhere inside a model."""
    found, seen, left = set(), set(), [model]
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, (str, bytes, int, float, np.ndarray, type)):
            continue
        seen.add(id(value))
        if type(value).__module__.split(".")[0] == "fragility":
            found.add(type(value).__name__)
        left += [*value.values()] if isinstance(value, dict) else []
        left += list(value) if isinstance(value, (list, tuple, set)) else []
        left += list(vars(value).values()) if hasattr(value, "__dict__") else []
    return found


@pytest.mark.parametrize("family", [*FAMILIES])
def test_rate_zero_is_the_plain_model(family):
    y = labels_for(family, DATA.y_train)
    model = make_pipeline(preprocessing(X), estimator(family))
    weights = np.linspace(0.5, 1.5, len(X))
    plain = make_pipeline(preprocessing(X), estimator(family)).fit(
        X, y, **{f"{model.steps[-1][0]}__sample_weight": weights}
    )
    assert alike(fg.harden(model, X, y, rate=0, sample_weight=weights), plain)


def test_order_of_rows_index_and_container_do_not_matter():
    tree = DecisionTreeClassifier(min_samples_leaf=5, random_state=0)
    weights = 1.0 + np.arange(len(X)) % 3  # sums of these are exact in any order
    one = fg.harden(tree, NUMBERS, Y, sample_weight=weights)
    order = np.random.default_rng(0).permutation(len(X))
    other = fg.harden(tree, NUMBERS.iloc[order], Y[order], sample_weight=weights[order])
    assert alike(one, other, NUMBERS)
    renamed = NUMBERS.set_axis(np.zeros(len(X)), axis=0)
    assert alike(one, fg.harden(tree, renamed, pd.Series(Y), sample_weight=weights), NUMBERS)
    bare = fg.harden(tree, NUMBERS.to_numpy(), list(Y), sample_weight=weights)
    assert np.array_equal(one.predict_proba(NUMBERS), bare.predict_proba(NUMBERS.to_numpy()))
    polars = pytest.importorskip("polars")
    table = fg.harden(tree, polars.from_pandas(NUMBERS), Y, sample_weight=weights)
    assert np.array_equal(one.predict_proba(NUMBERS), table.predict_proba(polars.from_pandas(NUMBERS)))


def test_the_scale_of_weights_chooses_no_twins():
    weights = np.linspace(0.5, 1.5, len(X))
    seen = [fg.harden(Recording(), NUMBERS, Y, sample_weight=k * weights).seen_ for k in (1.0, 2.0)]
    assert seen[0][0].equals(seen[1][0])
    np.testing.assert_allclose(2 * seen[0][2], seen[1][2])


def test_the_users_model_is_left_alone_fitted_or_not():
    fresh = make_pipeline(preprocessing(X), LogisticRegression(max_iter=300))
    from_fresh = fg.harden(fresh, X, Y)
    assert not hasattr(fresh[-1], "classes_")
    ready = make_pipeline(preprocessing(X), LogisticRegression(max_iter=300)).fit(X[:300], Y[:300])
    before = fingerprint([ready]).digest
    assert alike(fg.harden(ready, X, Y), from_fresh), "preprocessing comes from the rows given"
    assert fingerprint([ready]).digest == before
    assert alike(fg.harden(fg.Model.wrap(ready), X, Y), from_fresh)
    assert not alike(fg.harden(ready, X, Y, seed=1), from_fresh)
    assert sorted(from_fresh.classes_) == ["bad", "good"]


def test_a_protocol_is_fitted_to_the_rows_by_its_rules():
    plain = make_pipeline(preprocessing(X), LogisticRegression(max_iter=300)).fit(X[:300], Y[:300])
    other = fg.Protocol.fit(plain, X[:300], baseline="mean")
    again = make_pipeline(preprocessing(X), LogisticRegression(max_iter=300)).fit(X, Y)
    own = fg.Protocol.fit(again, X, baseline="mean")
    assert alike(fg.harden(plain, X, Y, protocol=other), fg.harden(plain, X, Y, protocol=own))
    assert not alike(fg.harden(plain, X, Y, protocol=own), fg.harden(plain, X, Y))
    blocks = fg.Protocol.fit(again, X, groups={name: "all" for name in X.columns}, depth=1)
    seen = fg.harden(make_pipeline(preprocessing(X), Recording()), X, Y, protocol=blocks, rate=0.5)[-1].seen_[0]
    baseline = np.array([column.baseline for column in blocks.columns])
    whole = np.isclose(seen[len(X) :], baseline).all(axis=1)
    assert 0.4 < whole.mean() < 0.6


def test_targets_are_encoded_as_the_pipeline_itself_does():
    """An encoder of targets codes its own training rows by cross-fitting; the originals keep those codes."""
    nominal = X.select_dtypes(exclude="number")
    prepare = TargetEncoder(random_state=0)
    done = fg.harden(make_pipeline(prepare, Recording()), nominal, Y)
    expected = TargetEncoder(random_state=0).fit_transform(nominal, Y)
    np.testing.assert_array_equal(done[-1].seen_[0][: len(X)], expected)


# --- rows set aside -------------------------------------------------------------------------------------------------


def test_validation_rows_are_neither_degraded_nor_among_the_twins():
    model = RecordingHist(max_iter=5, early_stopping=True, validation_fraction=0.2, random_state=0)
    weights = np.linspace(0.5, 1.5, len(X))
    seen, y, w, aside, y_aside, w_aside = fg.harden(model, NUMBERS, Y, sample_weight=weights).seen_
    assert len(aside) == len(y_aside) == len(w_aside) and abs(len(aside) - 0.2 * len(X)) <= 1
    assert len(seen) == 2 * (len(X) - len(aside)) == len(y) == len(w)
    rows = {tuple(row) for row in NUMBERS.to_numpy()}
    assert {tuple(row) for row in aside.to_numpy()} <= rows
    both = np.concatenate([seen.to_numpy()[: len(seen) // 2], aside.to_numpy()])
    assert sorted(map(tuple, both)) == sorted(map(tuple, NUMBERS.to_numpy()))
    assert abs(np.mean(y_aside == "good") - np.mean(Y == "good")) < 0.02


def test_a_network_is_stopped_by_rows_as_they_are():
    rows = StandardScaler().fit_transform(NUMBERS)
    model = MLPClassifier((8,), max_iter=40, early_stopping=True, n_iter_no_change=3, random_state=0)
    one, again = (fg.harden(model, rows, Y) for _ in range(2))
    assert alike(one, again, rows) and type(one) is MLPClassifier
    assert one.get_params() == model.get_params()
    assert one.n_iter_ == len(one.validation_scores_) == len(one.loss_curve_) <= 40
    assert one.best_validation_score_ == max(one.validation_scores_)
    best = int(np.argmax(one.validation_scores_))
    assert one.n_iter_ == 40 or one.n_iter_ >= best + 4
    shorter = fg.harden(MLPClassifier((8,), max_iter=best + 1, early_stopping=True, random_state=0), rows, Y)
    np.testing.assert_array_equal(shorter.coefs_[0], one.coefs_[0], "the weights of the best epoch are kept")
    small = fg.harden(MLPClassifier((4,), solver="lbfgs", max_iter=20, early_stopping=True), rows, Y)
    assert not hasattr(small, "validation_scores_") or small.validation_scores_ is None


def test_twins_do_not_switch_early_stopping_on():
    rows = np.random.default_rng(0).normal(size=(6000, 3))
    y = (rows[:, 0] + np.random.default_rng(1).normal(size=6000) > 0).astype(int)
    model = HistGradientBoostingClassifier(max_iter=3, random_state=0)
    done = fg.harden(model, rows, y)
    assert done.do_early_stopping_ is False and done.early_stopping == "auto"
    stopped = fg.harden(model, np.tile(rows, (2, 1)), np.tile(y, 2))
    assert stopped.do_early_stopping_ is True


def test_given_validation_rows_are_passed_on_untouched():
    lightgbm = pytest.importorskip("lightgbm")
    scaler = StandardScaler().fit(NUMBERS[:500])
    aside = [(scaler.transform(NUMBERS[500:]), Y[500:])]
    model = make_pipeline(
        StandardScaler(),
        lightgbm.LGBMClassifier(n_estimators=300, early_stopping_round=5, verbose=-1, n_jobs=1),
    )
    done = fg.harden(model, NUMBERS[:500], Y[:500], fit_params={"lgbmclassifier__eval_set": aside})
    assert 0 < done[-1].best_iteration_ < 300


# --- what is refused ------------------------------------------------------------------------------------------------


def booster():
    lightgbm = pytest.importorskip("lightgbm")
    return lightgbm.LGBMClassifier(n_estimators=2, verbose=-1).fit(NUMBERS, Y).booster_


REFUSED = {
    "no weights": (KNeighborsClassifier, "KNeighborsClassifier takes no sample weights"),
    "no weights inside": (
        lambda: VotingClassifier([("a", LogisticRegression()), ("b", KNeighborsClassifier())], voting="soft"),
        "KNeighborsClassifier takes no sample weights",
    ),
    "booster": (booster, "Booster is a trained booster, which cannot be trained again; give the classifier"),
    "function": (lambda: lambda rows: rows, "a scikit-learn estimator or Pipeline is needed, got"),
    "own folds": (
        lambda: StackingClassifier([("a", LogisticRegression())]),
        "StackingClassifier splits its training rows itself",
    ),
    "unfitted search": (lambda: GridSearchCV(LogisticRegression(), {"C": [1]}), "GridSearchCV was not fitted"),
    "rows set aside": (lambda: GradientBoostingClassifier(n_iter_no_change=3), "sets aside validation rows"),
    "rows set aside by an inner one": (
        lambda: BaggingClassifier(HistGradientBoostingClassifier()),
        "HistGradientBoostingClassifier sets aside validation rows",
    ),
    "pipeline in a pipeline": (
        lambda: make_pipeline(StandardScaler(), make_pipeline(StandardScaler(), LogisticRegression())),
        "the last step of the pipeline is itself a pipeline",
    ),
    "no probabilities": (SGDClassifier, "SGDClassifier has no predict_proba"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_hardened_is_said_before_any_training(case, monkeypatch):
    make, sentence = REFUSED[case]
    model = make()
    monkeypatch.setattr(StandardScaler, "fit_transform", lambda *_: pytest.fail("the training was begun"))
    with pytest.raises(ModelError, match=sentence):
        fg.harden(model, NUMBERS, Y)


@pytest.mark.parametrize(
    ("error", "sentence", "wrong"),
    [
        (ProtocolError, r"rate must be a number between 0 and 1, got 1\.5", {"rate": 1.5}),
        (ProtocolError, r"copies must be a whole number of at least 1, got 0", {"copies": 0}),
        (ProtocolError, r"kind must be one of mask, attenuate, outages, got 'drop'", {"kind": "drop"}),
        (ProtocolError, r"the kind outages needs recorded outages", {"kind": "outages"}),
        (ProtocolError, r"recorded outages are for the kind outages, and the kind is 'mask'", {"outages": [{"age"}]}),
        (ProtocolError, r"protocol must be a Protocol, got str", {"protocol": "raw"}),
        (ProtocolError, r"no fields \['salary'\]", {"kind": "outages", "outages": [{"salary"}]}),
        (ProtocolError, r"seed must be a whole number, got 0\.5", {"seed": 0.5}),
        (DataError, r"sample_weight must hold one weight per row", {"sample_weight": [1.0]}),
        (DataError, r"finite numbers of at least 0", {"sample_weight": -np.ones(len(X))}),
        (DataError, r"give it as an argument of its own", {"fit_params": {"sample_weight": np.ones(len(X))}}),
        (DataError, r"'base' one value per training row", {"fit_params": {"base": np.ones(len(X))}}),
        (ModelError, r"could not be trained on these rows: TypeError", {"fit_params": {"unknown": 1}}),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(error, sentence, wrong):
    with pytest.raises(error, match=sentence):
        fg.harden(LogisticRegression(), NUMBERS, Y, **wrong)
    with pytest.raises(DataError, match=r"one label per row: 600 rows"):
        fg.harden(LogisticRegression(), NUMBERS, Y[:5])
    with pytest.raises(DataError, match=r"got one class: 'good'"):
        fg.harden(LogisticRegression(), NUMBERS, np.full(len(X), "good"))


def test_a_finished_search_stands_for_what_it_found():
    search = GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1]}, cv=2).fit(NUMBERS, Y)
    done = fg.harden(search, NUMBERS, Y)
    assert type(done) is LogisticRegression and done.C == 0.1


@pytest.mark.parametrize("weights", [None, "balanced"])
def test_penalties_keep_their_meaning(weights):
    """The total weight is that of the rows: with every twin equal to its row, the model is the plain one."""
    rows = NUMBERS.assign(constant=1.0)[["constant", "age"]]
    plain = LogisticRegression(C=0.01, class_weight=weights, max_iter=1000, tol=1e-10).fit(rows, Y)
    only = fg.Protocol.fit(plain, rows, groups={"constant": "still", "age": "moves"})
    same = fg.harden(plain, rows, Y, protocol=only, kind="outages", outages=[{"constant"}])  # its baseline is its value
    np.testing.assert_allclose(same.coef_, plain.coef_, atol=1e-6)


def test_one_hot_of_a_frame_output_keeps_names():
    prepare = preprocessing(X).set_output(transform="pandas")
    done = fg.harden(make_pipeline(prepare, LogisticRegression(max_iter=300)), X, Y)
    assert list(done[-1].feature_names_in_) == list(prepare.fit(X).get_feature_names_out())
    assert isinstance(done[0].named_transformers_["nominal"], OneHotEncoder)


def test_validation_rows_may_be_as_many_as_the_training_rows():
    model = HistGradientBoostingClassifier(max_iter=5, early_stopping=True, random_state=0)
    held_out = {"X_val": NUMBERS.to_numpy()[::-1], "y_val": Y[::-1]}
    hardened = fg.harden(model, NUMBERS.to_numpy(), Y, fit_params=held_out)
    assert hardened.n_iter_ <= 5
