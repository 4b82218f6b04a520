"""Train small models with one version of a library, and audit them; `.ci/slow` runs it in environments of its own.

    python versions.py train LIBRARY FOLDER    # needs numpy and the library alone
    python versions.py audit FOLDER            # needs fragility and the library

`audit` compares the native engine with the black box, certificate by certificate, and verifies the audit. It prints one
word, and exits with 1 if something differs or fails.
"""

import sys
import warnings
from pathlib import Path

import numpy as np

ROWS, COLUMNS, CLASSES = 400, 6, 3


def make_rows(gaps: bool) -> tuple[np.ndarray, np.ndarray]:
    """Numbers, a column of six codes, and missing values where the library takes them; three classes."""
    chance = np.random.default_rng(7)
    rows = chance.normal(size=(ROWS, COLUMNS))
    rows[:, 5] = chance.integers(0, 6, ROWS)
    noise = chance.normal(scale=0.5, size=ROWS)
    score = rows[:, 0] - rows[:, 1] * rows[:, 2] + (rows[:, 5] % 2) + noise
    labels = np.digitize(score, np.quantile(score, [1 / 3, 2 / 3]))
    if gaps:
        rows[chance.random((ROWS, COLUMNS)) < 0.1] = np.nan
        rows[:, 5] = np.where(np.isnan(rows[:, 5]), 0, rows[:, 5])  # a code is always known
    return rows, labels


def train_xgboost(rows, labels, folder):
    import xgboost

    matrix = xgboost.DMatrix(rows, labels)
    for kind, objective, n in (("binary", "binary:logistic", 0), ("several", "multi:softprob", CLASSES)):
        data = xgboost.DMatrix(rows, labels > 0) if kind == "binary" else matrix
        settings = {"objective": objective, "max_depth": 4, "seed": 0} | ({"num_class": n} if n else {})
        booster = xgboost.train(settings, data, num_boost_round=12)
        booster.save_model(str(folder / f"{kind}.json"))
        if kind == "binary":
            booster.save_model(str(folder / f"{kind}.ubj"))
        yield kind, booster.predict(data)


def train_lightgbm(rows, labels, folder):
    import lightgbm

    for kind, target in (("binary", (labels > 0).astype(int)), ("several", labels)):
        settings = {"objective": "binary"} if kind == "binary" else {"objective": "multiclass", "num_class": CLASSES}
        settings |= {"num_leaves": 15, "verbose": -1, "seed": 0, "deterministic": True}
        data = lightgbm.Dataset(rows, target, categorical_feature=[5])
        booster = lightgbm.train(settings, data, num_boost_round=12)
        booster.save_model(str(folder / f"{kind}.txt"))
        yield kind, booster.predict(rows)


def train_catboost(rows, labels, folder):
    import catboost

    for kind, target in (("binary", (labels > 0).astype(int)), ("several", labels)):
        model = catboost.CatBoostClassifier(iterations=12, depth=4, random_seed=0, verbose=0, allow_writing_files=False)
        model.fit(rows, target)
        model.save_model(str(folder / f"{kind}.cbm"))
        yield kind, model.predict_proba(rows)


def train_sklearn(rows, labels, folder):
    import joblib
    from sklearn import ensemble, linear_model, pipeline, preprocessing

    full = np.nan_to_num(rows)
    scaled = pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression())
    models = {
        "hist": (ensemble.HistGradientBoostingClassifier(max_iter=12, random_state=0), rows),
        "forest": (ensemble.RandomForestClassifier(12, max_depth=6, random_state=0), rows),
        "boosting": (ensemble.GradientBoostingClassifier(n_estimators=12, random_state=0), full),
        "linear": (scaled, full),
    }
    for kind, (model, given) in models.items():
        joblib.dump(model.fit(given, labels), folder / f"{kind}.joblib")
        np.save(folder / f"{kind}-rows.npy", given)
        yield kind, model.predict_proba(given)


TRAINERS = {"xgboost": train_xgboost, "lightgbm": train_lightgbm, "catboost": train_catboost}
TRAINERS["scikit-learn"] = train_sklearn


def train(library: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows, labels = make_rows(gaps=True)
    np.save(folder / "rows.npy", rows)
    for kind, answers in TRAINERS[library](rows, labels, folder):
        np.save(folder / f"{kind}-answers.npy", np.asarray(answers, dtype=np.float64))


def audit(folder: Path) -> None:
    import fragility as fg

    files = sorted(path for path in folder.iterdir() if path.suffix != ".npy")
    if not files:
        raise SystemExit("no model files")
    for path in files:
        own = folder / f"{path.stem}-rows.npy"
        rows = np.load(own if own.exists() else folder / "rows.npy")
        model = fg.load_model(path, trust=True)
        answers = np.load(folder / f"{path.stem}-answers.npy")
        now = model.probabilities(rows)
        gap = np.abs((now if answers.ndim == 2 else now[:, 1]) - answers).max()
        if gap > 1e-5:
            raise SystemExit(f"{path.name}: probabilities differ by {gap:.2g} from those of the version that wrote it")
        protocol = fg.Protocol.fit(model, rows)
        native = fg.audit(model, rows[:60], protocol, progress=False)
        if native.manifest.engine.name == "blackbox":
            raise SystemExit(f"{path.name}: no engine reads it")
        asked = fg.audit(model, rows[:60], protocol, engine="blackbox", progress=False)
        for one, other in zip(native, asked, strict=True):
            if (one.path, one.flip_budget, one.predicted) != (other.path, other.flip_budget, other.predicted):
                raise SystemExit(f"{path.name}: row {one.id} differs from the black box")
        if not fg.verify(native, model, rows[:60]):
            raise SystemExit(f"{path.name}: the audit does not verify")
    print("passes")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    train(sys.argv[2], Path(sys.argv[3])) if sys.argv[1] == "train" else audit(Path(sys.argv[2]))
