"""Hardening against evidence that is wrong or noisy, not only lost: what the final estimator is trained on."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_hardening import naive_training_set
from naive_modes import mid_quantiles
from pipelines import fitted, preprocessing, split
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import fragility as fg
from fragility.analysis.hardening.training import refit_protocol
from fragility.base.errors import ProtocolError
from fragility.evidence.modes import tabulate_catalogue, values_frame
from fragility.protocol import bind

DATA = split("credit_g")
X, Y = DATA.X_train, DATA.y_train.to_numpy(dtype=object)
NUMBERS = X.select_dtypes("number").astype(float)
BOTH = ("lost", "wrong")


class Recording(GaussianNB):
    """Naive Bayes that keeps what it was trained on."""

    def fit(self, X, y, sample_weight=None):
        self.seen_ = (X, y, sample_weight)
        return super().fit(X, y, sample_weight)


def record(rows=NUMBERS, y=Y, **settings):
    return fg.harden(make_pipeline(StandardScaler(), Recording()), rows, y, **settings)


@settings(deadline=None, max_examples=12)
@given(
    modes=st.permutations(("lost", "wrong", "noisy")).flatmap(lambda p: st.integers(1, 3).map(lambda k: tuple(p[:k]))),
    copies=st.integers(1, 4),
    rate=st.floats(0.05, 1.0),
    seed=st.integers(0, 5),
    shared=st.none() | st.floats(0.1, 0.9),
)
def test_training_set_is_that_of_the_definition(modes, copies, rate, seed, shared):
    rows = pd.concat([NUMBERS[:30], NUMBERS[:5]], ignore_index=True)
    y, w = Y[:35], np.linspace(0.5, 2, 35)
    done = record(rows, y, rate=rate, copies=copies, modes=modes, copy_weight=shared, sample_weight=w, seed=seed)
    scaler, (seen, labels, weights) = done[0], done[-1].seen_
    protocol = fg.Protocol.fit(done, rows)
    catalogue = []
    for j, name in enumerate(rows):
        counted = mid_quantiles(rows[name].tolist(), 24)
        scaled = {(v - scaler.mean_[j]) / scaler.scale_[j]: round(share * 24) for v, share in counted.items()}
        catalogue.append([([v], count) for v, count in scaled.items()])
    stack, expected_labels, expected_weights = naive_training_set(
        rows.to_numpy().tolist(),
        scaler.transform(rows).tolist(),
        list(y),
        list(w),
        [[j] for j in range(rows.shape[1])],
        [column.baseline for column in protocol.columns],
        rate=rate,
        copies=copies,
        seed=seed,
        modes=modes,
        catalogue=catalogue,
        noise=([0.3 * (column.spread or 0.0) for column in protocol.columns], set()),
        copy_weight=shared,
    )
    assert len(seen) == len(rows) * (1 + max(copies, len(modes)))
    np.testing.assert_allclose(seen, stack, rtol=0, atol=1e-12)
    assert list(labels) == expected_labels
    np.testing.assert_allclose(weights, expected_weights)
    assert weights.sum() == pytest.approx(w.sum())
    if shared is None:
        assert weights[: len(w)].sum() == pytest.approx(w.sum() / (1 + len(modes)))


def test_lost_alone_is_what_it_was_and_what_the_lost_copies_are():
    plain, named, both = (record(**how)[-1].seen_[0] for how in ({}, {"modes": "lost"}, {"modes": BOTH}))
    np.testing.assert_array_equal(plain, named)
    np.testing.assert_array_equal(plain, both[: 2 * len(X)])
    assert len(both) == 3 * len(X)


def test_wrong_groups_take_the_cells_of_the_catalogue():
    model = make_pipeline(preprocessing(X), Recording())
    done = fg.harden(model, X, Y, rate=0.5, modes="wrong")
    protocol, (seen, _, _) = fg.Protocol.fit(done, X), done[-1].seen_
    bound = bind(done, X[:1], protocol)
    values, weights = tabulate_catalogue(protocol.modes.catalogue)
    cells = bound.encode(values_frame(values, X))
    rows, twins = seen[: len(X)], seen[len(X) :]
    for g, group in enumerate(protocol.group_names):
        columns = protocol.column_group == g
        held = (twins[:, columns] == rows[:, columns]).all(axis=1)
        own = cells[weights[:, g] > 0.0][:, columns]
        lent = (twins[:, None, columns] == own).all(axis=2).any(axis=1)
        assert (held | lent).all(), group
        assert held.mean() > 0.45 and lent.mean() > 0.4


def test_raw_fields_keep_their_types_and_take_values_that_they_had():
    case = fitted("credit_g", "lightgbm", "raw")
    seen = []

    class Kept(type(case.model)):
        def fit(self, X, y, sample_weight=None, **more):
            seen.append(X)
            return super().fit(X, y, sample_weight, **more)

    fg.harden(Kept(**case.model.get_params()), case.X_train, Y, rate=0.4, modes=("wrong", "noisy"))
    n = len(X)
    wrong, noisy = seen[-1].iloc[n : 2 * n], seen[-1].iloc[2 * n :]
    assert len(seen[-1]) == 3 * len(X) and seen[-1].dtypes.to_dict() == case.X_train.dtypes.to_dict()
    protocol = fg.Protocol.fit(case.model, case.X_train)
    for entry in protocol.modes.catalogue:
        (name,) = entry.fields
        own, lent, listed = case.X_train[name], wrong[name], {value for (value,) in entry.values}
        moved = np.array(lent.astype(object)) != np.array(own.astype(object))
        moved &= ~(lent.isna().to_numpy() & own.isna().to_numpy())
        assert set(lent.astype(object)[moved]) <= listed and 0.0 < moved.mean() < 0.5
        if not pd.api.types.is_numeric_dtype(own):
            np.testing.assert_array_equal(noisy[name].astype(str), own.astype(str))


def test_order_of_rows_and_container_do_not_matter():
    how = {"modes": BOTH, "copy_weight": 0.5}  # quarters, whose sums are exact in any order
    tree = DecisionTreeClassifier(min_samples_leaf=5, random_state=0)
    one = fg.harden(tree, NUMBERS, Y, **how)
    order = np.random.default_rng(0).permutation(len(X))
    other = fg.harden(tree, NUMBERS.iloc[order], Y[order], **how)
    np.testing.assert_array_equal(one.predict_proba(NUMBERS), other.predict_proba(NUMBERS))
    bare = fg.harden(tree, NUMBERS.to_numpy(), Y, **how)
    np.testing.assert_array_equal(one.predict_proba(NUMBERS), bare.predict_proba(NUMBERS.to_numpy()))
    meta = fg.HardenedClassifier(tree, **how).fit(NUMBERS, Y)
    np.testing.assert_array_equal(one.predict_proba(NUMBERS), meta.predict_proba(NUMBERS))
    chosen = fg.choose_rate(tree, NUMBERS, Y, NUMBERS, Y, rates=(0.2,), tolerance=1.0, **how)
    np.testing.assert_array_equal(one.predict_proba(NUMBERS), chosen.model.predict_proba(NUMBERS))


def test_sparse_columns_of_a_table_take_wrong_values_too():
    sparse, full = (make_pipeline(preprocessing(X, sparse=s), LogisticRegression(max_iter=300)) for s in (True, False))
    one, other = (fg.harden(model.fit(X, Y), X, Y, modes=BOTH) for model in (sparse, full))
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X), atol=1e-4)


def test_a_catalogue_is_fitted_to_the_rows_by_its_rules():
    model = LogisticRegression(max_iter=300).fit(NUMBERS[:300], Y[:300])
    few = fg.Protocol.fit(model, NUMBERS[:300], catalogue=7, noise=0.1)
    own = refit_protocol(model, NUMBERS, few)
    assert own.modes == fg.Protocol.fit(model, NUMBERS, catalogue=7, noise=0.1).modes
    lost_only = fg.Protocol.fit(model, NUMBERS[:300], modes=("lost",))
    assert refit_protocol(model, NUMBERS, lost_only).modes == fg.Protocol.fit(model, NUMBERS, modes=("lost",)).modes


@pytest.mark.parametrize(
    ("sentence", "wrong"),
    [
        (r"modes must be among lost, wrong, noisy, each once, got \['stale'\]", {"modes": ["stale"]}),
        (r"each once, got \['lost', 'lost'\]", {"modes": ["lost", "lost"]}),
        (r"each once, got \[\]", {"modes": ()}),
        (r"copy_weight must be a number between 0 and 1, got 1", {"copy_weight": 1}),
        (r"the kind 'attenuate' is about lost evidence", {"modes": BOTH, "kind": "attenuate"}),
    ],
)
def test_wrong_modes_are_refused_in_one_sentence(sentence, wrong):
    with pytest.raises(ProtocolError, match=sentence):
        fg.harden(LogisticRegression(), NUMBERS, Y, **wrong)


def test_modes_that_nothing_declares_are_refused():
    lost_only = fg.Protocol.fit(LogisticRegression().fit(NUMBERS, Y), NUMBERS, modes=("lost",))
    with pytest.raises(ProtocolError, match="the protocol declares the modes lost, got 'wrong'; fit one that declares"):
        fg.harden(LogisticRegression(), NUMBERS, Y, modes=BOTH, protocol=lost_only)
    with pytest.raises(ProtocolError, match="there is none for these rows"):
        fg.harden(LogisticRegression(), sp.csr_matrix(NUMBERS), Y, modes=BOTH)
