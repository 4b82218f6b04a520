"""`fragility harden`, and `fragility report` beside what it made."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import skops.io
from command_line import refuse, run
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg
from fragility.analysis.hardening.classifier import RateChoice, RateOutcome


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("harden")
    X, y = fg.load_credit_g()
    prepare = make_column_transformer(
        (StandardScaler(), make_column_selector(dtype_include="number")),
        (OneHotEncoder(sparse_output=False, handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
    )
    model = make_pipeline(prepare, LogisticRegression(max_iter=500)).fit(X[:700], y[:700])
    skops.io.dump(model, home / "model.skops")
    X.assign(risk=y)[:700].to_parquet(home / "train.parquet")
    X.assign(risk=y)[700:].to_parquet(home / "test.parquet")
    log = [("monday", "checking_status"), ("monday", "duration"), ("friday", "checking_status")]
    pd.DataFrame(log, columns=["event", "field"]).to_csv(home / "log.csv", index=False)
    fg.Protocol.fit(model, X[:700], baseline="typical").save(home / "protocol.json")
    return home


def words(folder, out, *more):
    train = folder / "train.parquet"
    return ("harden", folder / "model.skops", "--train", train, "--target", "risk", "--trust", "--out", out, *more)


def rows(folder, name):
    table = pd.read_parquet(folder / name)
    return table.drop(columns="risk"), table["risk"]


def plain(folder):
    return fg.load_model(folder / "model.skops", trust=True)


def test_the_model_it_writes_is_the_one_harden_makes(folder, tmp_path):
    done = run(*words(folder, tmp_path / "hard.skops", "--test", folder / "test.parquet", "--seed", 3))
    assert done.code == 0, done.err
    X, y = rows(folder, "train.parquet")
    expected = fg.harden(plain(folder), X, y, seed=3)
    made = fg.load_model(tmp_path / "hard.skops", trust=True)
    X_test, _ = rows(folder, "test.parquet")
    assert np.array_equal(made.estimator.predict_proba(X_test), expected.predict_proba(X_test))
    for word in (
        "before",
        "AUROC",
        "NLL",
        "ECE",
        "brittle",
        "exposure",
        "k*",
        "hold of a group",
        "values of other rows",
        "confident predictions break",
        "700 degraded copies",
    ):
        assert word in done.out, word
    assert f"written to {tmp_path / 'hard.skops'}" in done.err


def test_copies_of_several_modes(folder, tmp_path):
    more = ("--failure-modes", "lost,wrong", "--test", folder / "test.parquet")
    done = run(*words(folder, tmp_path / "hard.skops", *more))
    assert done.code == 0, done.err
    X, y = rows(folder, "train.parquet")
    expected = fg.harden(plain(folder), X, y, modes=("lost", "wrong"))
    made = fg.load_model(tmp_path / "hard.skops", trust=True)
    X_test, _ = rows(folder, "test.parquet")
    assert np.array_equal(made.estimator.predict_proba(X_test), expected.predict_proba(X_test))
    assert "trained on 700 rows and 1400 degraded copies" in done.out
    assert "values of other rows (as in training)" in done.out


def test_the_rate_can_be_chosen_by_a_tolerance(folder, tmp_path):
    test = folder / "test.parquet"
    done = run(*words(folder, tmp_path / "hard.joblib", "--test", test, "--max-loss", 1.0))
    assert done.code == 0, done.err
    assert "trained on 560 rows and judged on 140 others" in done.out and "0.4 *" in done.out
    X, y = rows(folder, "train.parquet")
    made = fg.load_model(tmp_path / "hard.joblib", trust=True)
    assert np.array_equal(made.estimator.predict_proba(X), fg.harden(plain(folder), X, y, rate=0.4).predict_proba(X))


def test_nothing_within_the_tolerance_writes_nothing(folder, tmp_path, monkeypatch):
    outcome = RateOutcome(0.0, None, 0.9, 0.0, 0.3, 0.1, 0.5, 0.1, 0.4, 1.0)
    plain_only = RateChoice(0.0, None, None, "roc_auc", 0.0, (outcome,))
    monkeypatch.setattr(fg, "choose_rate", lambda *_, **__: plain_only)
    done = run(*words(folder, tmp_path / "no.skops", "--max-loss", 0))
    assert done.code == 2 and "so nothing was written; raise --max-loss, or name a --rate" in done.err
    assert "the plain model stays" in done.out and not (tmp_path / "no.skops").exists()


def test_outages_protocol_and_training_rows_to_compare_on(folder, tmp_path):
    X, y = rows(folder, "train.parquet")
    done = run(*words(folder, tmp_path / "a.skops", "--outages", folder / "log.csv"))
    assert done.code == 0 and "700 training rows, which both models have seen" in done.err
    events = [{"checking_status", "duration"}, {"checking_status"}]
    expected = fg.harden(plain(folder), X, y, kind="outages", outages=events)
    made = fg.load_model(tmp_path / "a.skops", trust=True)
    assert np.array_equal(made.estimator.predict_proba(X), expected.predict_proba(X))
    done = run(*words(folder, tmp_path / "b.skops", "--protocol", folder / "protocol.json", "--kind", "attenuate"))
    assert done.code == 0, done.err
    protocol = fg.Protocol.load(folder / "protocol.json")
    expected = fg.harden(plain(folder), X, y, kind="attenuate", protocol=protocol)
    made = fg.load_model(tmp_path / "b.skops", trust=True)
    assert np.array_equal(made.estimator.predict_proba(X), expected.predict_proba(X))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--rate", "0.1", "--max-loss", "0.1"), "--max-loss chooses the rate"),
        (("--metric", "accuracy"), "--metric has no effect without --max-loss"),
        (("--kind", "outages"), "--kind outages needs recorded outages; name them with --outages"),
        (("--kind", "drop"), "kind must be one of mask, attenuate, outages, got 'drop'"),
        (("--markers", "?"), "--markers has no effect without --outages"),
        (("--out", "model.onnx"), "must end in .skops, .joblib"),
        (("--out", "model.cbm"), "a .cbm file can store only a CatBoostClassifier, this is a Pipeline"),
        (("--target", "class"), "--target names the column 'class', but"),
        (("--protocol", "p.json", "--baseline", "typical"), "--protocol already declares the baseline"),
    ],
)
def test_wrong_words_are_refused_in_one_sentence(folder, tmp_path, monkeypatch, more, sentence):
    monkeypatch.chdir(tmp_path)
    assert sentence in refuse(*words(folder, "h.skops", *more))
    assert not list(tmp_path.iterdir())


def test_the_model_itself_is_never_overwritten(folder):
    before = (folder / "model.skops").read_bytes()
    assert "both name" in refuse(*words(folder, folder / "model.skops"))
    assert (folder / "model.skops").read_bytes() == before


def test_what_cannot_be_hardened_is_said(folder, tmp_path):
    X, y = rows(folder, "train.parquet")
    skops.io.dump(KNeighborsClassifier().fit(X.select_dtypes("number"), y), tmp_path / "near.skops")
    done = refuse("harden", tmp_path / "near.skops", "--train", folder / "train.parquet", "--target", "risk", "--trust",
                  "--out", tmp_path / "h.skops")  # fmt: skip
    assert "KNeighborsClassifier takes no sample weights" in done


def test_a_report_of_both_says_which_predictions_changed(folder, tmp_path):
    run(*words(folder, tmp_path / "hard.skops", "--rate", 0.5))
    for name, model in (("plain", folder / "model.skops"), ("hard", tmp_path / "hard.skops")):
        done = run("audit", model, folder / "test.parquet", "--train", folder / "train.parquet", "--target", "risk",
                   "--trust", "--out", tmp_path / name)  # fmt: skip
        assert done.code == 0, done.err
    audits = [fg.Certificates.load(tmp_path / name).to_pandas() for name in ("plain", "hard")]
    sure = [a["confidence"] >= 0.9 for a in audits]  # all of them were searched, so all sets of groups count
    early = [confident & (a["smallest_size"] <= 2).fillna(False) for confident, a in zip(sure, audits, strict=True)]
    changed = audits[0]["predicted"] != audits[1]["predicted"]
    both = ("report", tmp_path / "plain", tmp_path / "hard")
    labelled = (*both, "--labels", folder / "test.parquet", "--target", "risk")
    done, saved = run(*labelled), run(*labelled, "--out", tmp_path / "changes.csv")
    assert done.code == saved.code == 0, done.err
    told = {line.strip() for line in re.sub(" {2,}", "  ", done.out).splitlines()}

    def is_told(words, count):
        return any(line == f"{words}  {count}" or line.startswith(f"{words}  {count}  ") for line in told)

    assert is_told("flip early in both", (early[0] & early[1]).sum()), done.out
    assert is_told("confident in both, no longer flip early", (early[0] & sure[1] & ~early[1]).sum())
    assert is_told("confident in both, flip early now", (early[1] & sure[0] & ~early[0]).sum())
    assert is_told("flipped early, and are no longer confident", (early[0] & ~sure[1]).sum())
    assert is_told("flip early now, and were not confident", (early[1] & ~sure[0]).sum())
    assert is_told("labels changed", changed.sum())
    truth = rows(folder, "test.parquet")[1].to_numpy()
    mended = (changed & (audits[1]["predicted"] == truth)).sum()
    assert is_told("of these, right now", mended) and is_told("of these, right before", changed.sum() - mended)
    table = pd.read_csv(tmp_path / "changes.csv")
    assert len(table) == 300 and table["early_after"].sum() == early[1].sum()
    assert set(table["audit"]) == {str(tmp_path / "hard")}
    assert "must end in .txt or .md or .html or .json or .parquet or .csv" in refuse(*both, "--out", "c.xlsx")
