"""Budgets whatever the value: what a twin that asks the model for every combination of values says."""

import functools
from itertools import product

import numpy as np
import pandas as pd
import pytest
from naive_any_value import any_value_budget, change_rows, flips, is_safe
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import fragility as fg
from fragility.protocol import bind
from fragility.questions.any_value import deciding
from fragility.questions.any_value.budgets import budgets_of_rows

xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")
catboost = pytest.importorskip("catboost")
glassbox = pytest.importorskip("interpret.glassbox")

RESOLUTION = 1e-6
LGB = {"verbose": -1, "n_jobs": 1, "random_state": 0, "min_child_samples": 5}


def make_table(classes: int, missing: bool) -> tuple[pd.DataFrame, np.ndarray]:
    """Small whole numbers and categories, so that every combination of values can be tried."""
    chance, n = np.random.default_rng(7), 600
    X = pd.DataFrame(
        {
            "a": chance.integers(0, 9, n),
            "b": chance.integers(-3, 6, n),
            "c": chance.integers(0, 5, n),
            "d": chance.choice(["low", "mid", "high", "top"], n),
            "e": chance.choice(["x", "y", "z"], n),
        }
    )
    odd = (X["d"] == "mid") * 3.0 - (X["d"] == "top") * 2.0 + (X["e"] == "y") * X["c"]
    score = X["a"] * 1.0 + (X["b"] ** 2) / 3 - X["c"] * (X["a"] > 4) + odd + chance.normal(size=n)
    y = pd.qcut(score, classes, labels=False).to_numpy()
    if missing:
        X["b"] = X["b"].astype(float).where(chance.random(n) > 0.15)
        X["d"] = X["d"].where(chance.random(n) > 0.1)
    return X, y


def in_pipeline(head, encoder, missing):
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()) if missing else StandardScaler()
    names = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder) if missing else encoder
    return make_pipeline(make_column_transformer((numbers, ["a", "b", "c"]), (names, ["d", "e"])), head)


def with_categories(X):
    return X.assign(**{name: X[name].astype("category") for name in ("d", "e")})


HEADS = {
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=20, num_leaves=8, **LGB),
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=20, max_depth=3, n_jobs=1),
    "catboost": lambda: catboost.CatBoostClassifier(
        iterations=20, depth=3, verbose=0, thread_count=1, allow_writing_files=False, random_seed=0
    ),
    "hist": lambda: HistGradientBoostingClassifier(max_iter=15, max_leaf_nodes=8, random_state=0),
    "gradient boosting": lambda: GradientBoostingClassifier(n_estimators=15, random_state=0),
    "random forest": lambda: RandomForestClassifier(15, random_state=0),
    "extra trees": lambda: ExtraTreesClassifier(15, max_depth=6, random_state=0),
    "tree": lambda: DecisionTreeClassifier(max_depth=6, random_state=0),
    "explainable": lambda: glassbox.ExplainableBoostingClassifier(
        interactions=2, outer_bags=2, max_rounds=30, n_jobs=1, random_state=0
    ),
    "logistic": lambda: LogisticRegression(C=0.3),
    "calibrated": lambda: CalibratedClassifierCV(
        RandomForestClassifier(10, max_depth=5, random_state=0), ensemble=False
    ),
}


@functools.cache
def fitted(head, encoder="one-hot", classes=2, missing=False):
    X, y = make_table(classes, missing)
    own = OneHotEncoder(handle_unknown="ignore") if encoder == "one-hot" else OrdinalEncoder()
    if encoder == "native":
        X = with_categories(X)
        made = NATIVE[head]()
    else:
        made = in_pipeline(HEADS[head](), own, missing)
    return made.fit(X[:450], y[:450]), X[:450], X[450:].reset_index(drop=True)


NATIVE = {
    "lightgbm": lambda: lightgbm.LGBMClassifier(
        n_estimators=20, num_leaves=8, cat_smooth=1, min_data_per_group=5, **LGB
    ),
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=20, max_depth=3, n_jobs=1, enable_categorical=True),
    "hist": lambda: HistGradientBoostingClassifier(
        max_iter=15, max_leaf_nodes=8, random_state=0, categorical_features="from_dtype"
    ),
    "catboost": lambda: catboost.CatBoostClassifier(
        iterations=20,
        depth=3,
        verbose=0,
        thread_count=1,
        allow_writing_files=False,
        random_seed=0,
        cat_features=["d", "e"],
        one_hot_max_size=10,
    ),
}


