"""The fingerprint follows what a model computes: not how it was used, saved or loaded, and not its name alone."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import random
import subprocess
import sys
import textwrap
import threading
from collections import defaultdict
from importlib import import_module, invalidate_caches
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import skops.io
from pipelines import SEED, fitted, nominal_names, numeric_names, split
from scipy.stats import loguniform
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, RadiusNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

from fragility.auditing.pipeline import audit
from fragility.base.libraries import family_of
from fragility.models import Model
from fragility.models.descriptions import READ_AT_RUN_TIME
from fragility.models.fingerprint import fingerprint
from fragility.protocol import Protocol
from fragility.verification.verifying import verify


class Holder:
    """A classifier that holds something; whatever it holds is part of it."""

    classes_ = (0, 1)

    def __init__(self, held: Any) -> None:
        self.held = held

    def predict_proba(self, rows):
        return np.full((len(rows), 2), 0.5)


def print_of(held: Any) -> str:
    return Model.wrap(Holder(held)).fingerprint


def partial_of(held: Any) -> tuple[str, ...]:
    """Return what is not seen of a value, beside what the code of ``Holder`` itself may read."""
    return tuple(each for each in Model.wrap(Holder(held)).fingerprint_partial if each != READ_AT_RUN_TIME)


# --- the same model before and after use, saved and loaded ----------------------------------------------------------


class Lookup(TransformerMixin, BaseEstimator):
    """Encodes text by a table kept as pandas objects, which cache what they are asked for."""

    def fit(self, X, y=None):
        self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        self.tables_ = {name: X[name].value_counts(normalize=True) for name in X.columns}
        self.rates_ = pd.DataFrame(self.tables_).fillna(0.0)
        self.types_ = X.astype("category").dtypes
        return self

    def transform(self, X):
        return np.column_stack([self.rates_[name].reindex(X[name]).fillna(0.0).to_numpy() for name in X.columns])

    def get_feature_names_out(self, input_features=None):
        return self.feature_names_in_


def numeric_model(head: Any) -> Any:
    return ColumnTransformer([("n", StandardScaler(), numeric_names(split("credit_g").X_train))]), head


MODELS: dict[str, Any] = {
    "kd tree": lambda: KNeighborsClassifier(algorithm="kd_tree", leaf_size=5),
    "ball tree": lambda: KNeighborsClassifier(algorithm="ball_tree", leaf_size=5),
    "radius": lambda: RadiusNeighborsClassifier(radius=5.0, outlier_label="most_frequent", algorithm="ball_tree"),
    "svc": lambda: SVC(probability=True, random_state=SEED),
    "gaussian process": lambda: GaussianProcessClassifier(random_state=SEED),
    "mlp": lambda: MLPClassifier((8,), max_iter=20, random_state=SEED),
    "mlp with early stopping": lambda: MLPClassifier((8,), max_iter=20, early_stopping=True, random_state=SEED),
    "naive bayes": GaussianNB,
    "voting": lambda: VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())], voting="soft"),
    "stacking": lambda: StackingClassifier([("a", KNeighborsClassifier()), ("b", GaussianNB())], cv=2),
    "grid search": lambda: GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2),
    "random search": lambda: RandomizedSearchCV(
        LogisticRegression(), {"C": loguniform(0.1, 10.0)}, n_iter=2, cv=2, random_state=SEED
    ),
    "cv": lambda: LogisticRegressionCV(Cs=2, cv=2, l1_ratios=(0.0,), use_legacy_attributes=False),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_use_saving_and_loading_leave_no_trace(name: str, tmp_path: Path) -> None:
    data = split("credit_g")
    model = make_pipeline(*numeric_model(MODELS[name]())).fit(data.X_train[:200], data.y_train[:200])
    before = Model.wrap(model)
    assert before.fingerprint_partial == ()
    model.predict(data.X_test[:50])
    model.predict_proba(data.X_test[:70])
    joblib.dump(model, tmp_path / "model.joblib")
    skops.io.dump(model, tmp_path / "model.skops")
    types = skops.io.get_untrusted_types(file=tmp_path / "model.skops")
    others = {
        "used": model,
        "copied": copy.deepcopy(model),
        "pickled": pickle.loads(pickle.dumps(model)),
        "joblib": joblib.load(tmp_path / "model.joblib"),
        "skops": skops.io.load(tmp_path / "model.skops", trusted=types),
    }
    for how, other in others.items():
        assert Model.wrap(other).fingerprint == before.fingerprint, how
        other.predict_proba(data.X_test[:10])
        assert Model.wrap(other).fingerprint == before.fingerprint, f"{how}, then used"


def test_an_audit_of_neighbours_verifies_after_use() -> None:
    data = split("credit_g")
    model = make_pipeline(*numeric_model(KNeighborsClassifier(15))).fit(data.X_train, data.y_train)
    protocol = Protocol.fit(model, data.X_train)
    certs = audit(model, data.X_test[:5], protocol)
    model.predict(data.X_test)
    assert verify(certs, model, data.X_test[:5])


@pytest.mark.filterwarnings("ignore")
def test_a_search_is_the_model_it_found_and_not_the_seconds_it_took() -> None:
    data = split("credit_g")
    names = numeric_names(data.X_train)
    one, two = (
        GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1, 1.0]}, cv=2).fit(data.X_train[names], data.y_train)
        for _ in range(2)
    )
    assert one.refit_time_ != two.refit_time_
    assert Model.wrap(one).fingerprint == Model.wrap(two).fingerprint


def test_tables_are_described_by_their_values() -> None:
    data = split("credit_g")
    names = nominal_names(data.X_train)[:4]
    model = make_pipeline(Lookup(), LogisticRegression()).fit(data.X_train[names], data.y_train)
    before = Model.wrap(model).fingerprint
    model.predict(data.X_test[names])
    assert Model.wrap(model).fingerprint == before
    assert Model.wrap(pickle.loads(pickle.dumps(model))).fingerprint == before
    other = copy.deepcopy(model)
    other[0].rates_.iloc[2, 1] += 1e-12
    assert Model.wrap(other).fingerprint != before


FRAMES = {
    "numbers": pd.DataFrame({"a": [1.0, 2.0, np.nan], "b": [1, 2, 3]}),
    "text": pd.DataFrame({"a": ["x", "y", None]}),
    "categories": pd.DataFrame({"a": pd.Categorical(["x", "y", "y"])}),
    "dates": pd.DataFrame({"a": pd.to_datetime(["2020-01-01", "2020-01-02", None])}),
    "zoned": pd.DataFrame({"a": pd.to_datetime(["2020-01-01", "2020-01-02"], utc=True)}),
    "gaps": pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64")}),
    "intervals": pd.DataFrame({"a": pd.cut(pd.Series([1.0, 2.0, 3.0]), 2)}),
    "periods": pd.DataFrame({"a": pd.period_range("2020-01", periods=3, freq="M")}),
    "two levels": pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([("p", 1), ("q", 2)])),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_pandas_objects_of_every_kind(kind: str) -> None:
    frame = FRAMES[kind].copy()
    for held in (frame, frame["a"], frame["a"].array, frame.index, frame["a"].dtype):
        before = print_of(held)
        _ = frame.iloc[0], frame["a"].isna().sum(), frame["a"].is_unique, frame.index.is_unique, list(frame.index)
        assert print_of(held) == before
        assert print_of(pickle.loads(pickle.dumps(held))) == before
        assert partial_of(held) == ()
    other = frame.iloc[::-1]
    assert len({print_of(frame), print_of(other), print_of(other.reset_index(drop=True))}) == 3
    assert print_of(frame["a"]) != print_of(frame["a"].rename("other"))


def test_the_order_of_categories_counts() -> None:
    values = ["x", "y", "x"]
    one, two = (pd.Series(pd.Categorical(values, categories=order)) for order in (["x", "y"], ["y", "x"]))
    assert print_of(one) != print_of(two)
    assert print_of(one.dtype) != print_of(two.dtype)


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_other_tables_are_described_by_their_values(library: str) -> None:
    module = pytest.importorskip(library)
    make = module.DataFrame if library == "polars" else module.table
    tables = [make({"a": [1, 2, 3], "b": ["x", None, "z"]}) for _ in range(2)]
    other = make({"a": [1, 2, 4], "b": ["x", None, "z"]})
    halves = [tables[0][:1], tables[0][1:]] if library == "polars" else [tables[0].slice(0, 1), tables[0].slice(1)]
    joined = module.concat(halves, rechunk=False) if library == "polars" else module.concat_tables(halves)
    assert print_of(tables[0]) == print_of(tables[1]) == print_of(joined) != print_of(other)
    assert partial_of(tables[0]) == ()


class Lazy:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @functools.cached_property
    def table(self) -> list[float]:
        return [self.scale * i for i in range(3)]


def test_cached_properties_random_states_locks_and_loggers_change_nothing() -> None:
    import logging

    held = SimpleNamespace(
        lazy=Lazy(2.0), random=np.random.default_rng(1), lock=threading.Lock(), log=logging.getLogger("a")
    )
    before = print_of(held)
    assert (
        held.lazy.table
        and held.random.normal() is not None
        and held.lock.acquire()
        and held.log.isEnabledFor(10) is not None
    )
    assert print_of(held) == before and partial_of(held) == ("the state of a Generator", "what Lazy.table keeps")
    assert print_of(Lazy(2.0)) != print_of(Lazy(3.0))


# --- models that pose as others ---------------------------------------------------------------------------------------


class Posing:
    """A classifier of one number, which says of itself what it likes."""

    classes_ = np.array([0, 1])

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def fingerprint(self) -> str:
        return "sha256:" + "0" * 64

    def predict_proba(self, X):
        p = np.full(len(X), self.rate)
        return np.column_stack([1 - p, p])


def test_a_model_s_own_word_for_what_it_is_does_not_count() -> None:
    assert print_of(Posing(0.2)) != print_of(Posing(0.8))


def test_what_a_cached_property_keeps_is_named() -> None:
    """It comes with use, so it cannot count; it may have been planted, so it is not passed over in silence."""
    plain, used, planted = Lazy(2.0), Lazy(2.0), Lazy(2.0)
    assert used.table == [0.0, 2.0, 4.0]
    vars(planted)["table"] = [0.0, 9.0, 9.0]
    assert print_of(used) == print_of(plain) == print_of(planted)
    assert partial_of(used) == partial_of(plain) == partial_of(planted) == ("what Lazy.table keeps",)


@pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng, random.Random])
def test_generators_of_random_numbers_are_named_where_they_may_decide(make) -> None:
    """A model may copy the state and predict by it, the same each time: no probe would see that."""
    model, other = SimpleNamespace(draws=make(1)), SimpleNamespace(draws=make(2))
    assert print_of(model) == print_of(other)
    assert partial_of(model) == partial_of(other) == (f"the state of a {type(model.draws).__name__}",)


def test_generators_of_library_estimators_are_left_from_training() -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    for model in (GradientBoostingClassifier, HistGradientBoostingClassifier):
        fitted_model = model(random_state=np.random.RandomState(0)).fit(X, y)
        assert partial_of(fitted_model) == ()


def test_a_class_that_says_it_is_scikit_learn_s_is_looked_into() -> None:
    def posing(sign: int) -> type:
        class LogisticRegression(Posing):
            def predict_proba(self, X):
                return super().predict_proba(X)[:, ::sign]

        LogisticRegression.__module__, LogisticRegression.__qualname__ = (
            "sklearn.linear_model._logistic",
            "LogisticRegression",
        )
        return LogisticRegression

    one, other = posing(1)(0.3), posing(-1)(0.3)
    assert print_of(one) != print_of(other)
    assert family_of(one) == "own.LogisticRegression" != family_of(LogisticRegression())
    assert Model.wrap(one).link == "predict_proba"


def test_a_function_that_says_it_is_a_library_s_is_looked_into() -> None:
    def posing(factor: int):
        space = {"__name__": "sklearn.base"}
        exec(f"def f(x):\n def g(x): return {factor} * x\n return g(x)", space)
        return space["f"]

    assert print_of(posing(1)) != print_of(posing(2))


def test_boosters_with_methods_of_their_own_are_others() -> None:
    xgboost = pytest.importorskip("xgboost")
    X, y = np.random.default_rng(0).normal(size=(80, 3)), np.arange(80) % 2
    booster = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(X, y), 2)
    plain = print_of(booster)
    assert print_of(booster.copy()) == plain

    class Booster(xgboost.Booster):
        def predict(self, data, **options):
            return 1.0 - super().predict(data, **options)

    derived = Booster(model_file=None)
    derived.load_model(booster.save_raw())
    assert print_of(derived) != plain
    Booster.__module__, Booster.__qualname__ = "xgboost.core", "Booster"
    assert print_of(derived) != plain
    booster.predict = lambda data, **options: np.zeros(len(X))
    assert print_of(booster) != plain


def test_vectorised_and_cached_functions_keep_their_fingerprint_when_called() -> None:
    vectorised = np.vectorize(lambda v: v + 1, otypes=[float])
    cached = functools.lru_cache(lambda v: v + 1)
    before = print_of([vectorised, cached])
    assert vectorised([1.0, 2.0]).tolist() == [2.0, 3.0] and cached(1) == 2
    assert print_of([vectorised, cached]) == before
    assert print_of(cached) != print_of(functools.lru_cache(lambda v: v + 2))


@pytest.mark.slow
def test_fingerprint_of_a_users_own_classes_is_the_same_in_another_process(tmp_path: Path) -> None:
    """Sets, functions and classes included: no hash seed, memory address or order of use may enter."""
    (tmp_path / "own_steps.py").write_text(
        textwrap.dedent("""
            import numpy as np
            CODES = {"a": 1, "b": 2}
            WORDS = {"north", "south", "east", "west"}
            class Score:
                classes_ = (0, 1)
                def __init__(self): self.areas, self.odd = set(WORDS), frozenset([(1, "x"), (2, "y"), (3, "z")])
                def predict_proba(self, X): return np.full((len(X), 2), CODES["a"] / 2)
                def scaled(self, X): return self.predict_proba(X) if X in WORDS else None
        """)
    )
    script = "import own_steps; from fragility.models import Model; print(Model.wrap(own_steps.Score()).fingerprint)"
    found = set()
    for seed in ("1", "2", "3"):
        paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1


# --- models that differ ---------------------------------------------------------------------------------------------


def made(source: str, name: str = "f", **names: Any) -> Any:
    """Return a function of a module of its own, as a user's script or notebook would hold it."""
    space: dict[str, Any] = {"__name__": "__main__", "np": np, **names}
    exec(textwrap.dedent(source), space)
    return space[name]


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "data in a global": tuple(made("def f(x): return x * RATE", RATE=rate) for rate in (1.0, 2.0)),
    "a table in a global": tuple(made("def f(x): return CODES[x]", CODES={"a": code}) for code in (1, 2)),
    "a function in a global": tuple(
        made(f"def g(x): return x + {n}\ndef h(x): return g(x)\ndef f(x): return h(x)") for n in (1, 2)
    ),
    "a global of an inner function": tuple(
        made("def f(x): return [(lambda v: v * RATE)(v) for v in x]", RATE=rate) for rate in (1.0, 2.0)
    ),
    "keyword-only defaults": tuple(made(f"def f(x, *, rate={rate}): return x * rate") for rate in (1.0, 2.0)),
    "defaults": tuple(made(f"def f(x, rate={rate}): return x * rate") for rate in (1.0, 2.0)),
    "attributes of a function": tuple(made(f"def f(x): return x * f.rate\nf.rate = {rate}") for rate in (1.0, 2.0)),
    "a closure": tuple(made(f"def g(a): return lambda x: x + a\nf = g({n})") for n in (1, 2)),
    "the order of arguments": tuple(made(f"def f({a}, {b}): return 1 - 2 * 0") for a, b in (("x", "y"), ("y", "x"))),
    "what an error is caught for": tuple(
        made(f"def f(x):\n try: return x[0]\n except {e}: return 0") for e in ("KeyError", "IndexError")
    ),
    "the arguments of a partial": tuple(functools.partial(max, key) for key in (1, 2)),
    "the keywords of a partial": tuple(functools.partial(sorted, key=key) for key in (len, abs)),
    "the object of a bound method": tuple(Lazy(scale).__init__ for scale in (1.0, 2.0)),
    "the object of a native method": ({"a": 1}.get, {"a": 2}.get),
    "a native function": (np.log1p, np.sqrt),
    "a key named silent": ({"silent": 1.0}, {"silent": 2.0}),
    "a key named memory": ({"memory": 1.0, "verbose": 3}, {"memory": 2.0, "verbose": 3}),
    "a key named verbose in an estimator's dictionary": tuple(
        FunctionTransformer(kw_args={"verbose": n}) for n in (1, 2)
    ),
    "the order of a dictionary": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "the type of a key": ({1: "a"}, {"1": "a"}),
    "a default factory": (defaultdict(int), defaultdict(list)),
    "methods of a class": tuple(made(f"class f:\n def score(self, x): return x + {n}") for n in (1, 2)),
    "data of a class": tuple(made(f"class f:\n rate = {n}") for n in (1, 2)),
    "methods of an object's class": tuple(made(f"class f:\n def score(self, x): return x + {n}")() for n in (1, 2)),
    "a property": tuple(made(f"class f:\n @property\n def rate(self): return {n}")() for n in (1, 2)),
    "an inherited method": tuple(made(f"class g:\n def score(self): return {n}\nclass f(g): pass")() for n in (1, 2)),
    "a flag and a number": (True, 1),
    "a number and a text": (1, "1"),
    "where a list ends": ([[1], 2], [[1, 2]]),
    "the value of a member of an enumeration": tuple(
        made(f"import enum\nclass Kind(enum.Enum):\n A = {n}\nf = Kind.A") for n in (1, 2)
    ),
    "a method of an enumeration": tuple(
        made(f"import enum\nclass Kind(enum.Enum):\n A = 1\n def rate(self): return {n}\nf = Kind.A") for n in (1, 2)
    ),
    "a matrix and an array": (np.array([[1.0, 2.0]]), np.matrix([[1.0, 2.0]])),
    "a sparse matrix and a sparse array": (sp.csr_matrix(np.eye(2)), sp.csr_array(np.eye(2))),
    "rows and columns of a sparse matrix": (sp.csr_matrix(np.eye(2)), sp.csc_matrix(np.eye(2))),
    "attributes of an array": tuple(
        made(f"class Own(np.ndarray): pass\nf = np.zeros(2).view(Own)\nf.rate = {n}") for n in (1, 2)
    ),
    "methods of an array": tuple(
        made(f"class Own(np.ndarray):\n def rate(self): return {n}\nf = np.zeros(2).view(Own)") for n in (1, 2)
    ),
    "methods of a table": tuple(
        made(f"import pandas as pd\nclass Own(pd.DataFrame):\n def rate(self): return {n}\nf = Own()") for n in (1, 2)
    ),
    "the unit of a date": (np.datetime64(50, "Y"), np.datetime64(50, "D")),
    "masked values": (np.ma.array([1.0, 2.0], mask=[0, 1]), np.ma.array([1.0, 2.0], mask=[0, 0])),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_fingerprint_sees(what: str) -> None:
    one, two = DIFFERENT[what]
    assert print_of(one) != print_of(two)
    assert print_of(one) == print_of(one)


