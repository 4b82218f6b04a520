"""`fragility calibrate` as a user meets it."""

import numpy as np
import pandas as pd
import pytest
import skops.io
from command_line import refuse, run
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg
from fragility.analysis.calibration import FragilityTemperature


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("calibrate")
    X, y = fg.load_credit_g()
    table = X.assign(risk=y)
    numeric = list(make_column_selector(dtype_include="number")(X))
    nominal = [name for name in X.columns if name not in numeric]
    prepare = make_column_transformer((StandardScaler(), numeric), (OneHotEncoder(sparse_output=False), nominal))
    model = make_pipeline(prepare, HistGradientBoostingClassifier(max_iter=40, random_state=0)).fit(X[:500], y[:500])
    skops.io.dump(model, home / "model.skops")
    fg.Protocol.fit(model, X[:500]).save(home / "protocol.json")
    table[500:750].to_parquet(home / "validation.parquet")
    table[750:].to_csv(home / "test.csv", index=False)
    return home


def calibrate(folder, *more):
    return (
        "calibrate", folder / "model.skops", folder / "validation.parquet", "--protocol", folder / "protocol.json",
        "--target", "risk", "--trust", *more,
    )  # fmt: skip


def test_it_fits_reports_draws_and_corrects(folder, tmp_path):
    done = run(
        *calibrate(folder, "--out", tmp_path / "correction.json", "--test", folder / "test.csv"),
        *("--picture", tmp_path / "reliability.png", "--apply", folder / "test.csv"),
        *("--probabilities", tmp_path / "corrected.csv"),
    )
    assert done.code == 0, done.err
    assert "validation NLL" in done.out and "brittleness-aware" in done.out
    assert (tmp_path / "reliability.png").stat().st_size > 5_000
    corrected = pd.read_csv(tmp_path / "corrected.csv")
    assert list(corrected.columns) == ["id", "probability_bad", "probability_good", "fds"]
    np.testing.assert_allclose(corrected["probability_bad"] + corrected["probability_good"], 1.0)
    model = skops.io.load(folder / "model.skops", trusted=skops.io.get_untrusted_types(file=folder / "model.skops"))
    raw = model.predict_proba(pd.read_csv(folder / "test.csv").drop(columns="risk"))
    corrected_labels = corrected[["probability_bad", "probability_good"]].to_numpy().argmax(axis=1)
    np.testing.assert_array_equal(corrected_labels, raw.argmax(axis=1))
    fitted = FragilityTemperature.load(tmp_path / "correction.json")
    assert fitted.validation_nll_[fitted.eta_] <= fitted.validation_nll_[0.0]


def test_rows_without_labels_are_refused(folder, tmp_path):
    pd.read_csv(folder / "test.csv").drop(columns="risk").to_csv(tmp_path / "unlabelled.csv", index=False)
    said = refuse(
        "calibrate", folder / "model.skops", tmp_path / "unlabelled.csv", "--protocol", folder / "protocol.json",
        "--target", "risk", "--trust", "--out", tmp_path / "correction.json",
    )  # fmt: skip
    assert "--target names the column 'risk', but" in said
    assert not (tmp_path / "correction.json").exists()


def test_options_that_need_each_other(folder, tmp_path):
    assert "--test" in refuse(*calibrate(folder, "--out", tmp_path / "c.json", "--picture", tmp_path / "p.png"))
    assert "give both or neither" in refuse(
        *calibrate(folder, "--out", tmp_path / "c.json", "--apply", folder / "test.csv")
    )
