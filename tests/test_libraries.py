"""Which library a model is from, found without importing any."""

import subprocess
import sys

import joblib
import numpy as np
import pytest
from lightgbm import LGBMClassifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg
from fragility.base.libraries import VERSIONED, family_of, is_torch_module, library_of, library_versions


class Own(RandomForestClassifier):
    """A subclass of a known class is another family: it may predict otherwise."""


def test_a_family_is_the_exact_class_and_its_library():
    assert family_of(LogisticRegression()) == "sklearn.LogisticRegression"
    assert family_of(Own()) == f"{__name__.split('.')[0]}.Own"
    assert library_of(np.zeros(1)) == "numpy"


@pytest.mark.parametrize(
    ("library", "make", "family"),
    [
        ("xgboost", lambda m: m.XGBClassifier(), "xgboost.XGBClassifier"),
        ("xgboost", lambda m: m.Booster(), "xgboost.Booster"),
        ("lightgbm", lambda m: m.LGBMClassifier(), "lightgbm.LGBMClassifier"),
        ("catboost", lambda m: m.CatBoostClassifier(), "catboost.CatBoostClassifier"),
    ],
)
def test_families_of_boosting_libraries(library, make, family):
    assert family_of(make(pytest.importorskip(library))) == family


def test_a_torch_module_is_known_by_what_it_is_derived_from():
    nn = pytest.importorskip("torch").nn

    class Network(nn.Sequential):
        pass

    assert is_torch_module(Network()) and is_torch_module(nn.Linear(1, 1))
    assert not is_torch_module(nn.Linear) and not is_torch_module(LogisticRegression())


def test_versions_name_the_libraries_in_use_and_no_others():
    used = library_versions({"lightgbm", "fragility", "__main__"})
    assert list(used)[:2] == ["python", "fragility"]
    assert used["numpy"] == np.__version__ and "scikit-learn" in used
    assert set(used) == {"python", "fragility", "numpy", "pandas", "scipy", "scikit-learn", "lightgbm"}
    assert set(used) <= {"python", "fragility", *VERSIONED}


def test_a_model_names_the_libraries_that_it_is_made_of():
    X, y = fg.load_credit_g()
    X = X[["duration", "age"]]

    class Own(LGBMClassifier):
        pass

    made = make_pipeline(StandardScaler(), CalibratedClassifierCV(Own(n_estimators=2, verbose=-1), cv=2)).fit(X, y)
    assert {"sklearn", "lightgbm"} <= fg.Model.wrap(made).libraries
    assert not {"torch", "xgboost", "catboost"} & fg.Model.wrap(made).libraries
    asked = fg.Model.wrap(lambda rows: made.predict_proba(rows), classes=["bad", "good"])  # through a closure
    assert "lightgbm" in asked.libraries


EQUAL_AUDITS = """
import sys, warnings
import fragility as fg
{imports}
warnings.filterwarnings("ignore")
model = fg.load_model(sys.argv[1] + "/model.joblib", trust=True)
X, y = fg.load_credit_g()
protocol = fg.Protocol.load(sys.argv[1] + "/protocol.json")
fg.audit(model, X[:20], protocol).save(sys.argv[1] + "/" + sys.argv[2])
print(*(name for name in ("torch", "catboost", "xgboost") if name in sys.modules))
"""


def test_equal_audits_have_equal_bytes_whatever_else_a_process_imports(tmp_path):
    """And nothing imports torch to find out that a booster is no network."""
    pytest.importorskip("torch")
    X, y = fg.load_credit_g()
    model = make_pipeline(OneHotEncoder(sparse_output=False, handle_unknown="ignore"), GaussianNB())
    joblib.dump(model.fit(X[:300], y[:300]), tmp_path / "model.joblib")
    fg.Protocol.fit(model, X[:300], depth=3).save(tmp_path / "protocol.json")
    loaded = {}
    for name, imports in (("one", ""), ("other", "import torch, catboost, xgboost")):
        words = [sys.executable, "-c", EQUAL_AUDITS.format(imports=imports), str(tmp_path), name]
        loaded[name] = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert loaded == {"one": [], "other": ["torch", "catboost", "xgboost"]}
    one, other = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in loaded)
    assert one == other
