"""Fixtures every test file may use: public data sets; a test that needs an absent one skips, with the reason."""

import gc
import hashlib
import os
from pathlib import Path

import pandas as pd
import pytest
from places import data_folder

import fragility as fg

REPOSITORY = Path(__file__).resolve().parents[1]


def kernel_cache() -> Path:
    """A folder of compiled kernels for exactly these sources: numba would not notice a change in another file."""
    package = Path(fg.__file__).parent / "engines"
    sources = [package / "trees" / "forest.py", *sorted((package / "kernels").glob("*.py"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return REPOSITORY / ".cache" / "kernels" / digest[:16]


os.environ.setdefault("NUMBA_CACHE_DIR", str(kernel_cache()))  # read when numba is imported
SEARCHES = gc.get_threshold()
gc.set_threshold(50_000)  # a million objects are imported that stay to the end


def pytest_collection_finish():
    """Leave what was imported out of every later search for garbage, which would take a tenth of the time."""
    gc.freeze()
    gc.set_threshold(*SEARCHES)


def pytest_sessionfinish():
    gc.unfreeze()  # libraries look for leaks at the end


def pytest_collection_modifyitems(items):
    """Mark the cases of `repeats` and `samples` that not every change has to run as slow."""
    cases = {}
    for item in items:
        if item.get_closest_marker("repeats") or item.get_closest_marker("samples"):
            cases.setdefault(item.function, []).append(item)
    for found in cases.values():
        kept = choose_samples(found) if found[0].get_closest_marker("samples") else found[:1]
        for item in found:
            if item not in kept:
                item.add_marker(pytest.mark.slow)


def choose_samples(cases):
    """Return a few cases in which every value of every parameter appears; first those that show most new values."""
    shown = {case: {(name, id(value)) for name, value in case.callspec.params.items()} for case in cases}
    missing, kept = set().union(*shown.values()), []
    while missing:
        kept.append(max(cases, key=lambda case: len(shown[case] & missing)))
        missing -= shown[kept[-1]]
    return kept


@pytest.fixture(scope="session")
def load_data():
    """Return `load(name, target) -> X, y` over the benchmark data sets; skips where a file is absent."""

    def load(name: str, target: str) -> tuple[pd.DataFrame, pd.Series]:
        path = data_folder() / f"{name}.parquet"
        if not path.exists():
            pytest.skip(f"{name}.parquet not found; set FRAGILITY_DATA to the folder with the benchmark data")
        table = pd.read_parquet(path)
        return table.drop(columns=target), table[target]

    return load


@pytest.fixture(scope="session")
def adult(load_data) -> tuple[pd.DataFrame, pd.Series]:
    return load_data("adult", "income")


@pytest.fixture(scope="session")
def credit() -> tuple[pd.DataFrame, pd.Series]:
    return fg.load_credit_g()
