"""MLflow folders and addresses: the file inside is loaded as it would be alone, and nothing runs without trust."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from command_line import run
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg
from fragility.base.errors import DataError, ModelError
from fragility.models.descriptions import READ_AT_RUN_TIME

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
FIELDS = ["duration", "credit_amount", "age", "housing"]


@pytest.fixture(scope="module", autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def credit() -> tuple[pd.DataFrame, pd.Series]:
    X, y = fg.load_credit_g()
    X = X[FIELDS].astype({"duration": "int64", "credit_amount": float, "age": float})
    return X.assign(housing=X["housing"].astype(object)), y


@pytest.fixture(scope="module")
def pipeline(credit):
    X, y = credit
    encode = make_column_transformer((OneHotEncoder(), ["housing"]), remainder=StandardScaler())
    return make_pipeline(encode, LogisticRegression()).fit(X[:300], y[:300])


@pytest.fixture(scope="module")
def boosters(credit) -> dict[str, object]:
    import catboost
    import lightgbm
    import xgboost

    numbers, codes = credit[0][FIELDS[:3]], (credit[1] == "good").astype(int)
    return {
        "lightgbm": lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(numbers, codes).booster_,
        "xgboost": xgboost.XGBClassifier(n_estimators=3).fit(numbers, codes).get_booster(),
        "catboost": catboost.CatBoostClassifier(iterations=3, verbose=0, allow_writing_files=False).fit(numbers, codes),
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory, credit, pipeline, boosters) -> Path:
    """Folders that MLflow wrote."""
    import lightgbm
    import mlflow.catboost
    import mlflow.lightgbm
    import mlflow.sklearn
    import mlflow.xgboost
    from mlflow.models import infer_signature

    home, (X, y) = tmp_path_factory.mktemp("mlflow"), credit
    signature = infer_signature(X, y.astype(str))
    mlflow.sklearn.save_model(pipeline, home / "skops", signature=signature, pip_requirements=[])
    mlflow.sklearn.save_model(pipeline, home / "pickle", serialization_format="cloudpickle", pip_requirements=[])
    mlflow.lightgbm.save_model(boosters["lightgbm"], home / "lightgbm", pip_requirements=[])
    classifier = lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(X[FIELDS[:3]], y)
    mlflow.lightgbm.save_model(classifier, home / "lightgbm-skops", pip_requirements=[])
    mlflow.xgboost.save_model(boosters["xgboost"], home / "xgboost", pip_requirements=[])
    mlflow.xgboost.save_model(boosters["xgboost"], home / "xgboost-json", model_format="json", pip_requirements=[])
    (home / "xgboost" / "model.ubj").rename(home / "xgboost" / "model.xgb")  # the name that MLflow 2 gave it
    text = (home / "xgboost" / "MLmodel").read_text()
    (home / "xgboost" / "MLmodel").write_text(text.replace("model.ubj", "model.xgb"))
    mlflow.catboost.save_model(boosters["catboost"], home / "catboost", pip_requirements=[])
    return home


# --- the model's own flavour --------------------------------------------------------------------------------------


def test_a_pipeline_is_audited_exactly_as_its_joblib_file(saved, pipeline, credit, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)  # a local folder needs no MLflow
    X, _ = credit
    joblib.dump(pipeline, tmp_path / "pipeline.joblib")
    plain = fg.load_model(tmp_path / "pipeline.joblib", trust=True)
    protocol = fg.Protocol.fit(plain, X[:300])
    wanted = fg.audit(plain, X[300:400], protocol, progress=False)
    for name, trust in (("skops", False), ("pickle", True)):
        model = fg.load_model(saved / name, trust=trust)
        assert fg.Protocol.fit(model, X[:300]).digest == protocol.digest
        found = fg.audit(model, X[300:400], protocol, progress=False)
        assert found.manifest.root_digest == wanted.manifest.root_digest
        assert fg.verify(found, model, X[300:400])


@pytest.mark.parametrize(
    "folder", ["lightgbm", "xgboost", pytest.param("xgboost-json", marks=pytest.mark.slow), "catboost"]
)
def test_boosters_load_without_trust_as_their_files_do(saved, boosters, folder: str) -> None:
    loaded = fg.load_model(saved / folder, classes=["bad", "good"])
    plain = fg.Model.wrap(boosters[folder.split("-")[0]], classes=["bad", "good"])
    assert loaded.fingerprint == plain.fingerprint and loaded.classes == ("bad", "good")


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [
        ("pickle", r"^model\.pkl is a pickle, and loading it runs any code it contains; .* load it with trust=True$"),
        ("lightgbm-skops", r"^model\.skops contains types that skops does not know .*LGBMClassifier; .*trust=True$"),
    ],
)
def test_what_runs_code_needs_trust(saved, folder: str, sentence: str) -> None:
    """The types that MLmodel lists as trusted are the folder's word, not the user's."""
    with pytest.raises(ModelError, match=sentence):
        fg.load_model(saved / folder)
    assert fg.load_model(saved / folder, trust=True).classes


def test_modules_in_the_folder_are_imported_with_trust_only(tmp_path, monkeypatch) -> None:
    """A class of the user's own comes from the folder's code, as MLflow finds it."""
    name, folder = "own_steps_of_a_folder", tmp_path / "own"
    write_folder(folder, "flavors:\n  sklearn:\n    pickled_model: model.pkl\n    code: code\n")
    (folder / "code").mkdir()
    (folder / "code" / f"{name}.py").write_text(
        "from sklearn.preprocessing import FunctionTransformer\nclass Same(FunctionTransformer):\n    pass\n"
    )
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder / "code")
        steps = make_pipeline(importlib.import_module(name).Same(), LogisticRegression())
        joblib.dump(steps.fit(np.eye(4), [0, 1, 0, 1]), folder / "model.pkl")
        del sys.modules[name]
    with pytest.raises(ModelError, match="is a pickle"):
        fg.load_model(folder)
    assert name not in sys.modules
    assert fg.load_model(folder, trust=True).kind == "Pipeline(Same -> LogisticRegression)"
    del sys.modules[name]


def test_a_torch_module_needs_trust_classes_and_what_it_returns(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    import mlflow.pytorch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    rows = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    mlflow.pytorch.save_model(net, tmp_path / "pickle", serialization_format="pickle", pip_requirements=[])
    mlflow.pytorch.save_model(net, tmp_path / "pt2", input_example=rows, pip_requirements=[])
    plain = fg.Model.wrap(net, classes=["no", "yes"], output="logits")
    for name in ("pickle", "pt2"):
        with pytest.raises(ModelError, match=r"is a PyTorch file, which contains pickles, .*trust=True$"):
            fg.load_model(tmp_path / name)
        with pytest.raises(ModelError, match="does not name the classes") as caught:
            fg.load_model(tmp_path / name, trust=True)
        assert "--classes A,B" in caught.value.in_options()
        with pytest.raises(
            ModelError, match=r"declare what \w+ returns with output='logits'.* never guessed"
        ) as caught:
            fg.load_model(tmp_path / name, trust=True, classes=["no", "yes"])
        assert "--returns logits" in caught.value.in_options()
        model = fg.load_model(tmp_path / name, trust=True, classes=["no", "yes"], output="logits")
        assert np.allclose(model.probabilities(rows), plain.probabilities(rows), rtol=0, atol=1e-7)
        certs = fg.audit(model, rows[:10], fg.Protocol.fit(model, rows), progress=False)
        assert len(certs) == 10 and model.fingerprint_partial == ()
    with pytest.raises(DataError, match=r"the model's MLflow signature has 3 columns, the rows have 2$"):
        fg.Protocol.fit(model, rows[:, :2])


# --- addresses ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registered(tmp_path_factory, pipeline, credit) -> tuple[str, str]:
    """A file store with a run and a registered model; its address and the run's id."""
    import mlflow.sklearn
    from mlflow.models import infer_signature

    store = (tmp_path_factory.mktemp("store") / "mlruns").as_uri()
    mlflow.set_tracking_uri(store)
    with mlflow.start_run() as started:
        mlflow.sklearn.log_model(
            pipeline, name="model", registered_model_name="credit", signature=infer_signature(credit[0]),
            pip_requirements=[],
        )  # fmt: skip
    mlflow.MlflowClient().set_registered_model_alias("credit", "champion", "1")
    return store, started.info.run_id


