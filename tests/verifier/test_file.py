"""The verifier is one file: it runs without the library, as a command and in Python, and says what it did not prove."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import fragility_check as checker
import joblib
import numpy as np
import pandas as pd
import pytest
from audited_cases import EVERYTHING, SMALL, Audited, make_audit
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import fragility as fg

FILE = Path(checker.__file__)
ALLOWED = {"numpy", "pyarrow", *sys.stdlib_module_names}
LATE = {"pandas", "skops", "joblib"}  # only inside functions: to hand rows to a pipeline, and to load a model


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    case = make_audit(SMALL, tmp_path_factory.mktemp("file") / "audit")
    joblib.dump(case.model, case.folder.parent / "model.joblib")
    case.X.to_parquet(case.folder.parent / "rows.parquet")
    case.X_train.to_parquet(case.folder.parent / "train.parquet")
    return case


def list_imports(path: Path, inside: bool) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if inside else tree.body
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}


def test_it_shares_no_code_with_the_library() -> None:
    assert list_imports(FILE, inside=False) <= ALLOWED
    assert {name.split(".")[0] for name in list_imports(FILE, inside=True)} <= ALLOWED | LATE
    for path in (FILE.parents[1] / "src" / "fragility").rglob("*.py"):
        assert "fragility_check" not in list_imports(path, inside=True), path
        named = "fragility_check" in path.read_text()
        assert not named or path.parent.name == "packing", path  # which copies the file
    code = "import sys, fragility as fg; fg.pack, fg.verify_pack, fg.verify; print('fragility_check' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def run(case: Audited, *options: str, audit: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the file where only its own folder is on the path, so that the library cannot be found there."""
    place = case.folder.parent
    command = [sys.executable, "-W", "ignore", str(FILE), str(audit or case.folder), str(place / "model.joblib")]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [*command, str(place / "rows.parquet"), *options], capture_output=True, text=True, cwd=place, env=environment
    )


