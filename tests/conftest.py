"""Fixtures every test file may use: public data sets; a test that needs an absent one skips, with the reason."""

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


def pytest_collection_modifyitems(items):
    """Of a test marked `repeats`, the first case is enough for every change; the others are slow."""
    seen = set()
    for item in items:
        if item.get_closest_marker("repeats"):
            if item.function in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(item.function)


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
