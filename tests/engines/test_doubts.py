"""Native engines on rows that hold what training and the first rows did not: what they claim is what the model says.

Odd rows stand at every position of the batch, because engines are compared with the model in every state only on the
first sixteen.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import disagreeing_engine
import numpy as np
import pandas as pd
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier

import fragility as fg
from fragility.base.errors import EngineError
from fragility.engines import choice
from fragility.engines.oracle import CheckedOracle, ModelOracle
from fragility.evidence import States
from fragility.protocol import bind

pytest.importorskip("numba")
POSITIONS = (0, 14, 15, 16, 20, 40)  # of 40 ordinary rows: before the first, among them, behind the last
TINY = float(np.float32(1e-35))  # LightGBM's zero
LARGEST = float(np.finfo(np.float64).max)
NUMBERS = (
    *(np.nan, 0.0, -0.0, 5e-324, -5e-324, 1e-40, -1e-40, 1e-36, -1e-36, 1e-35, -1e-35, TINY, -TINY, 1.1e-35, -1.1e-35),
    *(-0.5, 0.5, 1e12, -1e12, 999999999999.0, 1e15, -1e15, 1e38, 1e39, 1e300, -1e300, LARGEST, -LARGEST),
)
COLUMNS = list("abcde")


class Case(NamedTuple):
    model: Any
    protocol: fg.Protocol
    ordinary: pd.DataFrame  # 40 rows that training did not see
    odd: pd.DataFrame
    engine: str


def numbers(n: int) -> tuple[pd.DataFrame, Any]:
    """Numbers with many zeros and few missing values, and two classes that depend on all of them."""
    rng = np.random.default_rng(3)
    X = pd.DataFrame(rng.normal(size=(n, 5)).round(2), columns=COLUMNS)
    X = X.mask(rng.random(X.shape) < 0.2, 0.0)
    score = (X["a"] >= 0) + X["b"] + X["c"] * X["d"] + 0.7 * X["e"] + rng.normal(scale=0.4, size=n)
    return X, (score > 0.5).to_numpy().astype(int)


def classes(n: int) -> tuple[pd.DataFrame, Any]:
    X, _ = numbers(n)
    return X, np.digitize(X["a"] + X["b"] * X["c"] - X["e"], [-0.7, 0.7])


def lightgbm(**settings: Any) -> Any:
    return pytest.importorskip("lightgbm").LGBMClassifier(n_estimators=20, verbose=-1, n_jobs=1, **settings)


def xgboost(**settings: Any) -> Any:
    return pytest.importorskip("xgboost").XGBClassifier(n_estimators=20, n_jobs=1, **settings)


def catboost(**settings: Any) -> Any:
    library = pytest.importorskip("catboost")
    return library.CatBoostClassifier(
        iterations=20, depth=4, verbose=0, thread_count=1, allow_writing_files=False, **settings
    )


FAMILIES: dict[str, tuple[Any, str]] = {
    "lightgbm": (lightgbm, "trees"),
    "lightgbm zeros missing": (lambda: lightgbm(zero_as_missing=True), "trees"),
    "xgboost": (xgboost, "trees"),
    "catboost": (catboost, "trees"),
    "hist gradient boosting": (lambda: HistGradientBoostingClassifier(max_iter=20, random_state=0), "trees"),
    "gradient boosting": (lambda: GradientBoostingClassifier(n_estimators=20, random_state=0), "trees"),
    "random forest": (lambda: RandomForestClassifier(20, random_state=0), "trees"),
    "extra trees": (lambda: ExtraTreesClassifier(20, random_state=0), "trees"),
    "logistic": (LogisticRegression, "linear"),
    "discriminant": (LinearDiscriminantAnalysis, "linear"),
    "mlp": (lambda: MLPClassifier((8,), max_iter=80, random_state=0), "neural"),
}


def refuses(model: Any, row: pd.DataFrame) -> bool:
    """Whether the model itself refuses a row: then there is nothing to certify."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return not np.isfinite(model.predict_proba(row)).all()
    except Exception:
        return True


