"""Explainable boosting machines: read as tables and as trees, with the bits of the library's own sums."""

import functools
import warnings
from dataclasses import replace

import joblib
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_stability import stability_interval
from places import data_folder
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import fragility as fg
from fragility.base.errors import EngineError
from fragility.engines.choice import choose_oracle, find_engine
from fragility.engines.engine import Values
from fragility.engines.oracle import ModelOracle
from fragility.engines.trees import engine
from fragility.engines.trees.readers.interpret import write_number
from fragility.evidence import States
from fragility.protocol import bind

pytest.importorskip("numba")
glassbox = pytest.importorskip("interpret.glassbox")

FEATURES = {
    "amount": "continuous",
    "age": "continuous",
    "code": "nominal",  # whole numbers as categories
    "rate": "nominal",  # decimals as categories
    "job": "nominal",
    "kind": "ordinal",
    "member": "nominal",
    "gap": "continuous",
    "single": "continuous",
}


def make_table(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Columns of every type that such a machine takes, with missing values; a score behind the labels."""
    draws = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "amount": draws.normal(size=n).round(2) * 100,
            "age": draws.integers(18, 80, n),
            "code": draws.integers(0, 4, n),
            "rate": draws.choice([0.5, 1.25, 3.0], n),
            "job": draws.choice(["cook", "baker", "7", "2.50"], n),
            "kind": pd.Categorical(draws.choice(["low", "mid", "high"], n), ["low", "mid", "high"], ordered=True),
            "member": draws.random(n) < 0.4,
            "gap": np.where(draws.random(n) < 0.2, np.nan, draws.normal(size=n)),
            "single": draws.normal(size=n).astype(np.float32),
        }
    )
    X.loc[draws.random(n) < 0.1, "job"] = None
    score = X.amount / 100 + (X.age > 50) * X.code + (X.job == "cook") * 1.5 - X.member * X.gap.fillna(1) + X.single
    return X, (score + draws.logistic(size=n) * 0.3).to_numpy()


def make_rows(n: int = 60) -> pd.DataFrame:
    """Rows with categories and numbers that training did not have."""
    X, _ = make_table(n, 1)
    X.loc[:3, "job"] = "unheard of"
    X.loc[[2, 5], "rate"] = [2.0, -0.0]
    X.loc[7, "code"] = 99
    X.loc[8, ["amount", "age"]] = [1e9, -5]
    return X


SMALL = {"outer_bags": 2, "max_rounds": 40, "n_jobs": 1, "random_state": 0}
SETTINGS = {
    "two classes": {"interactions": 4},
    "three classes": {"interactions": 3},
    "types declared": {"interactions": [(0, 2), (3, 4), (5, 7), (1, 4, 6)], "feature_types": list(FEATURES.values())},
    "main effects": {"interactions": 0},
    "pairs with few bins": {"interactions": 4, "max_bins": 64, "max_interaction_bins": 5},
    "private": {},
}


@functools.cache
def fit_machine(name: str):
    X, score = make_table(400, 0)
    y = np.digitize(score, [0.0, 1.5]) if name == "three classes" else np.where(score > 0.7, "yes", "no")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "private":  # takes no missing values in training
            X = X.assign(gap=X.gap.fillna(0.0), job=X.job.fillna("cook"))
            return pytest.importorskip("interpret.privacy").DPExplainableBoostingClassifier(random_state=0).fit(X, y)
        return glassbox.ExplainableBoostingClassifier(**SMALL, **SETTINGS[name]).fit(X, y)


@functools.cache
def bind_machine(name: str, baseline: str = "typical"):
    machine = fit_machine(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fields that had no missing value in training
        protocol = fg.Protocol.fit(machine, make_table(400, 0)[0], baseline=baseline)
    return protocol, bind(machine, make_rows(), protocol)


# --- as the library predicts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_sums_have_the_bits_of_the_librarys_own(name):
    from fragility.engines.trees.scoring import make_row_scorer
    from fragility.engines.trees.tables import make_row_lookup

    rows = bind_machine(name)[1]
    ensemble = engine.ensemble_of(rows.model)
    recoding = engine.make_recoding(ensemble, rows)
    cells, own = recoding.recode(rows.dense()), np.atleast_2d(fit_machine(name).decision_function(make_rows()).T)
    np.testing.assert_array_equal(make_row_lookup(ensemble.terms, recoding.rounding)(cells), own)
    np.testing.assert_array_equal(make_row_scorer(ensemble.forest, recoding.rounding)(cells), own)


@pytest.mark.parametrize(
    ("name", "baseline"), [*((name, "typical") for name in SETTINGS), ("types declared", "missing")]
)
def test_certificates_are_those_of_the_black_box(name, baseline):
    protocol, rows = bind_machine(name, baseline)
    own, asked = (fg.audit(fit_machine(name), rows, protocol, engine=by) for by in ("auto", "blackbox"))
    assert (own.engine, asked.engine) == ("trees", "blackbox")
    assert own.manifest.engine.blackbox_rows == 0
    assert own.to_pandas()["digest"].tolist() == asked.to_pandas()["digest"].tolist()


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(SETTINGS)), st.integers(0, 2**32 - 1))
def test_answers_to_any_states_and_values_are_the_models(name, seed):
    rows, draws = bind_machine(name)[1].take(range(8)), np.random.default_rng(seed)
    oracle, model, x = choose_oracle(rows), ModelOracle(rows), rows.dense()
    assert oracle.name == "trees"
    owner = np.sort(draws.integers(0, len(x), 20))
    for units, by_column in ((rows.n_groups, False), (rows.width, True)):
        moved = draws.random((20, units)) < draws.random()
        for severity in (None, draws.choice([0.0, 0.3, 0.5, 0.95, 1.0], 20)):
            states = States(owner, moved, severity, by_column)
            told, own = (by.answer_states(x, states) for by in (oracle, model))
            np.testing.assert_allclose(told, own, rtol=0, atol=1e-15)
    unit, asked = draws.integers(-1, 3, rows.width), np.arange(3)
    for y in (x[::-1], x[0]):
        told, own = (next(by.answer_values(x, [Values(y, unit, asked)])) for by in (oracle, model))
        np.testing.assert_allclose(told, own, rtol=0, atol=1e-15)
    np.testing.assert_allclose(oracle.predict(x), rows.predict(x), rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ["two classes", "three classes", "types declared"])
def test_smallest_failing_sets_are_those_found_by_asking(name):
    protocol, rows = bind_machine(name)
    few = rows.take(range(12))
    read = fg.find_failing_sets(fit_machine(name), few, protocol)
    asked = fg.find_failing_sets(fit_machine(name), few, protocol, engine="blackbox", method="exact")
    assert set(read.method) == {"lattice"} and set(asked.method) == {"by size"}
    told, own = (
        answers.to_pandas().drop(columns=["method", "searched_size", "evaluations"]) for answers in (read, asked)
    )
    pd.testing.assert_frame_equal(told, own)


@pytest.mark.parametrize("field", ["age", "code"])
def test_stability_intervals_end_where_asking_for_each_value_says(field):
    protocol = bind_machine("types declared")[0]
    machine, table = fit_machine("types declared"), make_rows().iloc[10:30].reset_index(drop=True)
    found = fg.find_stability_intervals(machine, table, protocol, fields=[field])
    low, high = make_table(400, 0)[0][field].agg(["min", "max"])
    for i in range(len(table)):
        one = found.interval(i, field)

        def ask(values, i=i):
            taken = pd.Series(list(values), dtype=np.int64)
            return machine.predict_proba(table.iloc[[i] * len(values)].reset_index(drop=True).assign(**{field: taken}))

        twin = stability_interval(ask, int(table[field][i]), range(low, high + 1))
        flips = [
            None if f is None else (f.value, found.classes.index(f.predicted))
            for f in (one.flips_below, one.flips_above)
        ]
        assert one.exact
        assert {"below": (one.low, flips[0]), "above": (one.high, flips[1])} == twin


def test_failure_modes_are_those_of_the_black_box():
    machine, table = fit_machine("types declared"), make_rows(30)
    protocol = fg.Protocol.fit(machine, make_table(400, 0)[0], modes=("lost", "wrong", "noisy"))
    own, asked = (fg.assess_modes(machine, table, protocol, engine=by).to_pandas() for by in ("auto", "blackbox"))
    pd.testing.assert_frame_equal(own, asked, rtol=0, atol=1e-12)


def test_a_machine_behind_preprocessing_reads_the_matrix_that_it_is_handed():
    X, score = make_table(400, 0)
    X = X[["amount", "age", "code", "kind"]]
    prepare = make_column_transformer((OneHotEncoder(sparse_output=False), ["kind"]), remainder="passthrough")
    machine = glassbox.ExplainableBoostingClassifier(**SMALL, interactions=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_pipeline(prepare, machine).fit(X, score > 0.7)
    protocol = fg.Protocol.fit(model, X)
    own, asked = (fg.audit(model, X[:50], protocol, engine=by) for by in ("trees", "blackbox"))
    assert protocol.space == "transformed"
    assert own.to_pandas()["digest"].tolist() == asked.to_pandas()["digest"].tolist()


def test_numbers_are_written_as_the_library_writes_them():
    from interpret.utils._clean_x import _densify_categorical

    draws = np.random.default_rng(0)
    numbers = np.r_[draws.normal(size=200) * 10.0 ** draws.integers(-20, 20, 200), draws.integers(-999, 999, 50), -0.0]
    assert [write_number(v) for v in numbers] == _densify_categorical(numbers.astype(object)).tolist()


# --- what is not read -----------------------------------------------------------------------------------------------


def refuse(machine, table=None, train=None) -> str:
    train = make_table(400, 0)[0] if train is None else train
    rows = bind(machine, train[:20] if table is None else table, fg.Protocol.fit(machine, train))
    assert find_engine(rows, "auto") is None
    with pytest.raises(EngineError) as caught:
        find_engine(rows, "trees")
    return str(caught.value)


def test_categories_that_are_huge_numbers_are_left_to_the_model():
    X = pd.DataFrame({"account": np.array([10**17, 10**17 + 1] * 40).astype(str), "x": np.arange(80.0)})
    types = ["nominal", "continuous"]
    machine = glassbox.ExplainableBoostingClassifier(**SMALL, interactions=0, feature_types=types)
    assert "the category '100000000000000000', a number beyond 2**53" in refuse(
        machine.fit(X, np.arange(80) % 2), train=X
    )


def test_a_machine_without_terms_is_left_to_the_model():
    machine = fit_machine("main effects").copy()
    machine.remove_terms(list(range(len(machine.term_features_))))
    assert "without terms" in refuse(machine)


def test_an_unknown_link_is_refused():
    machine = fit_machine("three classes").copy()
    machine.link_ = "vlogit"
    with pytest.raises(EngineError, match="with the link 'vlogit'"):
        engine.read_ensemble(machine)


def test_values_without_a_text_are_refused():
    rows = bind_machine("main effects")[1]
    assert rows.forms is not None
    forms = list(rows.forms)
    forms[4] = replace(forms[4], values=(pd.Timestamp("2020-01-01"),))
    reason = engine.TreeEngine.refusal(replace(rows, forms=tuple(forms)))
    assert reason == "column 4 holds values of type Timestamp, which are not texts"


# --- files ----------------------------------------------------------------------------------------------------------


def test_the_fingerprint_sees_what_decides_predictions_and_nothing_that_use_changes(tmp_path):
    machine = fit_machine("two classes").copy()
    before = fg.Model.wrap(machine)
    assert before.fingerprint_partial == ()
    machine.predict_proba(make_rows())
    machine.explain_local(make_rows())
    machine.explain_global()
    joblib.dump(machine, tmp_path / "machine.joblib")
    assert fg.Model.wrap(machine).fingerprint == before.fingerprint
    assert fg.load_model(tmp_path / "machine.joblib", trust=True).fingerprint == before.fingerprint
    for change in ("intercept_", "term_scores_", "bins_"):
        other = machine.copy()
        part = getattr(other, change)[0]
        if change == "intercept_":
            other.intercept_ = other.intercept_ + 1e-9
        elif change == "term_scores_":
            part[3] += 1e-9
        else:
            part[0][0] += 1e-9
        assert fg.Model.wrap(other).fingerprint != before.fingerprint, change


# --- real data ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adult", "credit_g", "heloc", "electricity", "covertype"])
def test_no_certificate_of_500_rows_differs_from_the_black_boxs(name):
    path = data_folder() / f"{name}.parquet"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    table = pd.read_parquet(path).sample(3500 if name != "credit_g" else 1000, random_state=0).reset_index(drop=True)
    X, y = table.iloc[:, :-1], table.iloc[:, -1]
    few = {"interactions": 10} if name == "covertype" else {}  # 54 columns and seven classes
    machine = glassbox.ExplainableBoostingClassifier(outer_bags=2, max_rounds=100, n_jobs=1, random_state=0, **few)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        machine.fit(X[:-500], y[:-500])
    protocol = fg.Protocol.fit(machine, X[:-500])
    own, asked = (fg.audit(machine, X[-500:], protocol, engine=by, lattice=False) for by in ("auto", "blackbox"))
    assert own.engine == "trees"
    assert own.manifest.engine.blackbox_rows == 0
    assert own.to_pandas()["digest"].tolist() == asked.to_pandas()["digest"].tolist()
