"""Searches for the smallest failing set: equal to enumeration, never worse than the greedy path, honest about cost."""

import math
from dataclasses import replace

import naive_ranking
import numpy as np
import pandas as pd
import pipelines
import pytest

from fragility.base.errors import ProtocolError
from fragility.engines.oracle import ModelOracle
from fragility.pages.terms import MINIMUM, NONE_AT_ALL, UNDECIDED, none_up_to
from fragility.protocol import Protocol, bind
from fragility.questions.search import (
    failing_sets_of_rows,
    find_failing_sets,
)
from fragility.scores import flip_budget, predicted_class, removal_order, support_margin

BLOCKS = {
    "checking_status": "account", "savings_status": "account", "duration": "loan", "credit_amount": "loan",
    "purpose": "purpose", "installment_commitment": "terms", "other_payment_plans": "terms", "other_parties": "terms",
    "credit_history": "history", "existing_credits": "history", "employment": "work", "job": "work",
    "residence_since": "home", "housing": "home", "property_magnitude": "home", "age": "person",
    "personal_status": "person", "num_dependents": "person", "own_telephone": "contact", "foreign_worker": "contact",
}  # fmt: skip


@pytest.fixture(scope="module", params=[("lightgbm", "transformed"), ("lightgbm", "raw"), ("mlp", "transformed")])
def setting(request):
    """A model with nine groups, small enough to enumerate, and 30 rows."""
    family, space = request.param
    case = pipelines.fitted("credit_g", family, space)
    protocol = Protocol.fit(case.model, case.X_train, space=space, groups=BLOCKS)
    return case.model, case.X_test.iloc[:30], protocol


def greedy_budget(rows, protocol):
    """k* from the definition: one-step drops, path, first flip."""
    x, groups, spared = rows.dense(0, len(rows)), protocol.column_group, rows.spared()
    target = rows.targets(x, spared)  # the raw rows lack some values, which cannot be lost

    def margins(removed):  # (n, G) bool
        return support_margin(rows.predict(np.where(removed[:, groups], target, x)), original)

    original = predicted_class(rows.predict(x), protocol.resolution)
    empty = np.zeros((len(rows), rows.n_groups), dtype=bool)
    one_step = np.column_stack([margins(empty | (np.arange(rows.n_groups) == g)) for g in range(rows.n_groups)])
    last = None if spared is None else spared.groups
    order = removal_order(margins(empty)[:, None] - one_step, protocol.resolution, last)
    rank = np.argsort(order, axis=1)
    path = np.column_stack([margins(rank < k) for k in range(protocol.depth + 1)])
    return flip_budget(path < -protocol.resolution)


def test_exact_equals_enumeration(setting):
    model, X, protocol = setting
    rows = bind(model, X, protocol)
    found = failing_sets_of_rows(ModelOracle(rows), protocol, method="exact", max_size=3)
    target = np.broadcast_to(rows.targets(rows.dense(), rows.spared()), (len(rows), rows.width))
    for r in range(6):
        size, groups = naive_ranking.naive_exact(
            rows.dense(r, r + 1)[0], rows.predict, target[r], protocol.column_group.tolist(), rows.n_groups, 3,
            protocol.resolution,
        )  # fmt: skip
        assert found.size[r] == size
        assert tuple(np.flatnonzero(found.removed[r])) == groups
    assert set(found.state) == {MINIMUM, none_up_to(3)}


def test_a_reported_set_really_fails(setting):
    model, X, protocol = setting
    rows = bind(model, X, protocol)
    x = rows.dense(0, len(rows))
    original = predicted_class(rows.predict(x), protocol.resolution)
    for method in ("beam", "exact", "auto"):
        found = failing_sets_of_rows(ModelOracle(rows), protocol, method=method)
        hit = np.flatnonzero(found.found)
        assert len(hit) > 5
        target = np.broadcast_to(rows.targets(x, rows.spared()), x.shape)[hit]
        states = np.where(found.removed[hit][:, protocol.column_group], target, x[hit])
        margins = support_margin(rows.predict(states), original[hit])
        assert (margins < -protocol.resolution).all()
        assert found.margin[hit] == pytest.approx(margins, abs=1e-9)
        assert (found.removed[hit].sum(axis=1) == found.size[hit]).all()
        assert found.groups(hit[0]) == tuple(np.asarray(protocol.group_names)[found.removed[hit[0]]])