def test_the_command_prints_two_lists_and_ends_with_0(case: Audited) -> None:
    done = run(case, "--train", str(case.folder.parent / "train.parquet"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("PROVED\n  - the digest of the manifest (1)\n")
    assert "\nNOT PROVED\n  - " in done.stdout
    assert "FALSE" not in done.stdout and "training ranges" in done.stdout


def test_a_false_claim_ends_with_1_and_is_named(case: Audited, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(case.folder, tmp_path / "a"))
    path = next(folder.glob("modes-*"))
    path.write_bytes(path.read_bytes() + b" ")
    done = run(case, audit=folder)
    assert done.returncode == 1 and done.stdout.startswith("FALSE\n  - the digests of all files: 1 of 7; modes-00000-")


def test_what_cannot_be_checked_ends_with_2(case: Audited, tmp_path: Path) -> None:
    result = case.check(tmp_path / "nowhere")
    assert result.exit_code == 2 and "nowhere" in result.lists["not proved"][0]
    others = checker.check(case.folder, case.X.iloc[:3], **checker.take_apart(case.model))
    assert others.exit_code == 2 and "the rows given are not those of the audit" in others.lists["not proved"][0]
    fewer = checker.check(case.folder, case.X.drop(columns=["age"]), **checker.take_apart(case.model))
    assert fewer.exit_code == 2 and "the rows have no column 'age'" in fewer.lists["not proved"][0]


def test_another_model_and_other_rows_are_refused(case: Audited) -> None:
    rows = case.X.copy()
    rows.loc[rows.index[0], "age"] += 1
    result = checker.check(case.folder, rows, **checker.take_apart(case.model))
    assert result.exit_code == 1 and "the rows are those that were audited" in result.lists["false"][0]
    turned = checker.check(case.folder, case.X, lambda X: case.model.predict_proba(X)[:, ::-1])
    assert turned.exit_code == 1 and any("classes predicted" in line for line in turned.lists["false"])
    trained = case.check(train=case.X_train.iloc[1:])
    assert trained.exit_code == 1 and "the training rows" in trained.lists["false"][0]


def test_a_sample_says_what_it_is_worth(case: Audited) -> None:
    result = case.check(sample=4, train=None)
    assert result.exit_code == 0
    open_ = "\n".join(result.lists["not proved"])
    assert "rows not asked again; 1 false of 10 escape a sample of 4 with probability 0.6 (6)" in open_
    assert "that baselines, ranges and catalogue come from the training rows: none were given" in open_


def test_a_selection_says_what_is_missing(case: Audited, tmp_path: Path) -> None:
    part = fg.Certificates.load(case.folder)[:3].save(tmp_path / "part")
    result = case.check(part)
    assert result.exit_code == 0 and "audited rows whose certificates are not here (7)" in result.lists["not proved"]


def test_evidence_packs_and_rows_of_any_kind_are_taken(case: Audited, tmp_path: Path) -> None:
    fg.pack(case.folder, tmp_path / "pack")
    archive = tmp_path / "pack.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (tmp_path / "pack").rglob("*"):
            file.write(path, path.relative_to(tmp_path / "pack"))
    asked = checker.take_apart(case.model)
    assert checker.check(tmp_path / "pack", case.X, **asked).exit_code == 0
    assert checker.check(archive, case.X, **asked).exit_code == 0


def test_dates_single_precision_and_large_whole_numbers(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    n = 400
    start = pd.Timestamp("2020-01-01")
    X = pd.DataFrame(
        {
            "day": start + pd.to_timedelta(chance.integers(0, 900, n), "D"),
            "moment": start + pd.to_timedelta(chance.integers(0, 90_000_000, n), "s"),
            "single": chance.normal(size=n).astype("float32"),
            "account": chance.integers(2**54, 2**60, n),
            "flag": chance.random(n) > 0.5,
            "number": np.where(chance.random(n) < 0.2, np.nan, chance.integers(0, 9, n)),
        }
    )
    X.loc[3, "day"] = pd.NaT
    y = (X["number"].fillna(4) + (X["day"] - start).dt.days.fillna(0) / 300 + X["single"] > 5).astype(int)
    model = make_pipeline(FunctionTransformer(read_dates), HistGradientBoostingClassifier(max_iter=20)).fit(X, y)
    protocol = fg.Protocol.fit(model, X, space="raw")
    folder = fg.audit(model, X[:12], protocol, **EVERYTHING).save(tmp_path / "a")
    result = checker.check(folder, X[:12], **checker.take_apart(model), train=X)
    assert result.exit_code == 0, str(result)


@pytest.mark.parametrize("what", ["gaps in numbers", "scaled under its own names", "many groups", "sure of itself"])
def test_ordinary_audits_are_proved_with_their_training_rows(what: str, tmp_path: Path) -> None:
    chance, wide = np.random.default_rng(1), what == "many groups"
    X = pd.DataFrame(chance.normal(0.0, 50.0, (400, 30 if wide else 4))).add_prefix("f")
    noise = 0.0 if what == "sure of itself" else 150.0  # without noise, probabilities within 1e-11 of 0 and 1
    y = (X.sum(axis=1) + chance.normal(0.0, noise, len(X)) > 0).astype(int)
    model = {
        "gaps in numbers": HistGradientBoostingClassifier(max_iter=10),
        "scaled under its own names": make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()),
        "many groups": LogisticRegression(max_iter=1000),
        "sure of itself": LogisticRegression(max_iter=1000),
    }[what]
    if what == "gaps in numbers":
        X.loc[:30, "f0"] = np.nan
    model.fit(X, y)
    certs = fg.audit(model, X[:15], fg.Protocol.fit(model, X), lattice=wide, modes=True)
    result = checker.check(certs.save(tmp_path / "a"), X[:15], **checker.take_apart(model), train=X)
    assert result.exit_code == 0, str(result)
    assert fg.verify(tmp_path / "a", model, X[:15], train=X)


def read_dates(table: pd.DataFrame) -> pd.DataFrame:
    start = pd.Timestamp("2020-01-01")
    days = (table["day"] - start).dt.days
    return table.assign(day=days, moment=(table["moment"] - start).dt.total_seconds()).astype(float)