def test_addresses_are_the_folders_they_stand_for(registered, saved, credit, tmp_path, monkeypatch) -> None:
    store, run_id = registered
    wanted = fg.load_model(saved / "skops")
    for address in (f"runs:/{run_id}/model", "models:/credit/1", "models:/credit@champion"):
        model = fg.load_model(address)
        assert model.fingerprint == wanted.fingerprint and model.signature == wanted.signature
    X, y = credit
    X.assign(label=y)[:200].to_parquet(tmp_path / "train.parquet")
    X[300:320].to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    words = ["--train", tmp_path / "train.parquet", "--target", "label", "--out", tmp_path / "audit"]
    done = run("audit", "models:/credit@champion", tmp_path / "rows.parquet", *words)
    assert done.code == 0, done.err
    checked = run("verify", tmp_path / "audit", "--model", saved / "skops", "--data", tmp_path / "rows.parquet")
    assert checked.code == 0, checked.err


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("runs:/nothing/model", "Run 'nothing' not found"),
        ("models:/nobody/1", "Registered Model with name=nobody not found"),
        ("models:/credit@nobody", "alias nobody not found"),
        ("models:/credit/99", "version=99"),
        ("runs:/", "Not a proper runs:/ URI"),
    ],
)
def test_an_address_of_nothing_is_one_sentence(registered, address: str, reason: str) -> None:
    with pytest.raises(ModelError, match=rf"^MLflow does not find the model '{address}': .*{reason}") as caught:
        fg.load_model(address)
    assert "\n" not in str(caught.value)