def test_exact_beam_and_greedy_are_ordered(setting):
    model, X, protocol = setting
    rows = bind(model, X, protocol)
    greedy = greedy_budget(rows, protocol)
    exact = failing_sets_of_rows(ModelOracle(rows), protocol, method="exact")
    beam = failing_sets_of_rows(ModelOracle(rows), protocol, method="beam", width=4)
    full = failing_sets_of_rows(
        ModelOracle(rows), protocol, method="beam", width=math.comb(rows.n_groups, rows.n_groups // 2)
    )
    assert exact.resolved.all()
    assert (exact.size <= beam.size).all() and (exact.size <= greedy).all()
    assert np.array_equal(full.size, exact.size) and np.array_equal(full.removed, exact.removed)


def test_batches_do_not_matter(setting):
    model, X, protocol = setting
    rows = bind(model, X.iloc[:8], protocol)
    for method in ("beam", "exact"):
        whole = failing_sets_of_rows(ModelOracle(rows), protocol, method=method)
        tiny = failing_sets_of_rows(ModelOracle(rows), protocol, method=method, byte_budget=40_000)
        assert np.array_equal(whole.size, tiny.size)
        assert np.array_equal(whole.removed, tiny.removed)
        assert np.array_equal(whole.evaluations, tiny.evaluations)


def test_rows_do_not_influence_each_other(setting):
    model, X, protocol = setting
    whole = find_failing_sets(model, X, protocol)
    backwards = find_failing_sets(model, X.iloc[::-1], protocol)
    assert np.array_equal(whole.size, backwards.size[::-1])
    assert np.array_equal(whole.removed, backwards.removed[::-1])
    assert whole.id.tolist() == X.index.tolist()


def test_tables_name_the_groups(setting, tmp_path):
    model, X, protocol = setting
    told = []
    found = find_failing_sets(model, X, protocol, progress=lambda *done: told.append(done))
    assert told and told[-1][1] == 30
    found.save(tmp_path / "sets.parquet")
    found.save(tmp_path / "sets.csv")
    assert (
        pd.read_parquet(tmp_path / "sets.parquet")["groups"].map(tuple).tolist() == found.to_pandas()["groups"].tolist()
    )
    first = int(np.flatnonzero(found.found)[0])
    assert pd.read_csv(tmp_path / "sets.csv")["groups"][first] == " + ".join(found.groups(first))


def test_an_unaffordable_row_says_how_far_it_was_searched():
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    protocol = Protocol.fit(case.model, case.X_train, baseline="mean")
    found = find_failing_sets(
        case.model, case.X_test.iloc[:30], protocol, method="exact", budget=250, engine="blackbox"
    )
    state = np.asarray(found.state)
    stopped = state == UNDECIDED
    assert stopped.any() and (state == MINIMUM).any()
    assert set(found.searched_size[stopped]) == {2}  # 20 + 190 <= 250 < 20 + 190 + 1140
    assert (found.size[stopped] == found.max_size + 1).all() and found.to_pandas()["size"][stopped].isna().all()
    assert np.array_equal(found.resolved, ~stopped)
    assert found.to_pandas()["state"].tolist() == list(found.state)


def test_groups_at_their_baseline_are_never_asked_for():
    case = pipelines.fitted("credit_g", "lightgbm", "raw")
    protocol = Protocol.fit(case.model, case.X_train, space="raw", groups=BLOCKS, baseline="typical")
    row = bind(case.model, case.X_test.iloc[:1], protocol)
    still = replace(row, matrix=np.where(protocol.column_group < 4, row.baseline, row.matrix))
    search = failing_sets_of_rows(ModelOracle(still), protocol, method="exact")
    assert not search.removed[:, :4].any()
    assert search.evaluations[0] <= 1 + 2 ** (row.n_groups - 4)


def test_the_greedy_path_is_smallest_for_a_linear_score_of_two_classes():
    """There the margin after a removal is m(x) minus a sum of one-step drops, so the k largest drops are the best k.

    (Only while no probability is clipped at 1e-12, which caps margins at 27.6.)
    """
    case = pipelines.fitted("credit_g", "logistic", "transformed")
    protocol = Protocol.fit(case.model, case.X_train, groups=BLOCKS)
    rows = bind(case.model, case.X_test.iloc[:60], protocol)
    found = failing_sets_of_rows(ModelOracle(rows), protocol, method="exact")
    assert found.resolved.all()
    assert np.array_equal(greedy_budget(rows, protocol), np.minimum(found.size, protocol.depth + 1))


def test_the_beam_proved_by_size_is_the_exact_search(setting):
    model, X, protocol = setting
    rows = bind(model, X, protocol)
    exact = failing_sets_of_rows(ModelOracle(rows), protocol, method="exact", max_size=rows.n_groups)
    proved = failing_sets_of_rows(ModelOracle(rows), protocol, method="auto", max_size=rows.n_groups)
    assert np.array_equal(exact.size, proved.size) and exact.state == proved.state
    assert set(exact.state) <= {MINIMUM, NONE_AT_ALL}
    beam = failing_sets_of_rows(ModelOracle(rows), protocol, method="beam", max_size=rows.n_groups)
    for size, state in zip(beam.size, beam.state, strict=True):
        if size <= 2:  # a beam starts from all single groups
            assert state == MINIMUM
    assert (beam.size >= exact.size).all()


# --- an interaction that the greedy path misses --------------------------------------------------------------------


class PairModel:
    """Flips when 'b' and 'c' are both removed; 'a' has the largest one-step drop but never helps."""

    classes_ = np.array([0, 1])
    n_features_in_ = 3

    def predict_proba(self, X):
        a, b, c = np.asarray(X, dtype=float).T
        score = 2.0 + 0.5 * a - 4.0 * (1 - b) * (1 - c) + 1.0 * (1 - a) * (1 - b) * (1 - c)
        p = 1 / (1 + np.exp(-score))
        return np.column_stack([1 - p, p])


def test_searches_find_the_pair_that_the_greedy_path_misses():
    X = pd.DataFrame({"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [1.0, 0.0]}, index=["missed", "single"])
    protocol = Protocol.fit(PairModel(), X, baseline=[0.0, 0.0, 0.0])
    rows = bind(PairModel(), X, protocol)
    greedy = greedy_budget(rows, protocol)
    exact = failing_sets_of_rows(ModelOracle(rows), protocol, method="exact")
    beam = failing_sets_of_rows(ModelOracle(rows), protocol, method="beam", width=3)
    assert greedy.tolist() == [3, 1]
    assert exact.size.tolist() == [2, 1] and beam.size.tolist() == [2, 1]
    assert exact.groups(0) == ("b", "c") and exact.groups(1) == ("b",)
    narrow = failing_sets_of_rows(ModelOracle(rows), protocol, method="beam", width=1)
    assert narrow.size.tolist() == [3, 1]


def test_wrong_requests_are_refused(setting):
    model, X, protocol = setting
    with pytest.raises(ProtocolError, match="method must be one of"):
        find_failing_sets(model, X, protocol, method="annealing")
    with pytest.raises(ProtocolError, match="max_size must be between 1 and the number of groups 9, got 10"):
        find_failing_sets(model, X, protocol, max_size=10)
    with pytest.raises(ProtocolError, match="beam width must be at least 1"):
        find_failing_sets(model, X, protocol, width=0)
