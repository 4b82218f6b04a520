"""Which library a model is from, found without importing any."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from fragility.libraries import VERSIONED, family_of, is_torch_module, library_of, library_versions


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
    used = library_versions()
    assert list(used)[:2] == ["python", "fragility"]
    assert used["numpy"] == np.__version__ and "scikit-learn" in used
    code = "from fragility.libraries import library_versions; print(*library_versions())"
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not set(alone) & {"xgboost", "xgboost-cpu", "lightgbm", "catboost", "torch", "numba"}
    assert set(used) <= {"python", "fragility", *VERSIONED}