# --- the signature ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda X: X.drop(columns="age"),
            r"^the model's MLflow signature requires column 'age', which the data lack$",
        ),
        (
            lambda X: X.rename(columns={"age": "Age"}),
            r"^the model's MLflow signature requires column 'age', .* column 'Age', which it does not list: rename or",
        ),
        (
            lambda X: X.assign(extra=1),
            r"^the data have column 'extra', which the model's MLflow signature does not list; drop them$",
        ),
        (
            lambda X: X.assign(age=X["age"].astype(str)),
            r"^column 'age' holds text, and the model's MLflow signature says double \(numbers\); convert it, or log",
        ),
        (
            lambda X: X.assign(duration=X["duration"].astype(float).where(X.index != 3)),
            r"^column 'duration' holds numbers, and the model's MLflow signature says long \(whole numbers\); whole "
            r"numbers with gaps among them are decimals, which MLflow refuses too",
        ),
        (
            lambda X: X.assign(housing=1),
            r"^column 'housing' holds whole numbers, and the model's MLflow signature says string \(text\)",
        ),
    ],
)
def test_rows_that_contradict_the_signature_are_refused(saved, credit, change, sentence: str) -> None:
    X, model = credit[0], fg.load_model(saved / "skops")
    with pytest.raises(DataError, match=sentence):
        fg.Protocol.fit(model, change(X[:300]))
    protocol = fg.Protocol.fit(model, X[:300])
    with pytest.raises(DataError, match=sentence):
        fg.audit(model, change(X[:40]), protocol, progress=False)


def test_rows_that_follow_the_signature_in_another_form_are_taken(saved, credit) -> None:
    """Order, width and categories do not matter, nor whole numbers where numbers are declared."""
    X, model = credit[0], fg.load_model(saved / "skops")
    other = X[FIELDS[::-1]].assign(age=X["age"].astype("int32"), housing=X["housing"].astype("category"))
    protocol = fg.Protocol.fit(model, X[:300])
    wanted = fg.audit(model, X[:20], protocol, progress=False)
    found = fg.audit(model, other[:20], protocol, progress=False)
    assert [each.flip_budget for each in found] == [each.flip_budget for each in wanted]


