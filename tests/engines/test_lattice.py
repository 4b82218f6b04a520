"""The whole lattice against enumeration: every subset of groups, through the model itself."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive_lattice import Enumerated
from scipy.stats import binom
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier

import fragility as fg
from fragility.base.errors import DataError, EngineError
from fragility.engines.lattice import programs, whole
from fragility.engines.lattice.additive import FlipRule, LinearLattice
from fragility.engines.lattice.trees import TreeLattice
from fragility.pages.terms import MINIMUM, NONE_AT_ALL, UNDECIDED, UPPER_BOUND, none_up_to
from fragility.protocol import bind
from fragility.questions.search import finding
from fragility.questions.search.found import NOT_COUNTED

pytest.importorskip("numba")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
catboost = pytest.importorskip("catboost")

ROWS = 3
FAMILIES = {
    "decision tree": lambda seed: DecisionTreeClassifier(random_state=seed),
    "random forest": lambda seed: RandomForestClassifier(7, random_state=seed),
    "random forest, impure leaves": lambda seed: RandomForestClassifier(9, min_samples_leaf=4, random_state=seed),
    "extra trees": lambda seed: ExtraTreesClassifier(6, random_state=seed),
    "gradient boosting": lambda seed: GradientBoostingClassifier(n_estimators=8, random_state=seed),
    "hist gradient boosting": lambda seed: HistGradientBoostingClassifier(
        max_iter=8, min_samples_leaf=3, random_state=seed
    ),
    "xgboost": lambda seed: xgboost.XGBClassifier(n_estimators=10, max_depth=4, n_jobs=1, random_state=seed),
    "lightgbm": lambda seed: lightgbm.LGBMClassifier(
        n_estimators=10, min_child_samples=3, n_jobs=1, verbose=-1, random_state=seed
    ),
    "catboost": lambda seed: catboost.CatBoostClassifier(
        iterations=10, depth=4, thread_count=1, verbose=False, random_seed=seed, allow_writing_files=False
    ),
    "logistic": lambda seed: LogisticRegression(),
    "discriminant": lambda seed: LinearDiscriminantAnalysis(),
}
SINGLE = ("xgboost",)  # its own sums are float32


@pytest.fixture(autouse=True, scope="module")
def any_resolution():
    """Ties are made by hand here, at resolutions that a protocol for users may not have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fragility.evidence.protocol_parts.MAX_RESOLUTION", 100.0)
        yield


def case(family, seed, n_groups, n_classes, *, whole_numbers=False):
    """A fitted model, its protocol and a few bound rows; whole-numbered cells make ties."""
    draws = np.random.default_rng(seed)
    n, width = 90, n_groups + int(draws.integers(0, 3))
    X = draws.integers(0, 3, (n, width)).astype(float) if whole_numbers else draws.normal(size=(n, width))
    score = X @ draws.normal(size=(width, n_classes)) + X[:, :1] * X[:, 1:2]
    y = score.argmax(axis=1)
    y[:n_classes] = np.arange(n_classes)  # every class occurs
    model = FAMILIES[family](seed).fit(X, y)
    fields = fg.Protocol.fit(model, X).group_names
    blocks = {name: f"g{j % n_groups:02d}" for j, name in enumerate(fields)}
    return model, fg.Protocol.fit(model, X, groups=blocks), X[-ROWS:]


def enumerate_rows(model, protocol, X):
    rows = bind(model, X, protocol)
    x = rows.dense()
    group = rows.column_group.tolist()
    own = [list(model.classes_).index(label) for label in np.ravel(model.predict(X))]
    return [
        Enumerated(x[i], rows.predict, rows.baseline, group, rows.n_groups, protocol.resolution, own[i])
        for i in range(len(x))
    ]


def check_sets(found, enumerated, method="lattice"):
    for i, truth in enumerate(enumerated):
        assert found.method[i] == method
        smallest = truth.smallest()
        if smallest is None:
            assert found.state[i] == NONE_AT_ALL and found.count[i] == 0 and not found.removed[i].any()
            continue
        size, first, count = smallest
        assert (found.state[i], found.size[i]) == (MINIMUM, size)
        chosen = tuple(np.flatnonzero(found.removed[i]))
        assert chosen in truth.failing
        if method != "closed form":
            assert chosen == first and found.count[i] == count


