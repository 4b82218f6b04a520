"""`fragility evaluate missing` as a user meets it."""

import json

import pandas as pd
import pytest
import skops.io
from command_line import refuse, run
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg

FIELDS = ["duration", "age", "checking_status", "purpose"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("missing")
    X, y = fg.load_credit_g()
    X = X[FIELDS]
    numeric = list(make_column_selector(dtype_include="number")(X))
    prepare = make_column_transformer(
        (StandardScaler(), numeric), (OneHotEncoder(sparse_output=False), [name for name in X if name not in numeric])
    )
    model = make_pipeline(prepare, GradientBoostingClassifier(n_estimators=30, random_state=0)).fit(X[:500], y[:500])
    skops.io.dump(model, home / "model.skops")
    fg.Protocol.fit(model, X[:500]).save(home / "protocol.json")
    X.assign(risk=y)[900:940].to_parquet(home / "rows.parquet")
    X.assign(risk=y)[:500].to_parquet(home / "train.parquet")
    (home / "sets.json").write_text(json.dumps([["age"], ["checking_status", "age"]]))
    log = [("monday", "checking_status"), ("monday", "duration"), ("friday", "checking_status")]
    pd.DataFrame(log, columns=["event", "field"]).to_csv(home / "log.csv", index=False)
    return home


def missing(folder, *more):
    return (
        "evaluate",
        "missing",
        folder / "model.skops",
        folder / "rows.parquet",
        "--target",
        "risk",
        "--trust",
        *more,
    )


def inputs(folder):
    model = fg.load_model(folder / "model.skops", trust=True)
    rows = pd.read_parquet(folder / "rows.parquet").drop(columns="risk")
    return model, rows, fg.Protocol.load(folder / "protocol.json")


def test_each_field_is_hidden(folder, tmp_path):
    files = {kind: tmp_path / f"w.{kind}" for kind in ("json", "csv", "png", "txt")}
    done = run(
        *missing(folder, "--protocol", folder / "protocol.json"),
        *(word for file in files.values() for word in ("--out", file)),
    )
    assert done.code == 0, done.err
    expected = fg.evaluate_missing(*inputs(folder))
    assert expected.to_text() in done.out
    assert files["txt"].read_text() == expected.to_text() + "\n"
    assert json.loads(files["json"].read_text()) == json.loads(json.dumps(expected.to_dict()))
    assert pd.read_csv(files["csv"])["hidden"].tolist() == FIELDS
    assert files["png"].stat().st_size > 5_000


def test_sets_together_and_values_of_training_rows(folder):
    own = ["--protocol", folder / "protocol.json"]
    assert "Without 2 fields" in run(*missing(folder, *own, "--sets", folder / "sets.json")).out
    logged = run(*missing(folder, *own, "--sets", folder / "log.csv")).out
    assert "checking_status + duration" in logged or "duration + checking_status" in logged
    several = run(*missing(folder, *own, "--together", "3", "--most-sets", "2"))
    assert several.code == 0 and "Without 3 fields" in several.out
    near = run(*missing(folder, "--train", folder / "train.parquet", "--conditional"))
    train = pd.read_parquet(folder / "train.parquet").drop(columns="risk")
    expected = fg.evaluate_missing(*inputs(folder), training=train, conditional=True)
    assert near.code == 0 and expected.to_text() in near.out


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([], "need a protocol; name one with --protocol, or training rows with --train"),
        (["--protocol", "P", "--conditional"], "--conditional takes values from training rows; name them with --train"),
        (["--protocol", "P", "--sets", "sets.json", "--together", "2"], "leave out --together or leave out --sets"),
        (["--protocol", "P", "--train", "train.parquet"], "--train has no effect with --protocol unless --conditional"),
        (["--protocol", "P", "--markers", "?"], "--markers"),
        (["--protocol", "P", "--sets", "none.json"], "none.json, which does not exist"),
        (["--protocol", "P", "--sets", "P"], "must contain a list of lists of fields"),
        (["--protocol", "P", "--draws", "100"], "draws must be a power of two of at least 16, got 100"),
        (["--protocol", "P", "--out", "out.xlsx"], "must end in .json or .txt or .parquet or .csv"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(folder, more, sentence, monkeypatch):
    monkeypatch.chdir(folder)
    words = ["protocol.json" if word == "P" else word for word in more]
    assert sentence in refuse(*missing(folder, *words))


def test_an_unknown_field_in_a_set_is_named(folder, tmp_path):
    (tmp_path / "sets.json").write_text(json.dumps([["income"]]))
    words = missing(folder, "--protocol", folder / "protocol.json", "--sets", tmp_path / "sets.json")
    assert "a set of fields names 'income', which the model does not know" in refuse(*words)
