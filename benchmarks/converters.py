"""Does `fg.check_parity` find the known faults of converters, and does it stay silent on sound pairs?

python benchmarks/converters.py [--rows N] [--only TEXT] [--out FILE]

A fault that was reported is tried on the version that is installed; a library that is not installed is named. The pairs
of SOUND are the same model in two forms, so every alarm is a false one.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg

FOLDER = Path(tempfile.mkdtemp())
NUMBERS = ["duration", "credit_amount", "age", "installment_commitment", "residence_since", "existing_credits"]
NOMINAL = ["checking_status", "savings_status", "purpose"]
CLASSES = ["bad", "good"]
Pair = tuple[Any, Any, Any]  # the reference, the artefact, and the rows


@cache
def credit() -> tuple[pd.DataFrame, Any]:
    """The rows of Credit-G in a fixed random order, which the labels do not follow."""
    X, y = fg.load_credit_g()
    order = np.random.default_rng(0).permutation(len(X))
    return X.iloc[order].reset_index(drop=True), np.asarray(y)[order]


def split(
    names: list[str], gaps: float = 0.0, zeros: float = 0.0, centred: bool = False
) -> tuple[pd.DataFrame, Any, pd.DataFrame]:
    """Return training rows, their labels (0 and 1), and rows to compare, all with some cells missing or zero.

    centred: less their medians, so that values lie on both sides of 0, which LightGBM may read as missing.
    """
    X, y = credit()
    X, rng = X[names], np.random.default_rng(1)
    if centred:
        X = X - X.median() + 0.5
    if gaps:
        X = X.mask(rng.random(X.shape) < gaps)
    if zeros:
        X = X.mask(rng.random(X.shape) < zeros, 0.0)
    return X[:600], (y[:600] == "good").astype(int), X[600:]


def save_onnx(graph: Any, name: str) -> fg.Model:
    (FOLDER / name).write_bytes(graph.SerializeToString())
    return fg.load_model(FOLDER / name, classes=[0, 1])


def by_skl2onnx(model: Any, rows: pd.DataFrame) -> fg.Model:
    from skl2onnx import to_onnx

    graph = to_onnx(model, rows[:1].to_numpy(dtype=np.float32), options={"zipmap": False})
    return save_onnx(graph, f"{type(model).__name__}.onnx")


def by_onnxmltools(model: Any, rows: pd.DataFrame) -> fg.Model:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    convert = onnxmltools.convert_lightgbm if "LGBM" in type(model).__name__ else onnxmltools.convert_xgboost
    graph = convert(model, initial_types=[("input", FloatTensorType([None, rows.shape[1]]))])
    return save_onnx(graph, f"{type(model).__name__}-tools.onnx")


def by_treelite(tree: Any) -> fg.Model:
    import treelite

    single = np.float32 if tree.input_type == "float32" else np.float64

    def ask(rows: Any) -> Any:
        p = treelite.gtil.predict(tree, np.ascontiguousarray(rows, dtype=single)).astype(float)
        p = p.reshape(len(rows), -1)
        return p if p.shape[1] == 2 else np.concatenate([1 - p, p], axis=1)

    return fg.Model.wrap(ask, classes=[0, 1])


def to_pmml(rows: pd.DataFrame, labels: Any) -> tuple[Any, Path]:
    import lightgbm
    from sklearn2pmml import sklearn2pmml
    from sklearn2pmml.pipeline import PMMLPipeline

    model = lightgbm.LGBMClassifier(n_estimators=20, verbose=-1)
    pipeline = PMMLPipeline([("classifier", model)]).fit(rows, labels)
    path = FOLDER / "lightgbm.pmml"
    sklearn2pmml(pipeline, str(path))
    return model, path


def by_pypmml(path: Path) -> fg.Model:
    from pypmml import Model as Evaluator

    evaluator = Evaluator.load(str(path))
    return fg.Model.wrap(lambda rows: evaluator.predict(rows).to_numpy(dtype=float), classes=[0, 1])


def by_jpmml(path: Path) -> fg.Model:
    from jpmml_evaluator import make_evaluator

    evaluator = make_evaluator(str(path)).verify()
    names = ["probability(0)", "probability(1)"]
    return fg.Model.wrap(lambda rows: evaluator.evaluateAll(rows)[names].to_numpy(dtype=float), classes=[0, 1])


def lightgbm_model(rows: Any, labels: Any, **settings: Any) -> Any:
    import lightgbm

    return lightgbm.LGBMClassifier(n_estimators=30, verbose=-1, **settings).fit(rows, labels)


def xgboost_model(rows: Any, labels: Any) -> Any:
    import xgboost

    return xgboost.XGBClassifier(n_estimators=30, max_depth=4).fit(rows, labels)


def xgboost_of_array(rows: Any, labels: Any) -> Any:
    return xgboost_model(rows.to_numpy(), labels)  # onnxmltools knows columns without names only


def catboost_model(rows: Any, labels: Any) -> Any:
    import catboost

    settings = {"iterations": 30, "verbose": 0, "allow_writing_files": False, "thread_count": 2}
    return catboost.CatBoostClassifier(**settings).fit(rows, labels)


def forest(rows: Any, labels: Any) -> Any:
    return RandomForestClassifier(n_estimators=30, max_depth=8, random_state=0).fit(rows, labels)


# --- reported faults ------------------------------------------------------------------------------------------


def forest_to_onnx() -> Pair:
    X, y, rest = split(NUMBERS, gaps=0.15)
    model = forest(X, y)
    return model, by_skl2onnx(model, X), rest.dropna()


def forest_to_treelite() -> Pair:
    import treelite

    X, y, rest = split(NUMBERS, gaps=0.15)
    model = forest(X, y)
    return model, by_treelite(treelite.sklearn.import_model(model)), rest.dropna()


def zeros_to_treelite() -> Pair:
    import treelite

    X, y, rest = split(NUMBERS, zeros=0.15, centred=True)
    model = lightgbm_model(X, y, zero_as_missing=True)
    return model, by_treelite(treelite.frontend.from_lightgbm(model.booster_)), rest[(rest != 0).all(axis=1)]


def zeros_to_onnx() -> Pair:
    X, y, rest = split(NUMBERS, zeros=0.15, centred=True)
    model = lightgbm_model(X, y, zero_as_missing=True)
    return model, by_onnxmltools(model, X), rest  # rows with zeros: without them no state holds one


def dense_to_pypmml() -> Pair:
    X, y, rest = split(NUMBERS, centred=True)
    model, path = to_pmml(X, y)
    return model, by_pypmml(path), rest


def dense_to_jpmml() -> Pair:
    X, y, rest = split(NUMBERS, centred=True)
    model, path = to_pmml(X, y)
    return model, by_jpmml(path), rest


# --- sound pairs ----------------------------------------------------------------------------------------------


def reload(model: Any, name: str, **loading: Any) -> Any:
    """Save a model as its name says, and load it."""
    import skops.io

    path = FOLDER / name
    if path.suffix == ".skops":
        skops.io.dump(model, path)
    elif path.suffix in (".joblib", ".pkl"):
        joblib.dump(model, path, compress=3)
    elif path.suffix == ".txt":
        model.booster_.save_model(path)
    else:
        model.save_model(path)
    return fg.load_model(path, trust=True, **loading)


def saved(make: Callable[[Any, Any], Any], name: str, gaps: float = 0.0) -> Pair:
    X, y, rest = split(NUMBERS, gaps)
    model = make(X, y)
    return model, reload(model, name), rest


def exported(make: Callable[[Any, Any], Any], convert: Callable[[Any, Any], Any], gaps: float = 0.0) -> Pair:
    X, y, rest = split(NUMBERS, gaps)
    model = make(X, y)
    return model, convert(model, X), rest


def pipeline(unknown: str = "error") -> tuple[Any, pd.DataFrame]:
    """Return a fitted pipeline and rows; with ``ignore`` it answers where a text is missing."""
    X, y = credit()
    X = X[NUMBERS + NOMINAL]
    encoder = OneHotEncoder(handle_unknown=unknown, sparse_output=False)
    encode = make_column_transformer((encoder, NOMINAL), (StandardScaler(), NUMBERS))
    return make_pipeline(encode, LogisticRegression(max_iter=2000)).fit(X[:600], y[:600]), X[600:]


def pipeline_saved(name: str) -> Pair:
    model, rest = pipeline()
    return model, reload(model, name), rest


def pipeline_to_onnx(unknown: str = "error") -> Pair:
    from skl2onnx import to_onnx

    model, rest = pipeline(unknown)
    (FOLDER / "pipeline.onnx").write_bytes(to_onnx(model, rest[:1]).SerializeToString())
    return model, fg.load_model(FOLDER / "pipeline.onnx"), rest


def pipeline_behind_json() -> Pair:
    """A service: rows go as JSON, probabilities come back as JSON."""
    model, rest = pipeline()

    def ask(rows: Any) -> Any:
        sent = json.loads(rows.to_json(orient="records", double_precision=15))
        answer = model.predict_proba(pd.DataFrame(sent, columns=rows.columns).astype(dict(rows.dtypes)))
        return np.array(json.loads(json.dumps(answer.tolist())))

    return model, fg.Model.wrap(ask, classes=CLASSES), rest


def lightgbm_categories() -> Pair:
    X, y = credit()
    X = X[NUMBERS + NOMINAL].astype(dict.fromkeys(NOMINAL, "category"))
    model = lightgbm_model(X[:600], y[:600])
    return model, reload(model, "categories.txt", classes=CLASSES), X[600:]


def catboost_to_onnx(model: Any, _: Any) -> Any:
    model.save_model(str(FOLDER / "catboost.onnx"), format="onnx")
    return fg.load_model(FOLDER / "catboost.onnx", classes=[0, 1])


def sklearn_to_treelite(model: Any, _: Any) -> Any:
    import treelite

    return by_treelite(treelite.sklearn.import_model(model))


def booster_to_treelite(model: Any, _: Any) -> Any:
    import treelite

    if "LGBM" in type(model).__name__:
        return by_treelite(treelite.frontend.from_lightgbm(model.booster_))
    return by_treelite(treelite.frontend.from_xgboost(model.get_booster()))


def gradient_boosting(rows: Any, labels: Any) -> Any:
    return GradientBoostingClassifier(n_estimators=30, random_state=0).fit(rows, labels)


def hist_boosting(rows: Any, labels: Any) -> Any:
    return HistGradientBoostingClassifier(max_iter=30, random_state=0).fit(rows, labels)


def logistic(rows: Any, labels: Any) -> Any:
    return LogisticRegression(max_iter=5000).fit(rows, labels)


def scaled_network(rows: Any, labels: Any) -> Any:
    network = MLPClassifier((16,), max_iter=300, random_state=0)
    return make_pipeline(StandardScaler(), network).fit(rows, labels)


FAULTS: dict[str, tuple[str, str, Callable[[], Pair]]] = {
    "forest with gaps, skl2onnx": ("sklearn-onnx #1253", "skl2onnx", forest_to_onnx),
    "forest without gaps, skl2onnx": ("sklearn-onnx #1253", "skl2onnx", lambda: exported(forest, by_skl2onnx)),
    "forest with gaps, treelite": ("treelite #706", "treelite", forest_to_treelite),
    "LightGBM zero_as_missing, treelite": ("treelite #376", "treelite", zeros_to_treelite),
    "LightGBM zero_as_missing, onnxmltools": ("onnx #6280", "onnxmltools", zeros_to_onnx),
    "LightGBM without gaps, PMML, pypmml": ("pypmml #34", "pypmml", dense_to_pypmml),
    "pipeline that ignores unknown texts, skl2onnx": (
        "ONNX texts have no gaps",
        "skl2onnx",
        lambda: pipeline_to_onnx("ignore"),
    ),
    "LightGBM without gaps, PMML, JPMML": ("jpmml-lightgbm #51", "sklearn2pmml", dense_to_jpmml),
}

SOUND: dict[str, Callable[[], Pair]] = {
    "pipeline, .skops": lambda: pipeline_saved("pipeline.skops"),
    "pipeline, .joblib": lambda: pipeline_saved("pipeline.joblib"),
    "pipeline, skl2onnx, an input per column": pipeline_to_onnx,
    "pipeline, a service that speaks JSON": pipeline_behind_json,
    "forest, .pkl": lambda: saved(forest, "forest.pkl"),
    "HistGradientBoosting with gaps, .joblib": lambda: saved(hist_boosting, "hist.joblib", 0.15),
    "LightGBM, .txt": lambda: saved(lightgbm_model, "plain.txt"),
    "LightGBM with gaps, .txt": lambda: saved(lightgbm_model, "gaps.txt", 0.15),
    "LightGBM with categories, .txt": lightgbm_categories,
    "XGBoost, .json": lambda: saved(xgboost_model, "plain.json"),
    "XGBoost with gaps, .ubj": lambda: saved(xgboost_model, "gaps.ubj", 0.15),
    "CatBoost with gaps, .cbm": lambda: saved(catboost_model, "gaps.cbm", 0.15),
    "logistic regression, skl2onnx": lambda: exported(logistic, by_skl2onnx),
    "network, skl2onnx": lambda: exported(scaled_network, by_skl2onnx),
    "GradientBoosting, skl2onnx": lambda: exported(gradient_boosting, by_skl2onnx),
    "LightGBM with gaps, onnxmltools": lambda: exported(lightgbm_model, by_onnxmltools, 0.15),
    "XGBoost with gaps, onnxmltools": lambda: exported(xgboost_of_array, by_onnxmltools, 0.15),
    "CatBoost, its own ONNX": lambda: exported(catboost_model, catboost_to_onnx),
    "HistGradientBoosting with gaps, treelite": lambda: exported(hist_boosting, sklearn_to_treelite, 0.15),
    "LightGBM with gaps, treelite": lambda: exported(lightgbm_model, booster_to_treelite, 0.15),
    "XGBoost with gaps, treelite": lambda: exported(xgboost_model, booster_to_treelite, 0.15),
}


# --- running ------------------------------------------------------------------------------------------------


def try_pair(make: Callable[[], Pair], rows: int) -> dict[str, Any]:
    """Return what a comparison found, or why there is none."""
    start = time.perf_counter()
    try:
        reference, artefact, X = make()
    except ImportError as error:
        return {"found": None, "why": f"{error.name} is not installed"}
    except Exception as error:  # a converter that fails makes no artefact
        return {"found": None, "why": f"the converter fails: {str(error).splitlines()[0][:80]}"}
    found = fg.check_parity(reference, artefact, X, most_rows=rows)
    alarms = {one.kind: one.alarms for one in found.kinds if one.alarms}
    example = found.smallest
    return {
        "found": not found.agrees,
        "states": found.states,
        "clean": found["clean"].alarms,
        "alarms": alarms,
        "labels": sum(one.labels for one in found.kinds),
        "largest": max(one.probability.largest for one in found.kinds),
        "ties": sum(one.ties for one in found.kinds),
        "rounded": sum(one.rounded for one in found.kinds),
        "outside": sum(one.outside for one in found.kinds),
        "example": None if example is None else {"changed": example.changed, "a": str(example.a), "b": str(example.b)},
        "notes": list(found.notes),
        "seconds": round(time.perf_counter() - start, 1),
    }


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=150, help="rows of each comparison")
    parser.add_argument("--only", default="", help="pairs whose name holds this text")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("ORT_LOGGING_LEVEL", "3")
    document: dict[str, Any] = {"rows": given.rows, "faults": {}, "sound": {}}
    for name, (issue, library, make) in FAULTS.items():
        if given.only in name:
            own = {"issue": issue, "version": f"{library} {installed(library)}"} | try_pair(make, given.rows)
            document["faults"][name] = own
            verdict = {None: "not tried", True: "found", False: "no difference"}[own["found"]]
            print(f"{verdict:14} {name} ({issue}, {own['version']}) {own.get('alarms', own.get('why'))}", flush=True)
    for name, make in SOUND.items():
        if given.only in name:
            own = try_pair(make, given.rows)
            document["sound"][name] = own
            verdict = {None: "not tried", True: "FALSE ALARM", False: "silent"}[own["found"]]
            print(f"{verdict:14} {name}: {own.get('states', own.get('why'))} states", flush=True)
            if own["found"]:
                print(own["alarms"], own["largest"], own["example"], own["notes"])
    tried = [own for own in document["sound"].values() if own["found"] is not None]
    print(f"{sum(own['found'] for own in tried)} false alarms on {len(tried)} sound pairs")
    if given.out is not None:
        given.out.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