def write_folder(home: Path, text: str, **files: bytes) -> Path:
    home.mkdir()
    (home / "MLmodel").write_text(text)
    for name, content in files.items():
        (home / name.replace("_", ".")).write_bytes(content)
    return home


def declare(saved: Path, home: Path, *columns: dict[str, object], flavour: str = "skops") -> Path:
    """Copy a folder with another signature."""
    shutil.copytree(saved / flavour, home)
    text = (home / "MLmodel").read_text().split("signature:")[0]
    (home / "MLmodel").write_text(f"{text}signature:\n  inputs: {json.dumps(json.dumps(columns))}\n")
    return home


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (FIELDS[:3], r"signature lacks 'housing', which is a column that the model was fitted on; log"),
        ([*FIELDS, "x"], r"signature lists 'x', which is not a column that the model was fitted on"),
        ([None, None], r"signature has 2 columns, and the model was fitted on 4"),
        (["age", "age", "age"], r"names that are not distinct$"),
        ([], r"without columns"),
    ],
)
def test_a_signature_that_contradicts_the_model_is_refused(saved, tmp_path, columns, sentence: str) -> None:
    listed = [{"type": "double"} | ({} if name is None else {"name": name}) for name in columns]
    with pytest.raises(ModelError, match=sentence):
        fg.load_model(declare(saved, tmp_path / "own", *listed))


def test_a_signature_names_the_columns_of_a_model_fitted_on_an_array(tmp_path) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    rows = np.random.default_rng(0).normal(size=(80, 2))
    booster = lightgbm.LGBMClassifier(n_estimators=2, verbose=-1).fit(rows, rows[:, 0] > 0).booster_
    home = tmp_path / "own"
    write_folder(home, "flavors:\n  lightgbm:\n    data: model.lgb\n", model_lgb=booster.model_to_string().encode())
    columns = [{"type": "double", "name": name, "required": True} for name in ("net income", "age")]
    with (home / "MLmodel").open("a") as stream:
        stream.write(f"signature:\n  inputs: {json.dumps(json.dumps(columns))}\n")
    model = fg.load_model(home)
    assert model.columns == ("net income", "age")
    frame = pd.DataFrame(rows, columns=["net income", "age"])
    assert np.array_equal(model.probabilities(frame), fg.Model.wrap(booster).probabilities(rows))


# --- functions of MLflow's ----------------------------------------------------------------------------------------


def save_function(home: Path, returns: str, credit, pipeline, **more: object) -> Path:
    import mlflow.pyfunc

    class Answering(mlflow.pyfunc.PythonModel):
        def predict(self, context, model_input, params=None):
            p = pipeline.predict_proba(model_input)
            if returns == "reversed table":
                return pd.DataFrame(p[:, ::-1], columns=["good", "bad"])
            return {"probabilities": p, "labels": pipeline.predict(model_input), "texts": p.astype(str) + "x"}[returns]

    mlflow.pyfunc.save_model(home, python_model=Answering(), pip_requirements=[], **more)
    return home


def test_a_function_that_returns_probabilities_is_a_black_box(tmp_path, credit, pipeline) -> None:
    from mlflow.models import infer_signature

    X, _ = credit
    wanted = fg.audit(pipeline, X[:30], fg.Protocol.fit(pipeline, X[:300], space="raw"), progress=False)
    folder = save_function(tmp_path / "plain", "probabilities", credit, pipeline)
    with pytest.raises(ModelError, match=r"^plain is a function that MLflow loads, and loading it runs .*trust=True$"):
        fg.load_model(folder)
    with pytest.raises(ModelError, match=r"does not name the classes of its probabilities"):
        fg.load_model(folder, trust=True)
    outputs = pd.DataFrame(pipeline.predict_proba(X)[:, ::-1], columns=["good", "bad"])
    named = save_function(tmp_path / "named", "reversed table", credit, pipeline, signature=infer_signature(X, outputs))
    models = [fg.load_model(folder, trust=True, classes=["bad", "good"]), fg.load_model(named, trust=True)]
    assert models[1].classes == ("good", "bad") and models[1].columns == tuple(FIELDS)
    models.append(fg.load_model(named, trust=True, classes=["bad", "good"]))  # the table's names say which is which
    shutil.rmtree(folder), shutil.rmtree(named)  # the function keeps a copy of its files
    for model in models:
        found = fg.audit(model, X[:30], fg.Protocol.fit(model, X[:300]), progress=False)
        assert found.manifest.engine.name == "blackbox" and model.fingerprint_partial == (READ_AT_RUN_TIME,)
        assert [each.flip_budget for each in found] == [each.flip_budget for each in wanted]