def accepted(model: Any, odd: pd.DataFrame) -> pd.DataFrame:
    return odd[[not refuses(model, odd.iloc[[i]]) for i in range(len(odd))]]


@lru_cache
def numeric(family: str, many: bool = False) -> Case:
    X, y = (classes if many else numbers)(700)
    make, engine = FAMILIES[family]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make().fit(X[:600], y[:600])
    ordinary = X[640:680].reset_index(drop=True)
    odd = pd.concat([ordinary.iloc[[i % 7]].assign(**{c: v}) for c in COLUMNS for i, v in enumerate(NUMBERS)])
    return Case(model, fg.Protocol.fit(model, X[:600]), ordinary, accepted(model, odd), engine)


def mixed(case: Case, position: int) -> pd.DataFrame:
    parts = [case.ordinary[:position], case.odd, case.ordinary[position:]]
    return pd.concat(parts, ignore_index=True)


def audited(case: Case, rows: pd.DataFrame, **options: Any) -> fg.Certificates:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fg.audit(case.model, rows, case.protocol, progress=False, **options)


def assert_as_the_model(case: Case, rows: pd.DataFrame, **options: Any) -> fg.Certificates:
    """What an engine claims of rows is what the black box claims, and verifies."""
    told, asked = audited(case, rows, **options), audited(case, rows, engine="blackbox", **options)
    assert told.engine == case.engine and told.manifest.engine.blackbox_rows < len(rows)
    differing = [i for i in range(len(rows)) if told[i].digest != asked[i].digest]
    assert not differing, rows.iloc[differing[:5]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fg.verify(told, case.model, rows, progress=False)
    assert result.complete, str(result)
    return told


# --- parity ---------------------------------------------------------------------------------------------------


@pytest.mark.samples
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_special_values_at_every_position_are_certified_as_the_model_answers(family, position):
    if family == "mlp":
        pytest.importorskip("torch")  # the engine that reads it
    case = numeric(family)
    assert len(case.odd) > 60
    assert_as_the_model(case, mixed(case, position))


@pytest.mark.repeats
@pytest.mark.parametrize("family", ["lightgbm", "xgboost", "catboost", "hist gradient boosting", "logistic", "mlp"])
def test_special_values_of_three_classes(family):
    if family == "mlp":
        pytest.importorskip("torch")
    case = numeric(family, many=True)
    assert_as_the_model(case, mixed(case, 20))


def cities(n: int, names: list[str]) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(5)
    X = pd.DataFrame(rng.normal(size=(n, 2)).round(2), columns=["a", "b"])
    X["city"] = pd.Categorical(rng.choice(names, n), categories=names)
    effect = dict(zip(names, rng.permutation(np.linspace(-2, 2, len(names))), strict=True))
    score = X["a"] - 0.5 * X["b"] + X["city"].map(effect).astype(float) + rng.normal(scale=0.5, size=n)
    return X, (score > 0).to_numpy().astype(int)


CATEGORICAL: dict[str, Any] = {
    "lightgbm": lightgbm,
    "xgboost": lambda: xgboost(enable_categorical=True),
    "hist gradient boosting": lambda: HistGradientBoostingClassifier(
        max_iter=20, categorical_features="from_dtype", random_state=0
    ),
    "catboost": lambda: catboost(one_hot_max_size=100, cat_features=["city"]),
}
ASCII, BEYOND = [f"city{i}" for i in range(10, 30)], [f"niño{i}" for i in range(10, 60)]
APART = ["Köln", "Århus", "Zürich", "niño", "漢字", "Ω", "Paris"]
COINCIDING = ["é", "a", "é1", "b", "c", "d"]  # two of the pieces that XGBoost cuts are equal


@lru_cache
def categorical(family: str, names: tuple[str, ...], unseen: tuple[str, ...]) -> Case:
    X, y = cities(1500, list(names))
    as_given = (
        (lambda frame: frame.assign(city=frame["city"].astype(object))) if family == "catboost" else (lambda f: f)
    )
    model = CATEGORICAL[family]().fit(as_given(X[:1200]), y[:1200])
    protocol = fg.Protocol.fit(model, as_given(X[:1200]))
    X["city"] = X["city"].cat.add_categories(list(unseen))
    kinds = X["city"].cat.categories
    odd = [X.iloc[1300:1308].assign(city=pd.Categorical([value] * 8, kinds)) for value in unseen]
    if family != "catboost":  # it takes no missing category
        odd.append(X.iloc[1310:1314].assign(city=pd.Categorical([None] * 4, kinds)))
    odd = pd.concat([X[:0], *odd])
    return Case(model, protocol, as_given(X[1400:1440]), as_given(odd), "trees")


@pytest.mark.samples
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("family", CATEGORICAL)
def test_unseen_categories_at_every_position_are_certified_as_the_model_answers(family, position):
    """XGBoost takes one for its neighbour in order, CatBoost for no category that it asks for, others for missing."""
    case = categorical(family, tuple(ASCII), ("black", "city1", "city20x"))
    told = assert_as_the_model(case, mixed(case, position))
    assert told.manifest.engine.blackbox_rows == (24 if family == "xgboost" else 0)


@pytest.mark.samples
@pytest.mark.parametrize("names", [BEYOND, APART, COINCIDING])
@pytest.mark.parametrize("family", CATEGORICAL)
def test_categories_beyond_ascii_are_certified_as_the_model_answers(family, names):
    """XGBoost cuts them at wrong places: where two pieces coincide, it cannot tell the categories apart."""
    case = categorical(family, tuple(names), ())
    rows = pd.concat([case.ordinary, case.odd], ignore_index=True) if len(case.odd) else case.ordinary
    told, asked = audited(case, rows), audited(case, rows, engine="blackbox")
    cut = family == "xgboost" and names is not APART
    assert told.engine == ("blackbox" if cut else "trees")
    assert told.table.column("digest") == asked.table.column("digest")
    assert fg.verify(told, case.model, rows, progress=False).complete


def test_a_category_beyond_ascii_that_training_did_not_have_shifts_those_after_it():
    case = categorical("xgboost", tuple(ASCII), ("black",))
    names = ["é", *case.ordinary["city"].cat.categories]
    rows = case.ordinary.assign(city=pd.Categorical(case.ordinary["city"].astype(object), names))
    told = audited(case, rows)
    assert told.engine == "blackbox" and fg.verify(told, case.model, rows, progress=False).complete
    with pytest.raises(EngineError, match="'é', which shifts the categories that XGBoost reads after it"):
        fg.audit(case.model, rows, case.protocol, engine="trees", progress=False)


def codes(n: int) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(1)
    X = pd.DataFrame({"a": rng.normal(size=n).round(2), "k": rng.integers(0, 12, n).astype(float)})
    effect = rng.permutation(np.linspace(-2, 2, 12))
    return X, (X["a"] + effect[X["k"].astype(int)] + rng.normal(scale=0.4, size=n) > 0).to_numpy().astype(int)


CODED: dict[str, Any] = {
    "lightgbm": lambda X, y: lightgbm().fit(X, y, categorical_feature=["k"]),
    "xgboost": lambda X, y: xgboost(feature_types=["q", "c"], enable_categorical=True).fit(X, y),
    "hist gradient boosting": lambda X, y: HistGradientBoostingClassifier(
        max_iter=20, categorical_features=["k"], random_state=0
    ).fit(X, y),
}
CODES = (-0.5, -0.0, 0.5, 3.7, -1.0, -1e-40, 12.0, 31.0, 32.0, 250.0, 2.0**24, 1e12, 1e300, np.nan)


@pytest.mark.samples
@pytest.mark.parametrize("position", [0, 16, 40])
@pytest.mark.parametrize("family", CODED)
def test_codes_that_are_no_codes_are_certified_as_the_model_answers(family, position):
    X, y = codes(900)
    model = CODED[family](X[:800], y[:800])
    protocol = fg.Protocol.fit(model, X[:800])
    odd = pd.concat([X[850:854].assign(k=code) for code in CODES])
    case = Case(model, protocol, X[810:850].reset_index(drop=True), accepted(model, odd), "trees")
    assert len(case.odd) >= 24
    assert_as_the_model(case, mixed(case, position))


# --- models whose answers the trees alone do not give -----------------------------------------------------------


def test_lightgbm_that_stops_early_is_asked_itself():
    X, y = numbers(700)
    model = lightgbm(pred_early_stop=True, pred_early_stop_margin=1.0).fit(X[:600], y[:600])
    protocol = fg.Protocol.fit(model, X[:600])
    told = fg.audit(model, X[600:], protocol, progress=False)
    assert told.engine == "blackbox" and fg.verify(told, model, X[600:], progress=False).complete
    with pytest.raises(EngineError, match=r"stops adding trees to confident rows \(pred_early_stop\)"):
        fg.audit(model, X[600:], protocol, engine="trees", progress=False)
    plain = lightgbm(pred_early_stop=False).fit(X[:600], y[:600])
    assert fg.audit(plain, X[600:], fg.Protocol.fit(plain, X[:600]), progress=False).engine == "trees"


# --- rows handed over -------------------------------------------------------------------------------------------


def outlier_case() -> tuple[Case, pd.DataFrame]:
    case = numeric("logistic")
    rows = case.ordinary.copy()
    rows.loc[[23, 31], "c"] = [999999999999.0, 1e15]
    return case, rows


def test_the_audit_says_which_rows_the_engine_was_not_believed_for():
    case, rows = outlier_case()
    with pytest.warns(
        UserWarning,
        match=r"2 of 40 rows were audited by asking the model instead of the linear engine "
        r"\(first: row 23, it holds a value that the engine may read otherwise than the model\)",
    ):
        told = fg.audit(case.model, rows, case.protocol, progress=False)
    assert told.engine == "linear" and told.manifest.engine.blackbox_rows == 2
    asked = fg.audit(case.model, rows, case.protocol, engine="blackbox", progress=False)
    assert asked.manifest.engine.blackbox_rows == 40
    assert told.manifest.root_digest == asked.manifest.root_digest


@pytest.mark.repeats
@pytest.mark.parametrize("part_rows", [1, 7, 24, 50])
def test_parts_of_any_size_write_the_same_bytes(tmp_path, part_rows):
    case, rows = outlier_case()
    rows.to_parquet(tmp_path / "rows.parquet")
    with pytest.warns(UserWarning, match="2 of 40 rows .* row 23"):
        stored = fg.audit_files(
            *(case.model, tmp_path / "rows.parquet", case.protocol, tmp_path / "a"),
            part_rows=part_rows,
            baselines=False,
        )
    whole = audited(case, rows)
    assert stored.manifest.engine == whole.manifest.engine
    assert stored.manifest.root_digest == whole.manifest.root_digest
    if part_rows == 50:
        whole.save(tmp_path / "b")
        assert {p.name: p.read_bytes() for p in Path(tmp_path / "a").glob("*.*")} == {
            p.name: p.read_bytes() for p in Path(tmp_path / "b").glob("*.*")
        }


@pytest.mark.parametrize("fault", ["margin", "confidence", "states"])
@pytest.mark.parametrize("row", [17, 30, 59])
def test_a_row_that_an_engine_gets_wrong_behind_the_first_is_asked_of_the_model(monkeypatch, fault, row):
    X = np.random.default_rng(0).normal(size=(60, 4))
    model = GaussianNB().fit(X, (X[:, 0] + X[:, 1] > 0).astype(int))
    protocol = fg.Protocol.fit(model, X)
    wrong = disagreeing_engine.DisagreeingEngine
    monkeypatch.setattr(choice, "NATIVE", (wrong,))
    monkeypatch.setattr(choice, "ENGINES", (*choice.ENGINES, "disagreeing"))
    monkeypatch.setattr(disagreeing_engine, "FAULT", fault)
    monkeypatch.setattr(disagreeing_engine, "ROWS", X[row : row + 1])
    asked = fg.audit(model, X, protocol, engine="blackbox")
    with pytest.warns(UserWarning, match=f"1 of 60 rows .* row {row}, the engine contradicts the model's own answer"):
        told = fg.audit(model, X, protocol)
    assert told.engine == "disagreeing" and told.table == asked.table


def test_what_a_model_decides_against_its_own_probabilities_is_refused_whatever_the_engine():
    """The rows are handed over, and the black box refuses them as it would refuse all."""

    class Stubborn(LogisticRegression):
        def predict(self, X):
            labels = super().predict(X)
            labels[np.asarray(X)[:, 0] > 1.5] = 1 - labels[np.asarray(X)[:, 0] > 1.5]
            return labels

    X, y = numbers(300)
    model = Stubborn().fit(X.to_numpy(), y)
    order = np.argsort(X["a"].to_numpy())
    with pytest.raises(fg.ModelError, match="differs from its probabilities"):
        fg.audit(model, X.to_numpy()[order], fg.Protocol.fit(model, X.to_numpy()))


# --- labels, searches and probabilities -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["outlier", "unseen", "tiny"])
def test_prepared_rows_answer_odd_rows_as_the_model_does(kind):
    case = {
        "outlier": lambda: numeric("logistic"),
        "unseen": lambda: categorical("xgboost", tuple(ASCII), ("black", "city1", "city20x")),
        "tiny": lambda: numeric("lightgbm"),
    }[kind]()
    rows = bind(case.model, mixed(case, 20), case.protocol)
    fast, x = choice.choose_oracle(rows), rows.dense()
    assert isinstance(fast, CheckedOracle)
    moved = np.random.default_rng(0).random((len(rows), 4, rows.n_groups)) < 0.5
    states = States.removals(moved)
    np.testing.assert_allclose(
        fast.answer_states(x, states), ModelOracle(rows).answer_states(x, states), rtol=0, atol=1e-9
    )
    np.testing.assert_allclose(fast.predict(x), rows.predict(x), rtol=0, atol=1e-9)
    copies = np.repeat(x[:, None], 2, axis=1)
    copies[:, :, 0] += 0.1
    own = rows.predict(copies.reshape(-1, x.shape[1]))
    np.testing.assert_allclose(fast.predict_copies(x, copies), own, rtol=0, atol=1e-9)
    few = fast.take([21, 3])
    np.testing.assert_allclose(few.predict(few.rows.dense()), rows.predict(x[[21, 3]]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["outlier", "unseen", "tiny"])
def test_labels_of_odd_rows_are_the_model_s(kind):
    case = {
        "outlier": lambda: numeric("logistic"),
        "unseen": lambda: categorical("xgboost", tuple(ASCII), ("black", "city1", "city20x")),
        "tiny": lambda: numeric("lightgbm"),
    }[kind]()
    rows = mixed(case, 20)
    told, asked = (fg.label_brittle(case.model, rows, case.protocol, engine=e) for e in ("auto", "blackbox"))
    np.testing.assert_allclose(told.run.draw_margin, asked.run.draw_margin, rtol=0, atol=1e-6)
    assert np.array_equal(told.brittle, asked.brittle)


@pytest.mark.repeats
@pytest.mark.parametrize("family", ["lightgbm", "logistic", "xgboost"])
def test_lattice_blocks_of_odd_rows_are_the_model_s(family):
    case = categorical(family, tuple(ASCII), ("black", "city1")) if family == "xgboost" else numeric(family)
    few = Case(case.model, case.protocol, case.ordinary[:20], case.odd[::3], case.engine)
    rows = mixed(few, 17)
    told, asked = (audited(few, rows, rates=0.1, engine=engine) for engine in ("auto", "blackbox"))
    assert told.manifest.blocks["lattice"].engine == case.engine
    assert told.table.column("lattice_digest") == asked.table.column("lattice_digest")
    result = fg.verify(told, few.model, rows, progress=False)
    assert result.complete, str(result)