def check_probabilities(found, enumerated, rates, tolerance):
    for i, truth in enumerate(enumerated):
        assert found.exact[i] and found.low[i] == found.p_flip[i] == found.high[i]
        assert found.p_flip[i] == pytest.approx(truth.probability(rates), abs=1e-9)
        assert found.importance[i] == pytest.approx(truth.importance(rates), abs=1e-9)
        assert found.kept[i] == pytest.approx(rates * truth.importance(rates), abs=1e-9)
        if not np.isnan(found.expected_margin[i]):
            assert found.expected_margin[i] == pytest.approx(truth.expected_margin(rates), abs=tolerance)


def check_case(family, seed, n_groups, n_classes, whole_numbers):
    model, protocol, X = case(family, seed, n_groups, n_classes, whole_numbers=whole_numbers)
    truth = enumerate_rows(model, protocol, X)
    found = fg.find_failing_sets(model, X, protocol, every=True)
    check_sets(found, truth)
    names = protocol.group_names
    for i, row in enumerate(truth):
        assert found.every(i).complete
        assert list(found.every(i).sets) == [tuple(names[g] for g in s) for s in row.minimal()]
    rates = np.random.default_rng(seed).random(n_groups)
    rates[0] = seed % 3 / 2.0  # 0 and 1 are rates too
    chances = fg.assess_reliability(model, X, protocol, dict(zip(names, rates, strict=True)))
    check_probabilities(chances, truth, rates, 1e-6 if family in SINGLE else 1e-9)


@pytest.mark.samples
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_sets_and_probabilities_equal_enumeration(family, n_classes):
    check_case(family, seed=n_classes, n_groups=7, n_classes=n_classes, whole_numbers=n_classes == 3)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10_000), n_groups=st.integers(1, 12), n_classes=st.integers(2, 4), whole_numbers=st.booleans()
)
def test_sets_and_probabilities_equal_enumeration_for_any_model(family, seed, n_groups, n_classes, whole_numbers):
    check_case(family, seed, max(n_groups, 2), n_classes, whole_numbers)


@pytest.mark.samples
@pytest.mark.parametrize("family", ["random forest", "lightgbm", "xgboost", "catboost", "logistic"])
@pytest.mark.parametrize("nudge", [-1e-12, 0.0, 1e-12, 1e-7, -1e-7])
def test_a_margin_at_the_resolution_is_decided_as_the_model_decides_it(family, nudge):
    """The edge is laid through a state of the row itself, or a hair beside it."""
    if family == "logistic" and abs(nudge) < 1e-9:
        pytest.skip("its own dot products round by the shape of the batch")
    model, protocol, X = case(family, 11, 6, 3 if family == "lightgbm" else 2)
    lost = [m for row in enumerate_rows(model, protocol, X) for m in row.margins.values() if -2.0 < m < -1e-3]
    assert lost
    for edge in lost[:: max(1, len(lost) // 4)]:
        at_edge = replace(protocol, resolution=-edge + nudge)
        truth = enumerate_rows(model, at_edge, X)
        check_sets(fg.find_failing_sets(model, X, at_edge), truth)
        rates = np.full(len(protocol.groups), 0.3)
        check_probabilities(fg.assess_reliability(model, X, at_edge, 0.3), truth, rates, 1e-6)


def test_exact_ties_of_an_averaged_forest_are_no_flips():
    """Two trees that disagree leave both classes at one half, which the original class keeps."""
    X = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]] * 10)
    model = RandomForestClassifier(2, max_features=1, random_state=3).fit(X, X[:, 0].astype(int))
    protocol = fg.Protocol.fit(model, X, baseline=[0.0, 0.0])
    truth = enumerate_rows(model, protocol, X[:4])
    check_sets(fg.find_failing_sets(model, X[:4], protocol), truth)