@pytest.mark.parametrize(
    ("returns", "sentence"),
    [
        ("labels", r"returns '(good|bad)' for a row: one value per row, such as a label, and a certificate needs a"),
        ("texts", r"the function of the MLflow model must return numbers"),
    ],
)
def test_a_function_that_returns_no_probabilities_is_refused(tmp_path, credit, pipeline, returns, sentence) -> None:
    model = fg.load_model(
        save_function(tmp_path / "own", returns, credit, pipeline), trust=True, classes=["bad", "good"]
    )
    with pytest.raises(fg.FragilityError, match=sentence):
        fg.Protocol.fit(model, credit[0][:300])


def test_a_function_that_declares_labels_is_refused_before_it_is_loaded(tmp_path) -> None:
    outputs = json.dumps(json.dumps([{"type": "string"}]))
    text = f"flavors:\n  python_function:\n    loader_module: os\nsignature:\n  inputs: null\n  outputs: {outputs}\n"
    with pytest.raises(ModelError, match=r"^it declares one output of type string: one value per row, such as a label"):
        fg.load_model(write_folder(tmp_path / "own", text), trust=True, classes=["a", "b"])


# --- broken and hostile folders -----------------------------------------------------------------------------------

SKLEARN = "flavors:\n  sklearn:\n    pickled_model: {}\n    serialization_format: skops\n"
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(12)
)
MERGES = "a: &a {k: v}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{', '.join([f'*{chr(97 + i)}'] * 9)}]}}\n" for i in range(12)
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "its MLmodel file contains no settings"),
        ("[1, 2]", "its MLmodel file contains no settings"),
        ("a: [", "its MLmodel file is not valid YAML"),
        ("\0", "its MLmodel file is not valid YAML"),
        ("[" * 50_000, "its MLmodel file is not valid YAML"),
        ("? {a: b}\n: c", "its MLmodel file is not valid YAML"),
        ("flavors: 3", "its MLmodel file lists no flavours"),
        (LAUGHS, "its MLmodel file lists no flavours"),
        (MERGES, "its MLmodel file lists no flavours"),
        ("x" * (2**20 + 1), r"its MLmodel file has 1048577 bytes; at most 1048576 are read"),
        ("!!python/object/apply:os.system ['touch ran']", "its MLmodel file contains no settings"),
        ("flavors:\n  sklearn: !!python/object/apply:os.system ['touch ran']", "lists no flavours"),
        ("flavors: {}", "it has the flavour none; supported are sklearn, lightgbm, "),
        ("flavors:\n  spark: {}", "it has the flavour spark; supported are "),
        (
            "flavors:\n  sklearn: {}\n  lightgbm: {}",
            "it has the flavours sklearn and lightgbm, and does not say which of them",
        ),
        ("flavors:\n  sklearn: {}", "does not say which file holds the model"),
        ("flavors:\n  sklearn: {pickled_model: [a]}", "does not say which file holds the model"),
        (SKLEARN.format("model.skops"), "the folder lacks 'model.skops', which its MLmodel file names"),
        (SKLEARN.format("../outside.skops"), r"names '\.\./outside\.skops', which lies outside the folder"),
        (SKLEARN.format("..\\outside.skops"), r"which lies outside the folder"),
        (SKLEARN.format("/etc/passwd"), r"names '/etc/passwd', which lies outside the folder"),
        (SKLEARN.format("link.skops"), r"'link\.skops' is a link that leads out of the folder"),
        (SKLEARN.format("away/outside.skops"), r"is a link that leads out of the folder"),
        (SKLEARN.format("pipe"), r"'pipe' is not a regular file"),
        (SKLEARN.format("folder"), r"'folder' is not a regular file"),
        (SKLEARN.format("inside").replace("skops", "dill"), r"its sklearn file has the format 'dill'; supported are"),
        ("flavors:\n  catboost: {data: inside, save_format: json}", "its CatBoost file has the format 'json'; save"),
        ("flavors:\n  pytorch: {model_data: folder}", r"the folder lacks 'folder/model\.pth'"),
        ("flavors:\n  sklearn: {pickled_model: inside, code: ../..}", r"names '\.\./\.\.', which lies outside"),
        (SKLEARN.format("inside") + "signature: {inputs: '{'}", "a signature that cannot be read"),
        (SKLEARN.format("inside") + f"signature: {{inputs: '{'[' * 20_000}'}}", "a signature that cannot be read"),
        (SKLEARN.format("inside") + 'signature: {inputs: \'[{"type": "array", "name": "a"}]\'}', "of type 'array'"),
    ],
)
def test_a_hostile_folder_is_one_sentence(tmp_path, monkeypatch, text: str, sentence: str) -> None:
    folder = write_folder(tmp_path / "own", text, inside=b"x")
    (tmp_path / "outside.skops").write_bytes(b"x")
    (folder / "link.skops").symlink_to(tmp_path / "outside.skops")
    (folder / "away").symlink_to(tmp_path)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    monkeypatch.chdir(tmp_path)
    for trust in (False, True):
        with pytest.raises(ModelError, match=rf"^cannot load the MLflow model '.*own': .*{sentence}") as caught:
            fg.load_model(folder, trust=trust)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["fifo", "zero", "link", "folder"])
