"""Model files that need a class of the user's own, and files that cannot be loaded: one sentence each."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import joblib
import numpy as np
import pytest
import skops.io
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import fragility as fg
from fragility.base.errors import ModelError
from fragility.models.loading import _explain, load_model

STEPS = """
    from sklearn.base import BaseEstimator, TransformerMixin

    class Doubled(TransformerMixin, BaseEstimator):
        def fit(self, X, y=None):
            self.n_features_in_ = X.shape[1]
            return self

        def transform(self, X):
            return X * 2
"""
SAVE = """
    import joblib, numpy as np, skops.io
    from doubled_steps import Doubled
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    class Local(Doubled):
        pass

    X, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    model = make_pipeline(Doubled(), LogisticRegression()).fit(X, y)
    joblib.dump(model, "model.joblib")
    skops.io.dump(model, "model.skops")
    joblib.dump(make_pipeline(Local(), LogisticRegression()).fit(X, y), "local.pkl")
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A folder with a module and the models that a script there saved."""
    made = tmp_path_factory.mktemp("saved")
    (made / "doubled_steps.py").write_text(textwrap.dedent(STEPS))
    (made / "save.py").write_text(textwrap.dedent(SAVE))
    subprocess.run([sys.executable, "save.py"], cwd=made, check=True)
    return made


@pytest.fixture
def folder(saved: Path, tmp_path: Path):
    """Such a folder to change; its module is forgotten afterwards."""
    shutil.copytree(saved, tmp_path / "own")
    yield tmp_path / "own"
    sys.modules.pop("doubled_steps", None)


@pytest.mark.parametrize("name", ["model.joblib", "model.skops"])
def test_classes_in_a_module_beside_the_file_are_found(folder: Path, name: str) -> None:
    path = list(sys.path)
    model = load_model(folder / name, trust=True)
    assert sys.path == path
    assert model.kind == "Pipeline(Doubled -> LogisticRegression)"
    assert model.probabilities(np.ones((3, 2))).shape == (3, 2)


def test_the_folder_is_not_searched_without_trust(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"types that skops does not know.*doubled_steps\.Doubled.*trust=True"):
        load_model(folder / "model.skops")
    assert "doubled_steps" not in sys.modules


@pytest.mark.parametrize("name", ["model.joblib", "model.skops"])
def test_a_module_that_cannot_be_found_is_named(folder: Path, name: str) -> None:
    (folder / "doubled_steps.py").unlink()
    with pytest.raises(ModelError, match=r"module 'doubled_steps', which cannot be found.*doubled_steps\.py beside"):
        load_model(folder / name, trust=True)


def test_a_class_that_its_module_no_longer_has_is_named(folder: Path) -> None:
    (folder / "doubled_steps.py").write_text("Tripled = None\n")
    with pytest.raises(ModelError, match=r"it needs 'Doubled' of the module 'doubled_steps', which does not have it"):
        load_model(folder / "model.joblib", trust=True)


def test_a_class_of_the_script_that_saved_the_model_is_named(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"it needs 'Local', which was defined in the script or notebook that saved"):
        load_model(folder / "local.pkl", trust=True)


@pytest.mark.parametrize("kept", [0, 60])
def test_a_file_that_is_cut_off_says_so(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.pkl"
    joblib.dump(make_pipeline(LogisticRegression()).fit(np.eye(4), [0, 1, 0, 1]), path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        ModelError,
        match=rf"cannot load the model {re.escape(repr(str(path)))}: it is truncated, or not a model file of its kind$",
    ):
        load_model(path, trust=True)


def test_a_file_of_another_scikit_learn_is_named() -> None:
    """Version 1.9 cannot load the boosting models of 1.8: it looks for their loss under a name that has gone."""
    missing = ModuleNotFoundError("No module named '_loss'", name="_loss")
    assert (
        _explain(missing)
        == "it was saved by another version of scikit-learn, which this one cannot load; use that version"
    )


def test_a_broken_skops_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "model.skops"
    skops.io.dump(LogisticRegression().fit(np.eye(4), [0, 1, 0, 1]), path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"^cannot load the model [^\n]+$"):
        load_model(path)


def test_a_skops_file_that_inflates_absurdly_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.skops", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("array.npy", "w", force_zip64=True) as entry:
            for _ in range(300):
                entry.write(bytes(2**20))
        archive.writestr("schema.json", "{}")
    with pytest.raises(ModelError, match=r"bomb\.skops declares 300 MiB of content in a file of \d+ KiB"):
        load_model(tmp_path / "bomb.skops")


# --- messages that say what a file is -------------------------------------------------------------------------------


@pytest.fixture
def fitted_boosters() -> dict[str, object]:
    catboost, lightgbm = pytest.importorskip("catboost"), pytest.importorskip("lightgbm")
    X = np.random.default_rng(0).normal(size=(80, 3))
    y = (X[:, 0] > 0).astype(int)
    cat = catboost.CatBoostClassifier(iterations=3, verbose=0, allow_writing_files=False).fit(X, y)
    return {"catboost": cat, "lightgbm": lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(X, y)}


def test_json_of_another_booster_is_named(fitted_boosters, tmp_path) -> None:
    fitted_boosters["catboost"].save_model(str(tmp_path / "cat.json"), format="json")
    with pytest.raises(ModelError, match=r"^cat\.json is a CatBoost model in JSON; save it as \.cbm"):
        load_model(tmp_path / "cat.json")
    (tmp_path / "dump.json").write_text(json.dumps(fitted_boosters["lightgbm"].booster_.dump_model()))
    with pytest.raises(ModelError, match=r"^dump\.json is a dump of a LightGBM model.* save it as \.txt"):
        load_model(tmp_path / "dump.json")


@pytest.mark.parametrize(
    ("inside", "sentence"),
    [
        ({"manifest.json": "{}"}, r"is the folder of an audit; give the model that was audited"),
        ({}, r"is a folder; a model is one of: \.skops"),
    ],
)
def test_a_folder_is_named_for_what_it_is(tmp_path, inside: dict[str, str], sentence: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, text in inside.items():
        (folder / name).write_text(text)
    with pytest.raises(ModelError, match=sentence):
        load_model(folder)


@pytest.mark.parametrize(("name", "kind"), [("net.pt", "a PyTorch"), ("net.pmml", "a PMML"), ("net.keras", "a Keras")])
def test_files_of_other_kinds_are_named(tmp_path, name: str, kind: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelError, match=rf"is {kind} file, .*; load it in Python, wrap it with Model\.wrap"):
        load_model(tmp_path / name)
    (tmp_path / "model.xyz").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"model\.xyz' is a file of an unknown kind; a model is one of"):
        load_model(tmp_path / "model.xyz")


def test_no_sentence_promises_that_skops_needs_no_trust(fitted_boosters, tmp_path) -> None:
    """A pipeline with LightGBM in a .skops file needs trust as well."""
    skops.io.dump(fitted_boosters["lightgbm"], tmp_path / "model.skops")
    with pytest.raises(ModelError, match=r"trust=True"):
        load_model(tmp_path / "model.skops")
    joblib.dump(fitted_boosters["lightgbm"], tmp_path / "model.joblib")
    with pytest.raises(ModelError, match=r"trust=True$"):
        load_model(tmp_path / "model.joblib")


def test_a_bare_torch_module_is_told_to_be_wrapped() -> None:
    torch = pytest.importorskip("torch")
    X = np.random.default_rng(0).normal(size=(20, 3))
    told = r"Linear does not name the classes .*: Model\.wrap\(model, classes=\[\.\.\.\], output='logits'\)$"
    with pytest.raises(ModelError, match=told):
        fg.Protocol.fit(torch.nn.Linear(3, 2), X)
    with pytest.raises(ModelError, match=r": Model\.wrap\(model, classes=\[\.\.\.\]\)$"):
        fg.Protocol.fit(lambda rows: np.full((len(rows), 2), 0.5), X)
