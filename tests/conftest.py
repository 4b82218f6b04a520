"""Fixtures every test file may use: public data sets; a test that needs an absent one skips, with the reason."""

import pandas as pd
import pytest
from places import data_folder

import fragility as fg


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
