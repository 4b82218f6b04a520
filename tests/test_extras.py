"""A plain install: what an extra would bring is said once, and a missing one is named with the way to get it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import joblib
import pytest
from places import SOURCE
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

import fragility as fg
from fragility.base import libraries
from fragility.base.libraries import EXTRA_OF

PLAIN = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] in {absent!r} else find(name, *rest)
from fragility.cli import main
main({words!r})
"""
BROUGHT_BY = {"cryptography": "securesystemslib", "mlflow": "mlflow-skinny", "yaml": "mlflow-skinny"}
BROUGHT_BY |= {"prometheus_client": "prometheus-client"}
FIELDS = ["duration", "credit_amount", "age"]


def run_without(absent: list[str], *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process in which some libraries cannot be imported."""
    code = PLAIN.format(absent=absent, words=[str(word) for word in words])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    X, y = fg.load_credit_g()
    X = X[FIELDS].astype(float)
    models = {
        "forest": RandomForestClassifier(5, max_depth=3, random_state=0),
        "logistic": LogisticRegression(max_iter=2000),
        "network": MLPClassifier((4,), max_iter=20, random_state=0),
    }
    for name, model in models.items():
        joblib.dump(model.fit(X[:300], y[:300]), folder / f"{name}.joblib")
    X[:300].to_parquet(folder / "train.parquet")
    X[300:320].to_parquet(folder / "test.parquet")
    return folder


def audit_words(case: Path, model: str, out: Path, *more: object) -> list[object]:
    rows = [case / f"{model}.joblib", case / "test.parquet", "--train", case / "train.parquet", "--trust"]
    return ["audit", *rows, "--out", out / "audit", *more]


@pytest.mark.repeats
@pytest.mark.parametrize(
    ("model", "absent", "engine", "extra"),
    [("forest", "numba", "trees", "trees"), ("network", "torch", "neural", "torch")],
)
def test_what_an_extra_would_bring_is_said_once(case, tmp_path, model, absent, engine, extra) -> None:
    done = run_without([absent], *audit_words(case, model, tmp_path))
    assert done.returncode == 0 and "engine blackbox" in done.stdout, done.stderr
    name = {"forest": "RandomForestClassifier", "network": "MLPClassifier"}[model]
    said = (
        f"warning: {name} is asked as a black box, which is slower: the {engine} engine needs {absent}; install it "
        f"with: pip install 'fragility[{extra}]'"
    )
    assert done.stderr.count(said) == 1
    insisted = run_without([absent], *audit_words(case, model, tmp_path / "b", "--engine", engine))
    assert insisted.returncode == 2 and insisted.stderr.count("\n") == 1
    assert f"the {engine} engine needs {absent}; install it with: pip install 'fragility[{extra}]'" in insisted.stderr
    assert "--engine auto" not in insisted.stderr


def test_only_what_would_help_is_said(case, tmp_path) -> None:
    """A linear model has its engine; numba would only tabulate the failing sets of its rows."""
    done = run_without(["numba", "torch"], *audit_words(case, "logistic", tmp_path))
    assert done.returncode == 0 and "engine linear" in done.stdout, done.stderr
    assert done.stderr.count("pip install") == 1
    assert "the exact search of failing sets needs numba; install it with: pip install " in done.stderr


@pytest.mark.slow
def test_the_demo_needs_no_extra_and_says_which_one_a_suggestion_needs(tmp_path) -> None:
    done = run_without([*EXTRA_OF], "demo", "--out", tmp_path / "demo")
    assert done.returncode == 0 and "reliable first" in done.stdout and "flips when lost" in done.stdout, done.stderr
    assert done.stderr.count("pip install") == 1
    assert "the review workbench needs duckdb and fastapi and uvicorn; install it with: pip install " in done.stderr


@pytest.mark.parametrize(
    ("absent", "words", "extra"),
    [
        (["duckdb"], ["review", "AUDIT"], "review"),
        (["fastapi", "uvicorn"], ["review", "AUDIT"], "review"),
        (["fastapi", "uvicorn"], ["serve", "m.skops", "--protocol", "p.json"], "serve"),
        (["prometheus_client"], ["serve", "m.skops", "--protocol", "p.json"], "serve"),
        (["securesystemslib"], ["sign", "keys", "--out", "KEY"], "sign"),
        (["ray"], ["audit", "m.skops", "rows.parquet", "--out", "a", "--on", "ray"], "ray"),
        (["pyspark"], ["audit", "m.skops", "rows.parquet", "--out", "a", "--on", "spark"], "spark"),
        (["onnx", "onnxruntime"], ["audit", "GRAPH", "rows.parquet", "--out", "a", "--train", "train.parquet"], "onnx"),
        (["torch"], ["audit", "NETWORK", "rows.parquet", "--out", "a", "--train", "train.parquet"], "torch"),
    ],
)
def test_a_missing_extra_is_named(tmp_path, absent, words, extra) -> None:
    (tmp_path / "network.safetensors").write_bytes(b"")
    (tmp_path / "graph.onnx").write_bytes(b"")
    here = {"KEY": tmp_path / "key", "AUDIT": tmp_path, "NETWORK": tmp_path / "network.safetensors"}
    here |= {"GRAPH": tmp_path / "graph.onnx"}
    code = PLAIN.format(absent=absent, words=[str(here.get(word, word)) for word in words])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert f"needs {' and '.join(absent)}; install it with: pip install 'fragility[{extra}]'" in done.stderr


def test_libraries_of_python_functions_are_named(case, monkeypatch) -> None:
    model = joblib.load(case / "logistic.joblib")
    X = fg.load_credit_g()[0][FIELDS].astype(float)
    certs = fg.audit(model, X[:300], fg.Protocol.fit(model, X[:300]), progress=False)
    sure = fg.Stress(tau_confidence=0.6)
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(fg.FragilityError, match=r"to_polars needs polars; .* 'fragility\[polars\]'"):
        certs.to_polars()
    with pytest.raises(fg.FragilityError, match=r"group-SHAP needs shap; .* 'fragility\[shap\]'"):
        fg.evaluate(certs, model, X[:300], baselines=fg.Baselines(random_orders=0, shap_rows=2), stress=sure)


def test_the_extras_are_those_of_the_package() -> None:
    declared = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for library, extra in EXTRA_OF.items():
        named = [re.split(r"[\[>=<]", requirement)[0] for requirement in declared[extra]]
        assert BROUGHT_BY.get(library, library) in named
    assert set(EXTRA_OF.values()) == set(declared) - {"all", "docs", "dev"}


def test_no_other_sentence_tells_how_to_install_an_extra() -> None:
    elsewhere = [path.name for path in SOURCE.rglob("*.py") if "'fragility[" in path.read_text(encoding="utf-8")]
    assert elsewhere == ["libraries.py"]
