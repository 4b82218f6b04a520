"""Treelite as a second opinion about the tree readers, and its checkpoints as models of their own."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier

import fragility as fg
from fragility.base.errors import ModelError
from fragility.engines.trees.engine import ensemble_of
from fragility.engines.trees.scoring import compute_probabilities, make_row_scorer

treelite = pytest.importorskip("treelite", reason="Treelite is not installed")
gtil = pytest.importorskip("treelite.gtil")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")


@pytest.fixture(scope="module")
def data():
    """Numbers that float32 holds exactly, a column of codes (one that training lacks), gaps; three classes."""
    chance = np.random.default_rng(3)
    rows = np.round(chance.normal(size=(400, 5)), 3).astype(np.float32).astype(np.float64)
    rows[:, 4] = chance.integers(0, 8, 400)
    labels = np.digitize(rows[:, 0] - rows[:, 1] + (rows[:, 4] % 3), [-0.3, 1.2])
    gaps = chance.random(rows.shape) < 0.15
    gaps[:, 4] = False
    return np.where(gaps, np.nan, rows), labels


def train(name: str, rows, labels):
    """A fitted model, and the same one as Treelite imports it."""
    kind, _, classes = name.partition(" ")
    target = labels if classes == "several" else (labels > 0).astype(int)
    if kind == "lightgbm":
        settings = {"n_estimators": 12, "num_leaves": 12, "min_data_per_group": 1, "verbose": -1, "n_jobs": 1}
        model = lightgbm.LGBMClassifier(**settings).fit(rows, target, categorical_feature=[4])
        return model.booster_, treelite.frontend.from_lightgbm(model.booster_)
    if kind == "xgboost":
        model = xgboost.XGBClassifier(n_estimators=12, max_depth=4, n_jobs=1).fit(rows, target)
        return model.get_booster(), treelite.frontend.from_xgboost(model.get_booster())
    made = {
        "hist": HistGradientBoostingClassifier(max_iter=12, random_state=0, categorical_features=[4]),
        "forest": RandomForestClassifier(12, max_depth=6, random_state=0),
        "boosting": GradientBoostingClassifier(n_estimators=8, random_state=0),
    }[kind]
    model = made.fit(np.nan_to_num(rows) if kind == "boosting" else rows, target)
    return model, treelite.sklearn.import_model(model)


FAST = ("xgboost several", "hist binary", "forest binary")
NAMES = [f"{kind} {n}" for kind in ("lightgbm", "xgboost", "hist", "forest", "boosting") for n in ("binary", "several")]


@pytest.mark.parametrize("name", NAMES)
def test_the_readers_and_treelite_give_the_same_raw_scores(data, name: str) -> None:
    """Two readings of one model by different hands, on rows with gaps and with codes that training did not have."""
    rows, labels = data
    model, imported = train(name, rows[:300], labels[:300])
    trial = np.nan_to_num(rows) if name.startswith("boosting") else rows
    ensemble = ensemble_of(fg.Model.wrap(model))
    assert ensemble.forest.n_trees == imported.num_tree or name.startswith("forest")
    own = make_row_scorer(ensemble.forest, np.zeros(5, dtype=np.uint8))(trial)
    theirs = gtil.predict(imported, trial.astype(imported.input_type), pred_margin=True)[:, 0]
    own = compute_probabilities(ensemble.forest, own) if name.startswith("forest") else own.T
    tolerance = 2e-6 if name.startswith("xgboost") else 1e-12  # float32 sums, and the base score added last
    assert np.abs(own - theirs).max() <= tolerance


# --- checkpoints ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("treelite") / "model.tl"
    train("lightgbm several", *data)[1].serialize(str(path))
    return path


def test_a_checkpoint_is_read_natively_and_verifies(data, checkpoint) -> None:
    rows, labels = data
    model = fg.load_model(checkpoint, classes=["low", "middle", "high"])
    booster = train("lightgbm several", rows, labels)[0]
    assert np.abs(model.probabilities(rows) - fg.Model.wrap(booster).probabilities(rows)).max() < 1e-12
    protocol = fg.Protocol.fit(model, rows)
    native = fg.audit(model, rows[:60], protocol, progress=False)
    asked = fg.audit(model, rows[:60], protocol, engine="blackbox", progress=False)
    assert native.manifest.engine.name == "trees" and model.fingerprint_partial == ()
    assert [(each.path, each.flip_budget) for each in native] == [(each.path, each.flip_budget) for each in asked]
    assert fg.verify(native, model, rows[:60])


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_every_kind_of_checkpoint_agrees_with_gtil_at_every_state(data, name: str) -> None:
    from fragility.models.loading import TreeliteClassifier

    rows, labels = data
    rows = np.nan_to_num(rows) if name.startswith("boosting") else rows
    imported = train(name, rows, labels)[1]
    model = fg.Model.wrap(TreeliteClassifier(imported.serialize_bytes()))
    own = gtil.predict(imported, rows.astype(imported.input_type))[:, 0]
    assert np.abs(model.probabilities(rows)[:, -own.shape[1] :] - own).max() < 1e-6
    protocol = fg.Protocol.fit(model, rows)
    native = fg.audit(model, rows[:40], protocol, progress=False)
    asked = fg.audit(model, rows[:40], protocol, engine="blackbox", progress=False)
    assert native.manifest.engine.name == "trees"
    assert [(each.path, each.flip_budget) for each in native] == [(each.path, each.flip_budget) for each in asked]


def test_checkpoints_that_are_no_classifiers_are_refused(data, tmp_path) -> None:
    rows, labels = data
    booster = lightgbm.train({"objective": "regression", "verbose": -1}, lightgbm.Dataset(rows, labels), 2)
    treelite.frontend.from_lightgbm(booster).serialize(str(tmp_path / "model.tl"))
    with pytest.raises(
        ModelError, match=r"the Treelite checkpoint has the postprocessor 'identity', which gives no class prob"
    ):
        fg.load_model(tmp_path / "model.tl")


@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "child"])
def test_a_damaged_checkpoint_is_one_sentence(checkpoint, tmp_path, damage: str) -> None:
    data = checkpoint.read_bytes()
    tree = bytearray(data)
    if damage == "child":  # a child far beyond its tree: GTIL would read foreign memory
        place = data.index((1).to_bytes(4, "little") + (2).to_bytes(4, "little"), 300)
        tree[place : place + 4] = (2**30).to_bytes(4, "little")
    path = tmp_path / "model.tl"
    path.write_bytes({"empty": b"", "cut": data[:500], "noise": b"\xff" * 500, "child": bytes(tree)}[damage])
    with pytest.raises(ModelError, match=r"^(cannot load the model|the model) '.*model\.tl'") as caught:
        fg.load_model(path)
    assert "\n" not in str(caught.value)