def test_threads_and_budgets_change_nothing(monkeypatch):
    model, protocol, _ = case("lightgbm", 5, 9, 3)
    X = np.random.default_rng(0).normal(size=(60, len(protocol.columns)))
    monkeypatch.setattr(whole, "_cores", lambda: 1)
    alone = fg.find_failing_sets(model, X, protocol, every=True)
    chances = fg.assess_reliability(model, X, protocol, 0.1)
    monkeypatch.setattr(whole, "_cores", lambda: 5)
    monkeypatch.setattr(whole, "CHUNK_BYTES", 4096)
    for budget in (1, 2**28):
        together = fg.find_failing_sets(model, X, protocol, every=True, byte_budget=budget)
        pd.testing.assert_frame_equal(alone.to_pandas(), together.to_pandas())
        again = fg.assess_reliability(model, X, protocol, 0.1, byte_budget=budget)
        assert np.array_equal(chances.p_flip, again.p_flip) and np.array_equal(chances.importance, again.importance)


def test_a_largest_size_is_respected():
    model, protocol, X = case("lightgbm", 4, 8, 2)
    truth = enumerate_rows(model, protocol, X)
    for limit in (1, 2, 3):
        found = fg.find_failing_sets(model, X, protocol, max_size=limit)
        for i, row in enumerate(truth):
            smallest = row.smallest()
            fits = smallest is not None and smallest[0] <= limit
            assert found.state[i] == (MINIMUM if fits else none_up_to(limit))


# --- more groups than a table holds -----------------------------------------------------------------------------


def leave_no_table(monkeypatch):
    """Let no row have few enough live groups for a table of all subsets."""
    for lattice in (TreeLattice, LinearLattice):
        monkeypatch.setattr(lattice, "most_live", 0)