class Slotted:
    __slots__ = ("__dict__", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.other = "the same"

    def __call__(self, rows):
        return np.full((len(rows), 2), self.rate)


def test_a_callable_with_slots_is_more_than_its_dictionary() -> None:
    one, two = (Model.wrap(Slotted(rate), classes=[0, 1]) for rate in (0.5, 0.25))
    assert one.fingerprint != two.fingerprint
    assert one.fingerprint_partial == (READ_AT_RUN_TIME,)


def test_values_and_functions_of_a_users_own_module_count(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own_settings.py").write_text("RATE = 2.0\ndef scale(x): return x * RATE\nUNUSED = [1]\n")
    monkeypatch.syspath_prepend(str(folder))
    invalidate_caches()
    settings = import_module("own_settings")
    by_value = made("def f(x): return x * own.RATE", own=settings)
    by_call = made("def f(x): return own.scale(x)", own=settings)
    before = [print_of(by_value), print_of(by_call)]
    monkeypatch.setattr(settings, "UNUSED", [2])
    assert [print_of(by_value), print_of(by_call)] == before
    monkeypatch.setattr(settings, "RATE", 3.0)
    assert all(new != old for new, old in zip([print_of(by_value), print_of(by_call)], before, strict=True))
    assert partial_of(by_value) == ()
    assert partial_of(made("def f(x): return vars(own)", own=settings)) == (
        "the module own_settings, which is used as a whole",
    )


def test_a_function_over_a_model_is_that_model() -> None:
    one, two = (fitted("credit_g", family, "transformed").model for family in ("logistic", "random_forest"))
    source = "def f(rows): return model.predict_proba(rows)"
    wrapped = [Model.wrap(made(source, model=model), classes=["bad", "good"]) for model in (one, two, one)]
    assert wrapped[0].fingerprint == wrapped[2].fingerprint != wrapped[1].fingerprint
    assert wrapped[0].fingerprint_partial == (READ_AT_RUN_TIME,)


RUNS = {
    "an import": "def f(x):\n import own_rates\n return x * own_rates.RATE",
    "a file": "def f(x): return x * float(open('rate').read())",
    "the environment": "import os\ndef f(x): return x * float(os.environ['RATE'])",
    "a service": "from urllib.request import urlopen\ndef f(x): return urlopen('http://127.0.0.1').read()",
    "a service in a method": "class f:\n def score(self, x): return __import__('urllib.request').urlopen(x)",
}


@pytest.mark.parametrize("what", RUNS)
def test_what_a_function_reads_as_it_runs_is_named_as_unseen(what: str) -> None:
    held = made(RUNS[what])
    model = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    assert Model.wrap(model).fingerprint_partial == ()
    model.held = held
    assert Model.wrap(model).fingerprint_partial == (READ_AT_RUN_TIME,)


def test_library_code_in_a_pipeline_is_not_said_to_read_anything() -> None:
    model = FunctionTransformer(np.log1p)
    assert fingerprint([model, functools.partial(np.clip, a_min=0)]).partial == ()


def test_where_a_function_is_defined_does_not_count() -> None:
    source = "def f(x): return x + 1\n"
    assert print_of(made(source)) == print_of(made("\n\n# moved\n" + source, __file__="elsewhere"))
    assert print_of(made("class f:\n def g(self): return 1")) == print_of(made("class f:\n\n  def g(self): return 1"))


def test_torch_modules_by_weights_code_attributes_and_hooks() -> None:
    torch = pytest.importorskip("torch")
    from torch import nn

    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            torch.manual_seed(SEED)
            self.inner = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
            self.scale = scale
            self.register_buffer("shift", torch.zeros(2), persistent=False)

        def forward(self, x):
            return self.inner(x) * self.scale + self.shift

    def identity(module: Any) -> str:
        return Model.wrap(module, classes=[0, 1], output="logits").fingerprint

    base = Scaled(1.0)
    seen = [identity(base)]
    assert identity(copy.deepcopy(base)) == identity(base.eval()) == identity(Scaled(1.0).train()) == seen[0]
    base(torch.zeros(1, 3)).sum().backward()
    assert identity(base) == seen[0]
    seen.append(identity(Scaled(2.0)))
    shifted = Scaled(1.0)
    shifted.shift[0] = 1.0
    seen.append(identity(shifted))
    hooked = Scaled(1.0)
    hooked.register_forward_hook(lambda module, args, out: -out)
    seen.append(identity(hooked))
    seen.append(identity(Scaled(1.0).to(torch.bfloat16)))
    assert len(set(seen)) == len(seen)


# --- shape: depth, cycles, sharing ----------------------------------------------------------------------------------


class Node:
    def __init__(self, value: Any, after: Any = None) -> None:
        self.value, self.after = value, after


def chain(n: int, last: Any) -> Node:
    node = Node(last)
    for i in range(n):
        node = Node(i, node)
    return node


@pytest.mark.parametrize("length", [30, 70, 5000])
def test_the_end_of_a_long_chain_counts(length: int) -> None:
    assert print_of(chain(length, "a")) == print_of(chain(length, "a")) != print_of(chain(length, "b"))
    nested = [functools.reduce(lambda inner, _: [inner], range(length), end) for end in ("a", "b")]
    assert print_of(nested[0]) != print_of(nested[1])


def ring(*values: Any, back_to: int = 0) -> Node:
    nodes = [Node(value) for value in values]
    for one, after in pairwise(nodes):
        one.after = after
    nodes[-1].after = nodes[back_to]
    return nodes[0]


def test_cycles_differ_by_where_they_lead() -> None:
    rings = [ring(1), ring(1, 1), ring(1, 1, 1), ring(1, 1, back_to=1), ring(1, 1, 1, back_to=1), ring(1, 1, 2)]
    assert len({print_of(each) for each in rings}) == len(rings)
    for each in rings:
        assert print_of(copy.deepcopy(each)) == print_of(each)
        assert print_of(pickle.loads(pickle.dumps(each))) == print_of(each)


def test_a_cycle_is_the_same_wherever_it_hangs() -> None:
    """Met the second time, it is known; that must not be written differently from a copy of it."""
    one = ring("a", "b")
    assert print_of([one, one]) == print_of([ring("a", "b"), ring("a", "b")])
    assert fingerprint([[["deep", one]]]) == fingerprint([[["deep", ring("a", "b")]]])


def test_equal_parts_and_shared_parts_are_the_same_model() -> None:
    part = {"weights": [1.0, 2.0]}
    assert print_of([part, part]) == print_of([part, copy.deepcopy(part)])


def test_sharing_costs_no_more_than_its_parts() -> None:
    held: Any = ["end"]
    for _ in range(200):
        held = [held, held]  # as a tree, 2**200 leaves
    assert print_of(held) == print_of(copy.deepcopy(held))


def test_functions_that_call_each_other() -> None:
    source = "\n".join(f"def f{i}(x): return {' or '.join(f'f{j}(x)' for j in range(12))} or {i}" for i in range(12))
    one, two = (made(text, "f0") for text in (source, source.replace("or 7", "or 8")))
    assert print_of(one) == print_of(made(source, "f0")) != print_of(two)


def test_notes_in_a_booster_do_not_count_but_its_best_iteration_does() -> None:
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(0)
    rows = xgboost.DMatrix(rng.normal(size=(60, 2)), rng.integers(0, 2, 60), feature_names=['a "attributes":', "b"])
    booster = xgboost.train({"objective": "binary:logistic", "max_depth": 2}, rows, 4)
    before = print_of(booster)
    booster.set_attr(note='{"attributes": "of "its" own}')
    assert print_of(booster) == before
    booster.set_attr(best_iteration="2")
    with_best = print_of(booster)
    booster.set_attr(best_iteration="1")
    assert len({before, with_best, print_of(booster)}) == 3
    again = xgboost.Booster()
    again.load_model(booster.save_raw("ubj"))
    assert print_of(again) == print_of(booster)


# --- what cannot be seen is said ------------------------------------------------------------------------------------


def test_models_of_every_family_are_seen_whole() -> None:
    for family in ("logistic", "random_forest", "xgboost", "lightgbm", "catboost", "mlp"):
        assert Model.wrap(fitted("credit_g", family, "transformed").model).fingerprint_partial == (), family


def test_what_cannot_be_looked_into_is_named(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as file:
        assert partial_of(file) == ("an object of type TextIOWrapper",)
        before = print_of(file)
        file.write("more")
        assert print_of(file) == before
    assert partial_of(np.frompyfunc(lambda v: v, 1, 1)) == ("the native function <lambda> (vectorized)",)
    assert partial_of(made("def f(x): return x * rate")) == ("'rate', which the function f reads but nothing defines",)
    assert partial_of(iter(range(0)) and (n for n in [1])) == ("an object of type generator",)
    assert partial_of(memoryview(b"abc")) == ("an object of type builtins.memoryview, which shows no state",)


COUNTERS = {
    "a global": "n = 0\ndef f(x):\n global n\n n += 1\n return x",
    "a closure": "def g():\n n = 0\n def f(x):\n  nonlocal n\n  n += 1\n  return x\n return f\nf = g()",
    "an item of a global": "n = {}\ndef f(x):\n n[x if x else 'none'] = x\n return x",
    "a sum in a global": "n = {'calls': 0}\ndef f(x):\n n['calls'] += 1\n return x",
    "a list": "n = []\ndef f(x):\n n.append(x)\n return x",
    "an attribute": "class State: calls = 0\nn = State()\ndef f(x):\n n.calls += 1\n return x",
    "an attribute of an attribute": "class State: seen = [0]\nn = State()\ndef f(x):\n n.seen[0] = x\n return x",
    "an inner function": "n = []\ndef f(x):\n def note(v): n.append(v)\n note(x)\n return x",
}


@pytest.mark.parametrize("where", COUNTERS)
def test_what_a_function_keeps_of_its_calls_is_part_of_it(where: str) -> None:
    """It may decide the next answer; who wants a lasting identity counts elsewhere, or caches by ``lru_cache``."""
    function = made(COUNTERS[where])
    before = print_of(function)
    assert print_of(function) == before
    assert function("x") == "x" and function("y") == "y"
    assert print_of(function) != before
    assert partial_of(function) == ()
