"""Every reader meets thousands of malformed inputs: each is read or refused in one sentence, and nothing else happens.

Inputs are made by chance from sound files (see ``fuzzing``), the same on every run, and read in processes of their own,
so that a crash is a finding like any other. Memory and time are bounded there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import fuzzing
import pandas as pd
import pytest
from pipelines import fitted
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg

QUICK, MANY = 60, 20_000
CHUNK = 1000
FORKING = ("model", "onnx", "certificates")  # take longer
SEED = 20261116


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A folder with a sound file for each reader."""
    folder = tmp_path_factory.mktemp("fuzz") / "sound"
    folder.mkdir()
    case = fitted("credit_g", "lightgbm", "transformed")
    protocol = fg.Protocol.fit(case.model, case.X_train, depth=3, severities=(0.5, 1.0))
    protocol.save(folder / "protocol.json")
    fg.generate_keys(folder / "key")
    fg.sign(folder / "protocol.json", folder / "key")
    certs = fg.audit(case.model, case.X_test[:25], protocol, modes=True).with_protocol_signature(
        folder / "protocol.json.dsse.json"
    )
    certs.save(folder / "audit")
    fg.sign(folder / "audit", folder / "key")
    fg.prove(folder / "audit", certs[3].id, folder / "proof.json")
    write_policy(folder / "policy.json")
    write_logs(folder, case.X_test)
    write_models(folder)
    write_graphs(folder)
    return folder


def write_policy(path: Path) -> None:
    X, y = fg.load_credit_g()
    X = X.select_dtypes("number")
    model = LogisticRegression(max_iter=2000).fit(X, y)
    protocol = fg.Protocol.fit(model, X, depth=3)
    certs = fg.audit(model, X[:200], protocol)
    labels = fg.label_brittle(model, X[:200], protocol, fg.Stress(draws=4))
    fg.ReviewPolicy.fit(certs, labels, risk=0.2).save(path)


def write_logs(folder: Path, X: pd.DataFrame) -> None:
    blocks = {"status": ["checking", "savings"], "loan": ["duration", "amount", "purpose"], "person": ["age"]}
    (folder / "groups.json").write_text(json.dumps(blocks, indent=2))
    (folder / "markers.json").write_text(json.dumps({"purpose": ["?", None], "age": [-9, 0]}, indent=2))
    X[["purpose", "age", "duration"]][:30].assign(**{"class": "good"}).to_csv(folder / "rows.csv", index=False)
    long = pd.DataFrame({"event": [1, 1, 2, 3, 3], "field": ["age", "purpose", "age", "purpose", "duration"]})
    long.to_csv(folder / "long.csv", index=False)
    pd.DataFrame({"event": [1, 2], "age": [True, False], "purpose": [True, True]}).to_csv(
        folder / "wide.csv", index=False
    )


def write_models(folder: Path) -> None:
    import catboost
    import lightgbm
    import xgboost

    X, y = fg.load_credit_g()
    X, y = X.select_dtypes("number"), (y == "good").astype(int)
    quiet = {"verbose": -1, "num_threads": 1}
    lightgbm.train({"objective": "binary", "num_leaves": 6, **quiet}, lightgbm.Dataset(X, y), 5).save_model(
        folder / "model.txt"
    )
    booster = xgboost.train({"objective": "binary:logistic", "max_depth": 3, "nthread": 1}, xgboost.DMatrix(X, y), 5)
    booster.save_model(folder / "model.json")
    booster.save_model(folder / "model.ubj")
    small = catboost.CatBoostClassifier(iterations=5, depth=3, verbose=0, thread_count=1, allow_writing_files=False)
    small.fit(X, y).save_model(str(folder / "model.cbm"))
    if find_spec("torch") is not None:
        fg.ResMLPClassifier(max_epochs=1, random_state=0).fit(X, y).save(folder / "model.safetensors")


def write_graphs(folder: Path) -> None:
    """ONNX files of trees, a network and a pipeline over texts."""
    import onnx
    from converting import convert, convert_pipeline, make_rows

    X, y = make_rows()
    convert(GradientBoostingClassifier(n_estimators=3, max_depth=2, random_state=0).fit(X, y), folder / "trees.onnx")
    convert(MLPClassifier((3,), max_iter=300, random_state=0).fit(X, y), folder / "network.onnx")
    table, classes = fg.load_credit_g()
    table = table[["duration", "purpose"]].astype({"duration": "float32", "purpose": str})
    encode = ColumnTransformer(
        [("number", StandardScaler(), ["duration"]), ("text", OneHotEncoder(handle_unknown="ignore"), ["purpose"])]
    )
    pipeline = make_pipeline(encode, LogisticRegression()).fit(table, classes)
    onnx.save(convert_pipeline(pipeline, table[:1]), str(folder / "pipeline.onnx"))


def feed(reader: str, sound: Path, folder: Path, count: int) -> list[str]:
    """Return what was found: faults that the process told, and inputs that ended it."""
    folder.mkdir()
    shutil.copytree(sound, folder / "sound")
    findings: list[str] = []
    first, before = 0, listing(folder.parent)
    while first < count and len(findings) < 20:
        last = min(first + CHUNK, count)
        words = [sys.executable, fuzzing.__file__, reader, SEED, first, last - first, folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(
                list(map(str, words)),
                capture_output=True,
                text=True,
                timeout=3000,
                cwd=folder,
                env=environment,
                check=False,
            )
            told, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as error:
            told, code = (error.stdout or b"").decode(), "no end"
        findings += told.splitlines()
        at = (folder / "at").read_text()
        first = last
        if at != "end":
            findings.append(f"input {at} ended the process with {code}: {done.stderr[-300:]}")
            first = int(at) + 1
    assert listing(folder.parent) == before, "files were written outside of the folder"
    assert (folder / "sound" / "protocol.json").read_bytes() == (sound / "protocol.json").read_bytes()
    return findings


def listing(folder: Path) -> set[str]:
    return {str(path) for path in folder.iterdir()}


@pytest.mark.parametrize("reader", fuzzing.READERS)
def test_malformed_inputs_are_refused_in_a_sentence(reader: str, sound: Path, tmp_path: Path) -> None:
    assert not feed(reader, sound, tmp_path / reader, QUICK // 3 if reader in FORKING else QUICK)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("reader", fuzzing.READERS)
def test_twenty_thousand_malformed_inputs_are_refused_in_a_sentence(reader: str, sound: Path, tmp_path: Path) -> None:
    assert not feed(reader, sound, tmp_path / reader, MANY)