def test_an_mlmodel_that_is_no_file_is_refused(tmp_path, kind: str) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    target, sentence = folder / "MLmodel", "'MLmodel' is a link that leads out of the folder"
    if kind == "fifo":
        os.mkfifo(target)
    elif kind == "folder":
        target.mkdir()
    else:
        target.symlink_to("/dev/zero" if kind == "zero" else tmp_path / "other")
    if kind in ("fifo", "folder"):
        sentence = "'MLmodel' is not a regular file"
    with pytest.raises(ModelError, match=sentence):
        fg.load_model(folder)


@pytest.mark.parametrize("flavour", ["lightgbm", "skops"])
def test_a_model_file_that_is_cut_off_is_refused(saved, tmp_path, flavour: str) -> None:
    shutil.copytree(saved / flavour, tmp_path / "own")
    file = next((tmp_path / "own").glob("model.*"))
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(ModelError) as caught:
        fg.load_model(tmp_path / "own")
    assert "\n" not in str(caught.value)


def test_the_extra_is_named_where_it_is_missing(tmp_path, monkeypatch) -> None:
    from fragility.base import libraries

    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"the address 'runs:/a/b' needs mlflow; .* pip install 'fragility\[mlflow\]'"):
        fg.load_model("runs:/a/b")
    with pytest.raises(ModelError, match=r"folder of an MLflow model needs yaml; .* pip install 'fragility\[mlflow\]'"):
        fg.load_model(write_folder(tmp_path / "own", "flavors: {}"))


def test_an_onnx_flavour_loads_as_its_file_does(tmp_path, credit) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    import mlflow.onnx

    X, y = credit
    numbers = X[FIELDS[:3]].to_numpy(dtype=np.float32)
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(numbers, y)
    mlflow.onnx.save_model(skl2onnx.to_onnx(fitted, numbers[:1]), tmp_path / "own", pip_requirements=[])
    model = fg.load_model(tmp_path / "own")
    assert model.classes == ("bad", "good")
    assert model.fingerprint == fg.load_model(tmp_path / "own" / "model.onnx").fingerprint