def list_domains(X_train):
    found = {}
    for name in X_train:
        known = X_train[name].dropna()
        if name in ("d", "e"):
            found[name] = sorted(known.astype(str).unique())
        else:
            found[name] = list(range(int(known.min()), int(known.max()) + 1))
        if X_train[name].isna().any():
            found[name] = [*found[name], None]
    return found


def compare(model, X_train, X, space, max_size=2, most=8, exact=True, **settings):
    protocol = fg.Protocol.fit(model, X_train, space=space, **settings)
    certain = np.argsort(-model.predict_proba(X).max(axis=1), kind="stable")[: most // 2]  # half, which hold longest
    X = X.iloc[[*certain, *range(most // 2)]].reset_index(drop=True)
    found = fg.find_any_value_budgets(model, X, protocol, max_size=max_size, progress=False)
    domains, sizes = list_domains(X_train), set()
    classes = list(model.classes_)
    for i in range(len(X)):
        original = classes.index(found.predicted[i])
        size, count, alone = any_value_budget(
            model.predict_proba, X, i, domains, max_size, original=original, resolution=RESOLUTION
        )
        assert found.budget[i] == size, (i, found.state(i), size)
        if exact:
            assert found.method[i] == "read"
            assert found.proved[i] == min(size - 1, max_size)
            assert found.count[i] == count
            assert {name: bool(own) for (name, _), own in zip(found.units, found.alone[i], strict=True)} == alone
        if found.witnesses[i] is not None:
            witness = found.witness(i)
            assert len(witness.values) == size
            p = model.predict_proba(change_rows(X, i, [witness.values]))
            assert flips(p, original, RESOLUTION)[0] and witness.predicted == classes[int(p[0].argmax())]
        sizes.add(size)
    return found, sizes


@pytest.mark.parametrize("encoder", ["one-hot", "ordinal"])
@pytest.mark.parametrize("head", list(HEADS))
def test_every_pair_of_values_was_decided(head, encoder):
    sizes = compare(*fitted(head, encoder), "transformed")[1]
    assert len(sizes) > 1 or head in ("tree", "logistic", "explainable")  # the comparison is about something


@pytest.mark.parametrize("head", ["lightgbm", "calibrated", "logistic"])
def test_the_raw_space_gives_the_same(head):
    model, X_train, X = fitted(head, missing=True)
    raw, transformed = (
        fg.find_any_value_budgets(model, X[:30], fg.Protocol.fit(model, X_train, space=space), progress=False)
        for space in ("raw", "transformed")
    )
    assert raw.to_dict()["rows"] == transformed.to_dict()["rows"]
    compare(model, X_train, X, "raw", most=3)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("head", list(NATIVE))
def test_categories_that_a_model_reads_itself_and_missing_values(head, missing):
    if head == "catboost" and missing:
        pytest.skip("CatBoost refuses missing categories")
    compare(*fitted(head, "native", missing=missing), "raw")


@pytest.mark.parametrize("head", ["lightgbm", "random forest", "logistic", "xgboost"])
def test_missing_values_that_a_pipeline_fills(head):
    compare(*fitted(head, missing=True), "transformed")


@pytest.mark.parametrize("head", ["lightgbm", "xgboost", "random forest", "logistic", "catboost", "hist"])
def test_several_classes(head):
    compare(*fitted(head, classes=4), "transformed")


@pytest.mark.parametrize("head", ["lightgbm", "random forest", "logistic"])
def test_three_fields(head):
    model, X_train, X = fitted(head)
    compare(model, X_train, X, "transformed", max_size=3, most=4)


@pytest.mark.parametrize("head", ["lightgbm", "random forest", "logistic"])
def test_safe_sets(head):
    model, X_train, X = fitted(head, missing=True)
    X, domains = X[:15], list_domains(X_train)
    protocol = fg.Protocol.fit(model, X_train)
    sets = {"numbers": ["a", "b"], "names": ["d", "e"], "three": ["b", "c", "d"]}
    found = fg.find_safe_sets(model, X, protocol, sets, progress=False)
    seen = set()
    for i in range(len(X)):
        original = int(model.predict_proba(X[i : i + 1])[0].argmax())
        for s, fields in enumerate(sets.values()):
            expected = is_safe(model.predict_proba, X, i, domains, fields, original=original)
            assert found.safe[i, s] == expected
            assert (found.witnesses[i][s] is None) == expected
            seen.add(expected)
        assert is_safe(model.predict_proba, X, i, domains, found.largest[i], original=original)
    assert seen == {True, False}


@pytest.mark.parametrize(("head", "classes"), [("lightgbm", 2), ("xgboost", 4), ("random forest", 3), ("catboost", 2)])
def test_effects_and_grids_say_the_same(head, classes):
    """An audit adds up effects in one walk per tree; a verifier decides set by set."""
    model, X_train, X = fitted(head, "ordinal", classes=classes)
    protocol = fg.Protocol.fit(model, X_train)
    rows = bind(model, X, protocol)
    effects, grids = (budgets_of_rows(rows, protocol, by_sets=by_sets).to_dict() for by_sets in (False, True))
    assert effects == grids and len(effects["rows"]) == len(X)


# --- domains ---------------------------------------------------------------------------------------------------------


def test_declared_domains_and_immutable_fields_bind():
    model, X_train, X = fitted("lightgbm")
    X = X[:8]
    protocol = fg.Protocol.fit(model, X_train, domain={"a": (2, 4), "d": ["low", "top"]}, immutable=["e"])
    found = fg.find_any_value_budgets(model, X, protocol, progress=False)
    assert found.kept == ("e",) and [name for name, _ in found.units] == ["a", "b", "c", "d"]
    domains = list_domains(X_train) | {"a": [2, 3, 4], "d": ["low", "top"]}
    del domains["e"]
    for i in range(len(X)):
        size, count, alone = any_value_budget(
            model.predict_proba, X, i, domains, 2, original=list(model.classes_).index(found.predicted[i])
        )
        assert (found.budget[i], found.count[i]) == (size, count)
        assert {name: bool(own) for (name, _), own in zip(found.units, found.alone[i], strict=True)} == alone


def test_a_group_of_several_fields_is_one_unit():
    model, X_train, X = fitted("lightgbm")
    X, domains = X[:8], list_domains(X_train)
    protocol = fg.Protocol.fit(model, X_train, groups={"first": ["a", "b"], "second": ["c", "d", "e"]}, space="raw")
    found = fg.find_any_value_budgets(model, X, protocol, progress=False)
    assert [name for name, _ in found.units] == ["first", "second"]
    for i in range(len(X)):
        original = list(model.classes_).index(found.predicted[i])
        holds = [is_safe(model.predict_proba, X, i, domains, fields, original=original) for _, fields in found.units]
        assert found.alone[i].tolist() == [int(not own) for own in holds]
        assert found.budget[i] == (1 if not all(holds) else 2) or found.proved[i] == 2


def test_a_row_is_decided_by_itself():
    model, X_train, X = fitted("xgboost", missing=True)
    protocol = fg.Protocol.fit(model, X_train)
    whole = fg.find_any_value_budgets(model, X[:20], protocol, progress=False).to_dict()["rows"]
    for i in (0, 7, 19):
        alone = fg.find_any_value_budgets(model, X[i : i + 1], protocol, ids=[str(i)], progress=False)
        assert alone.to_dict()["rows"] == [whole[i]]


def test_values_beyond_the_domain_may_only_be_kept():
    model, X_train, X = fitted("random forest")
    X = X[:6].assign(a=[-50, 40, 3, 99, 12, -1], d=["low", "high", "top", "mid", "low", "low"])
    protocol, domains = fg.Protocol.fit(model, X_train), list_domains(X_train)
    found = fg.find_any_value_budgets(model, X, protocol, progress=False)
    safe = fg.find_safe_sets(model, X, protocol, {"both": ["a", "d"]}, largest=False, progress=False)
    for i in range(len(X)):
        original = list(model.classes_).index(found.predicted[i])
        expected = any_value_budget(model.predict_proba, X, i, domains, 2, original=original)
        assert (found.budget[i], found.count[i]) == expected[:2]
        assert safe.safe[i, 0] == is_safe(model.predict_proba, X, i, domains, ["a", "d"], original=original)


# --- never a wrong "cannot" ------------------------------------------------------------------------------------------


@functools.cache
def decimals(head, classes=2):
    chance = np.random.default_rng(5)
    X = pd.DataFrame(chance.normal(size=(500, 4)) * [1.0, 30.0, 0.01, 5e4], columns=list("abcd"))
    score = X["a"] - (X["b"] / 30) ** 2 + np.sin(X["c"] * 200) + X["d"] / 5e4 * (X["a"] > 0)
    y = pd.qcut(score + chance.normal(size=500) / 3, classes, labels=False).to_numpy()
    made = HEADS[head]()
    model = make_pipeline(StandardScaler(), made) if head == "logistic" else made
    return model.fit(X, y), X


def list_thresholds(model):
    """The thresholds of a booster or forest, by column, as its library tells them."""
    if hasattr(model, "booster_"):
        table = model.booster_.trees_to_dataframe().dropna(subset=["threshold"])
        return {name: part["threshold"].to_numpy(float) for name, part in table.groupby("split_feature")}
    if hasattr(model, "get_booster"):
        table = model.get_booster().trees_to_dataframe().dropna(subset=["Split"])
        return {name: part["Split"].to_numpy(float) for name, part in table.groupby("Feature")}
    trees = [own.tree_ for own in getattr(model, "estimators_", [])]
    return {
        name: np.concatenate([tree.threshold[tree.feature == j] for tree in trees])
        for j, name in enumerate("abcd")
        if trees
    }


@pytest.mark.parametrize("head", ["lightgbm", "xgboost", "random forest", "extra trees", "logistic"])
def test_no_value_flips_what_cannot_be_flipped(head):
    """Random values, values beside every threshold in single and double precision, and those of other rows."""
    model, X_train = decimals(head)
    chance = np.random.default_rng(1)
    certain = np.argsort(-model.predict_proba(X_train).max(axis=1), kind="stable")[:60:3]
    X = X_train.iloc[certain].reset_index(drop=True)
    found = fg.find_any_value_budgets(model, X, fg.Protocol.fit(model, X_train), progress=False)
    low, high = X_train.min(), X_train.max()
    adversarial = {}
    for name in X:
        known = np.asarray(list_thresholds(model).get(name, []), dtype=float) if head != "logistic" else np.zeros(0)
        beside = [np.nextafter(known, -np.inf), known, np.nextafter(known, np.inf)]
        single = known.astype(np.float32)
        beside += [np.nextafter(single, np.float32(-np.inf)), single, np.nextafter(single, np.float32(np.inf))]
        values = np.concatenate([*map(np.float64, beside), X_train[name], [low[name], high[name]]])
        adversarial[name] = values[(values >= low[name]) & (values <= high[name])]
    tried = 0
    for i in range(len(X)):
        original = list(model.classes_).index(found.predicted[i])
        for (name, _), can in zip(found.units, found.alone[i], strict=True):
            if can == 0:
                values = np.concatenate([adversarial[name], chance.uniform(low[name], high[name], 300)])
                p = model.predict_proba(X.iloc[[i] * len(values)].assign(**{name: values}))
                assert not flips(p, original, RESOLUTION).any()
                tried += len(values)
        if found.proved[i] == 2:
            for _ in range(20):
                pair = chance.choice(list(X), 2, replace=False)
                drawn = {name: chance.choice(adversarial[name], 200) for name in pair}
                assert not flips(model.predict_proba(X.iloc[[i] * 200].assign(**drawn)), original, RESOLUTION).any()
                tried += 200
    assert tried > 1000


# --- chances ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("head", "classes"), [("lightgbm", 2), ("random forest", 3), ("logistic", 2)])
def test_chances_are_those_of_the_catalogue(head, classes):
    model, X_train, X = fitted(head, classes=classes)
    X, protocol = X[:6], fg.Protocol.fit(model, X_train)
    found = fg.find_any_value_budgets(model, X, protocol, progress=False)
    weights = {
        entry.fields[0]: {
            value[0]: count / sum(entry.counts) for value, count in zip(entry.values, entry.counts, strict=True)
        }
        for entry in protocol.modes.catalogue
    }
    names = list(X)
    for i in range(len(X)):
        original = list(model.classes_).index(found.predicted[i])

        def chance_of(own, i=i, original=original):
            each = list(product(*(weights[name].items() for name in own)))
            changes = [{name: value for name, (value, _) in zip(own, one, strict=True)} for one in each]
            lost = flips(model.predict_proba(change_rows(X, i, changes)), original, RESOLUTION)
            return sum(np.prod([w for _, w in one]) for one, gone in zip(each, lost, strict=True) if gone)

        pairs = [(a, b) for k, a in enumerate(names) for b in names[k + 1 :]]
        assert found.chance_one[i] == pytest.approx(np.mean([chance_of([name]) for name in names]))
        assert found.chance_two[i] == pytest.approx(np.mean([chance_of(pair) for pair in pairs]))


# --- models that are asked -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["auto", "blackbox"])
def test_other_models_are_asked_and_prove_nothing(engine):
    model, X_train, X = fitted("lightgbm")
    ask = fg.Model.wrap(model.predict_proba, classes=[0, 1]) if engine == "auto" else model
    protocol = fg.Protocol.fit(ask, X_train, space="raw")
    X = X[:6]
    found = fg.find_any_value_budgets(ask, X, protocol, engine=engine, progress=False)
    exact = fg.find_any_value_budgets(model, X, fg.Protocol.fit(model, X_train), progress=False)
    assert set(found.method) == {"asked"} and not found.proved.any() and set(found.count) <= {-1, 0}
    assert (found.budget >= exact.budget).all() and not (found.alone == 0).any()
    for i in np.flatnonzero(found.budget <= 2):
        p = model.predict_proba(change_rows(X, int(i), [found.witness(int(i)).values]))
        assert flips(p, list(model.classes_).index(found.predicted[i]), RESOLUTION)[0]
    safe = fg.find_safe_sets(ask, X, protocol, engine=engine, asked=50, progress=False)
    assert not (safe.safe == 1).any() and safe.largest == ((),) * len(X)


def test_a_field_whose_columns_come_from_others_as_well_is_asked():
    from sklearn.impute import KNNImputer

    X, y = make_table(2, True)
    X = X[["a", "b", "c"]]
    model = make_pipeline(KNNImputer(), HEADS["random forest"]()).fit(X[:400], y[:400])
    found = fg.find_any_value_budgets(model, X[400:406], fg.Protocol.fit(model, X[:400]), progress=False)
    assert not found.proved.any() and (found.alone != 0).all()


@pytest.mark.parametrize("asked", [2_000, 60])
def test_a_model_is_asked_about_a_set_of_all_rows_at_once(asked, monkeypatch):
    """A call of a pipeline costs as much as hundreds of rows; a row's answer is that of the row alone."""
    model, X_train, X = fitted("lightgbm")
    calls = []
    ask = fg.Model.wrap(lambda X: calls.append(len(X)) or model.predict_proba(X), classes=[0, 1])
    protocol = fg.Protocol.fit(ask, X_train, space="raw")
    before = len(calls)
    whole = fg.find_any_value_budgets(ask, X[:40], protocol, asked=asked, progress=False)
    units = len(protocol.groups)
    assert len(calls) - before <= 2 * units * (units + 1) + 40
    monkeypatch.setattr(deciding, "ASKED_AT_ONCE", 100)  # a few rows at a time
    again = fg.find_any_value_budgets(ask, X[:40], protocol, asked=asked, progress=False)
    assert again.to_dict() == whole.to_dict()
    for i in (0, 5, 39):
        alone = fg.find_any_value_budgets(ask, X[i : i + 1], protocol, asked=asked, ids=[str(i)], progress=False)
        assert alone.to_dict()["rows"] == [whole.to_dict()["rows"][i]]


# --- results and refusals --------------------------------------------------------------------------------------------


def test_results_read_and_save(tmp_path):
    model, X_train, X = fitted("lightgbm")
    protocol = fg.Protocol.fit(model, X_train)
    found = fg.find_any_value_budgets(model, X[:10], protocol, progress=False)
    safe = fg.find_safe_sets(model, X[:10], protocol, progress=False)
    assert "No choice of a baseline can dispute this" in str(found) and len(repr(found).splitlines()) == 1
    assert found.describe(0) and found.state(0) in ("1", "2", "at least 3")
    for result in (found, safe):
        for suffix in result.SUFFIXES:
            assert result.save(tmp_path / f"found{suffix}").stat().st_size
    assert list(found.to_pandas()["id"]) == [str(i) for i in range(10)] and len(safe.to_pandas()) == 50


@pytest.mark.parametrize("size", [0, 4, True, "2"])
def test_a_size_out_of_range_is_refused(size):
    model, X_train, X = fitted("lightgbm")
    with pytest.raises(fg.ProtocolError, match="max_size must be 1, 2 or 3, got"):
        fg.find_any_value_budgets(model, X[:2], fg.Protocol.fit(model, X_train), max_size=size)


def test_what_cannot_be_varied_is_refused():
    model, X_train, X = fitted("lightgbm")
    protocol = fg.Protocol.fit(model, X_train, immutable=list(X_train))
    with pytest.raises(fg.ProtocolError, match="nothing can be varied"):
        fg.find_any_value_budgets(model, X[:2], protocol)
    with pytest.raises(fg.ProtocolError, match="must name fields or groups, got 'f'"):
        fg.find_safe_sets(model, X[:2], fg.Protocol.fit(model, X_train), {"feed": ["f"]})
    with pytest.raises(fg.ProtocolError, match="it is empty"):
        fg.find_safe_sets(model, X[:2], fg.Protocol.fit(model, X_train), {"feed": []})