@pytest.mark.parametrize("family", ["random forest", "lightgbm", "xgboost", "catboost", "gradient boosting"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_branch_and_bound_equals_enumeration(family, n_classes, monkeypatch):
    model, protocol, X = case(family, 8, 7, n_classes)
    truth = enumerate_rows(model, protocol, X)
    leave_no_table(monkeypatch)
    found = fg.find_failing_sets(model, X, protocol)
    check_sets(found, truth, "branch and bound")


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_closed_form_of_linear_models_equals_enumeration(n_classes, monkeypatch):
    for seed in range(6):
        model, protocol, X = case("logistic", seed, 8, n_classes)
        truth = enumerate_rows(model, protocol, X)
        leave_no_table(monkeypatch)
        check_sets(fg.find_failing_sets(model, X, protocol), truth, "closed form")
        monkeypatch.undo()


def test_near_ties_of_the_closed_form_are_right_up_to_the_models_own_rounding(monkeypatch):
    """A dot product rounds by the shape of its batch, so sizes are held against edges a hair to either side."""
    model, protocol, X = case("logistic", 3, 6, 2)
    edges = [m for row in enumerate_rows(model, protocol, X) for s, m in row.margins.items() if m < -1e-3]
    leave_no_table(monkeypatch)
    for edge in edges[::7]:
        found = fg.find_failing_sets(model, X, replace(protocol, resolution=-edge))
        easier = enumerate_rows(model, replace(protocol, resolution=-edge - 1e-9), X)
        harder = enumerate_rows(model, replace(protocol, resolution=-edge + 1e-9), X)
        for i in range(ROWS):
            most, least = (7 if row[i].smallest() is None else row[i].smallest()[0] for row in (harder, easier))
            assert least <= found.size[i] <= most


@pytest.mark.parametrize("family", ["random forest", "lightgbm", "xgboost", "catboost", "extra trees", "logistic"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_integer_programs_equal_enumeration(family, n_classes, monkeypatch):
    """With no other search before them; the set is then the first in lexicographic order, as elsewhere."""
    leave_no_table(monkeypatch)
    monkeypatch.setattr(finding, "search_linear", lambda *given: None)
    for seed, whole_numbers in ((8, False), (9, True), (10, True)):
        model, protocol, X = case(family, seed, 7, n_classes, whole_numbers=whole_numbers)
        truth = enumerate_rows(model, protocol, X)
        found = fg.find_failing_sets(model, X, protocol, method="exact", budget=0)
        decided = [i for i in range(ROWS) if found.method[i] == "integer program"]
        assert decided or truth[0].smallest() is None
        for i in range(ROWS):
            size, first, _ = truth[i].smallest() or (8, (), 0)
            assert (found.size[i], tuple(np.flatnonzero(found.removed[i]))) == (size, first)
            assert found.state[i] == (MINIMUM if size < 8 else NONE_AT_ALL)


def test_integer_programs_leave_out_sets_that_the_model_denies(monkeypatch):
    """A state at the edge of an averaged forest ties exactly; the widened inequality lets it through."""
    leave_no_table(monkeypatch)
    denied = []
    find_failing = programs.Program.find_failing

    def note(program, *given):
        out = find_failing(program, *given)
        denied.append(len(program.denied))
        return out

    monkeypatch.setattr(programs.Program, "find_failing", note)
    for seed in range(8):
        model, protocol, X = case("random forest", seed, 6, 2)
        margins = sorted({m for row in enumerate_rows(model, protocol, X) for m in row.margins.values() if m < -1e-3})
        if not margins:
            continue
        edge = replace(protocol, resolution=-margins[len(margins) // 2])  # that state is no flip by a hair
        truth = enumerate_rows(model, edge, X)
        found = fg.find_failing_sets(model, X, edge, method="exact", budget=0)
        assert [None if row.smallest() is None else row.smallest()[0] for row in truth] == [
            None if size > 6 else size for size in found.size
        ]
    assert max(denied) > 0


@pytest.mark.parametrize("family", ["logistic", "lightgbm"])
def test_wide_rows_name_one_minimal_set_and_say_that_there_may_be_more(family, monkeypatch):
    leave_no_table(monkeypatch)
    model, protocol, X = case(family, 8, 7, 2)
    found = fg.find_failing_sets(model, X, protocol, method="exact", budget=0, every=True)
    assert found.found.any()
    for i in range(ROWS):
        sets = found.every(i)
        assert sets.sets == ((found.groups(i),) if found.found[i] else ())
        assert sets.complete == (found.state[i] == NONE_AT_ALL)


def test_a_rival_that_no_group_helps_is_never_reached():
    """Its program has no group at all, which the solver would refuse."""
    program = programs.make_sum_program(1.0, np.array([0.0, -2.0, 0.0]), 1e-9, 10)
    assert program.find_failing(lambda gone: True, np.ones(0), 1, 3, {}) is None
    assert program.find_first(lambda gone: True, 1) is None


@pytest.mark.parametrize("nodes", [1.5, "x", -1, True])
def test_nodes_that_are_no_number_are_refused(nodes):
    model, protocol, X = wide_case(rows=1)
    with pytest.raises(fg.ProtocolError, match="nodes must be a whole number of at least 0"):
        fg.find_failing_sets(model, X, protocol, nodes=nodes)


def test_what_budgets_leave_open_is_settled_by_integer_programs():
    model, protocol, X = wide_case()
    full = fg.find_failing_sets(model, X, protocol, budget=200_000, nodes=0)
    for method, budget in (("auto", 30), ("exact", 30)):
        found = fg.find_failing_sets(model, X, protocol, method=method, budget=budget)
        assert found.resolved.all() and "integer program" in found.method
        proved = full.resolved
        assert np.array_equal(found.size[proved], full.size[proved]) and (found.size <= full.size).all()


def test_cells_that_nothing_moves_are_no_part_of_a_program(monkeypatch):
    leave_no_table(monkeypatch)
    model, protocol, X = case("lightgbm", 3, 7, 2)
    X = X.copy()
    X[0, 0] = X[1, 2] = np.nan
    truth = enumerate_rows(model, protocol, X)
    found = fg.find_failing_sets(model, X, protocol, method="exact", budget=0)
    for i in range(ROWS):
        assert found.size[i] == (truth[i].smallest() or (8,))[0]


def wide_case(n_groups=40, rows=12):
    draws = np.random.default_rng(1)
    X = draws.normal(size=(400, n_groups))
    y = (X[:, :8].sum(axis=1) + 0.3 * draws.normal(size=400) > 0).astype(int)
    model = lightgbm.LGBMClassifier(n_estimators=40, min_child_samples=5, n_jobs=1, verbose=-1).fit(X, y)
    return model, fg.Protocol.fit(model, X), X[:rows]


def test_forty_groups_by_branch_and_bound_agree_with_all_small_subsets():
    model, protocol, X = wide_case()
    found = fg.find_failing_sets(model, X, protocol, budget=20_000)
    asked = fg.find_failing_sets(model, X, protocol, method="exact", max_size=2, budget=10_000, engine="blackbox")
    assert "branch and bound" in found.method and (found.size <= 2).any()
    small = asked.found
    assert np.array_equal(found.size[small], asked.size[small])
    assert np.array_equal(found.removed[small], asked.removed[small])
    assert (found.size[~small] > 2).all()
    assert np.array_equal(found.count[small], asked.count[small])


def test_an_ended_budget_is_said():
    model, protocol, X = wide_case()
    found = fg.find_failing_sets(model, X, protocol, budget=30, nodes=0)
    assert set(found.state) & {UPPER_BOUND, UNDECIDED, MINIMUM}
    full = fg.find_failing_sets(model, X, protocol, budget=200_000)
    assert (found.size >= full.size).all()
    for i in np.flatnonzero(np.asarray(found.state) == UPPER_BOUND):
        assert found.searched_size[i] < found.size[i] - 1
    exact_only = fg.find_failing_sets(model, X, protocol, method="exact", budget=30, nodes=0)
    assert UNDECIDED in exact_only.state


def test_groups_that_never_fail_need_no_place_in_the_table():
    model, protocol, X = wide_case(rows=5)
    rates = np.zeros(40)
    rates[:9] = 0.2
    found = fg.assess_reliability(model, X, protocol, dict(zip(protocol.group_names[:9], rates[:9], strict=True)))
    rows = bind(model, X, protocol)
    for i in range(len(X)):
        x = rows.dense(i, i + 1)[0]
        truth = Enumerated(x, rows.predict, rows.baseline, [min(g, 9) for g in range(40)], 10, protocol.resolution)
        assert found.exact[i] and found.p_flip[i] == pytest.approx(truth.probability([*rates[:9], 0.0]), abs=1e-9)
        assert found.importance[i, :9] == pytest.approx(truth.importance([*rates[:9], 0.0])[:9], abs=1e-9)
    assert np.isnan(found.importance[:, 9:]).any() and (found.kept[:, 9:] == 0.0).all()


def many_groups(family, n_classes, n_groups, seed=4):
    """A model, its protocol and rows, of so many groups that tables of all their subsets are large."""
    draws = np.random.default_rng(seed)
    X = draws.normal(size=(500, n_groups))
    y = (X @ draws.normal(size=(n_groups, n_classes)) + draws.normal(size=(500, n_classes))).argmax(axis=1)
    model = FAMILIES[family](seed).fit(X, y)
    return model, fg.Protocol.fit(model, X), X[:30]


@pytest.mark.parametrize(
    ("family", "n_classes", "n_groups"),
    [("lightgbm", 2, 19), ("lightgbm", 3, 18), ("random forest", 2, 20), ("random forest", 3, 17)],
)
def test_the_smallest_sets_are_those_of_the_whole_table(family, n_classes, n_groups, monkeypatch):
    model, protocol, X = many_groups(family, n_classes, n_groups)
    every = fg.find_failing_sets(model, X, protocol, every=True)  # all subsets are tabulated
    asked, steps, made = [], set(), TreeLattice.mark
    monkeypatch.setattr(TreeLattice, "few", (3, 5, 6))
    monkeypatch.setattr(TreeLattice, "mark", lambda self, *given: (steps.add(given[2]), made(self, *given))[1])
    find = TreeLattice.find_safe
    monkeypatch.setattr(TreeLattice, "find_safe", lambda *given: asked.append(find(*given)) or asked[-1])
    for most in (None, 2, 4):
        found = fg.find_failing_sets(model, X, protocol, max_size=most)
        within = every.found & (every.size <= (most or n_groups))
        assert np.array_equal(found.found, within) and np.array_equal(found.size[within], every.size[within])
        for part in ("removed", "count", "margin"):
            assert np.array_equal(getattr(found, part)[within], getattr(every, part)[within])
        if most is None:
            assert found.state == every.state and np.array_equal(found.evaluations, every.evaluations)
    assert steps >= ({3, 5} if n_groups > 18 else {3})
    assert asked


def test_bounds_never_call_a_row_safe_that_can_fail(monkeypatch):
    monkeypatch.setattr("fragility.engines.lattice.trees.SAFE_BITS", -6)  # as many leaves as it takes
    for family, n_classes in (("lightgbm", 2), ("lightgbm", 3), ("random forest", 2)):
        model, protocol, X = many_groups(family, n_classes, 16, seed=7)
        rows = bind(model, X, protocol)
        lattice = whole.find_lattice(rows, protocol, "auto", 2**28)
        proved = 0
        for block in lattice.blocks():
            for found in lattice.subsets(block):
                original = int(block.original[found.place[0]])
                safe = lattice.model.find_safe(block.x, original, found.jobs, whole.Workers(1))
                assert np.array_equal(safe, ~found.sizes().any(axis=1))
                proved += int(safe.sum())
        assert proved


def equal_groups(n_groups):
    """A linear model to which all groups mean the same: a row of ones flips when four of them are removed."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (60, n_groups)).astype(float)
    model = LogisticRegression().fit(X, X[:, 0])
    model.coef_, model.intercept_ = np.ones((1, n_groups)), np.array([3.5 - n_groups])
    return model, fg.Protocol.fit(model, X, baseline="zero"), np.ones((1, n_groups))


@pytest.mark.parametrize("n_groups", [24, 25])
def test_twenty_four_live_groups_are_tabulated_and_no_more(n_groups):
    model, protocol, X = equal_groups(n_groups)
    (found,) = fg.find_failing_sets(model, X, protocol).count
    chances = fg.assess_reliability(model, X, protocol, 0.1)
    truth = float(binom.sf(3, n_groups, 0.1))
    if n_groups == 24:
        assert found == math.comb(24, 4)
        assert chances.method == ("lattice",) and chances.p_flip[0] == pytest.approx(truth, abs=1e-12)
    else:
        assert found == NOT_COUNTED
        assert chances.method == ("quasi-random",) and chances.low[0] <= truth <= chances.high[0]


def test_what_a_group_that_never_fails_would_do_is_known_where_all_groups_have_their_place():
    model, protocol, X = equal_groups(24)
    rates = dict.fromkeys(protocol.group_names[:23], 0.1)
    found = fg.assess_reliability(model, X, protocol, rates)
    truth = float(binom.sf(2, 23, 0.1) - binom.sf(3, 23, 0.1))
    assert found.importance[0, 23] == pytest.approx(truth, abs=1e-12)


def test_wide_rows_have_an_interval_that_holds_the_truth(monkeypatch):
    model, protocol, _ = case("lightgbm", 11, 11, 2)
    X = np.random.default_rng(9).normal(size=(10, len(protocol.columns)))
    truth = [row.probability([0.2] * 11) for row in enumerate_rows(model, protocol, X)]
    leave_no_table(monkeypatch)
    found = fg.assess_reliability(model, X, protocol, 0.2, draws=1024)  # half of the subsets: fewer are enumerated
    assert set(found.method) <= {"quasi-random", "bounds"} and "quasi-random" in found.method
    assert found.p_flip == pytest.approx(truth, abs=0.02)
    assert ((found.low <= truth) & (truth <= found.high)).sum() >= 9
    sure = np.asarray(found.method) == "bounds"
    assert (found.p_flip[sure] == 0.0).all() and found.exact[sure].all()


# --- what is not additive, or does not agree ---------------------------------------------------------------------


def test_black_boxes_are_asked():
    draws = np.random.default_rng(2)
    X = draws.normal(size=(120, 6))
    model = MLPClassifier((6,), max_iter=80, random_state=0).fit(X, (X[:, 0] * X[:, 1] > 0).astype(int))
    protocol = fg.Protocol.fit(model, X)
    truth = enumerate_rows(model, protocol, X[:8])
    found = fg.find_failing_sets(model, X[:8], protocol)
    for i, row in enumerate(truth):
        smallest = row.smallest()
        expected = (NONE_AT_ALL, 7) if smallest is None else (MINIMUM, smallest[0])
        assert (found.state[i], found.size[i]) == expected and found.method[i] == "by size"
    drawn = fg.assess_reliability(model, X[:8], protocol, 0.2, draws=32)
    asked = fg.assess_reliability(model, X[:8], protocol, 0.2, draws=64)  # as many as there are subsets: all of them
    assert not drawn.exact.any() and asked.exact.all()
    for i, row in enumerate(truth):
        assert asked.p_flip[i] == pytest.approx(row.probability([0.2] * 6), abs=1e-9)


def test_one_against_the_rest_is_no_difference_of_scores():
    model = SGDClassifier(loss="log_loss", random_state=0)
    draws = np.random.default_rng(4)
    X = draws.normal(size=(120, 5))
    model.fit(X, (X @ draws.normal(size=(5, 3))).argmax(axis=1))
    protocol = fg.Protocol.fit(model, X)
    found = fg.find_failing_sets(model, X[:5], protocol)
    assert set(found.method) == {"by size"}
    for i, row in enumerate(enumerate_rows(model, protocol, X[:5])):
        smallest = row.smallest()
        assert found.state[i] == (NONE_AT_ALL if smallest is None else MINIMUM)


def test_a_lattice_that_contradicts_its_model_is_not_used(monkeypatch):
    from fragility.engines.lattice.trees import TreeLattice

    model, protocol, X = case("lightgbm", 6, 7, 2)
    honest = TreeLattice.edge

    def turned(self, original, rival, **settings):
        edge = honest(self, original, rival, **settings)
        return edge._replace(leaf=-edge.leaf, start=-edge.start)

    monkeypatch.setattr(TreeLattice, "edge", turned)
    truth = enumerate_rows(model, protocol, X)
    with pytest.warns(UserWarning, match="searched as a black box instead"):
        found = fg.find_failing_sets(model, X, protocol)
    assert set(found.method) == {"by size"}
    assert [n <= 7 for n in found.size] == [row.smallest() is not None for row in truth]
    with pytest.raises(EngineError, match="use engine='auto'"):
        fg.find_failing_sets(model, X, protocol, engine="trees")


def test_a_resolution_beyond_the_clip_is_left_to_the_model():
    model, protocol, X = case("lightgbm", 6, 5, 2)
    far = replace(protocol, resolution=27.0)
    assert FlipRule.of(bind(model, X, far), far).clip_matters
    found = fg.find_failing_sets(model, X, far)
    assert set(found.state) == {NONE_AT_ALL} and set(found.method) == {"by size"}


def test_every_must_be_asked_for(tmp_path):
    model, protocol, X = case("lightgbm", 4, 8, 2)
    found = fg.find_failing_sets(model, X, protocol)
    with pytest.raises(DataError, match="for every one of them"):
        found.every(0)
    listed = fg.find_failing_sets(model, X, protocol, every=True)
    listed.save(tmp_path / "sets.csv")
    listed.save(tmp_path / "sets.parquet")
    table = pd.read_csv(tmp_path / "sets.csv")
    some = int(np.flatnonzero(listed.found)[0])
    assert table["minimal_sets"][some] == " | ".join(" + ".join(s) for s in listed.every(some).sets)
    assert listed.every(some).to_text().startswith(" and ".join(listed.every(some).sets[0]))
