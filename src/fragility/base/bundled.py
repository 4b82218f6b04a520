"""The one data set that travels with the package."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def load_credit_g() -> tuple[pd.DataFrame, pd.Series]:
    """Return the German Credit data: 1,000 loan applications and whether each was a good or a bad risk.

    Returns
    -------
    X : DataFrame of shape (1000, 20)
        7 numeric fields (``duration`` in months, ``credit_amount`` in Deutsche Mark, ``age`` ...) and 13 nominal
        ones as strings. Three carry a marker for what the bank did not know: ``no checking``,
        ``no known savings`` and ``no known property``.
    y : Series of shape (1000,)
        ``good`` (700 rows) or ``bad`` (300 rows).

    Notes
    -----
    Statlog (German Credit Data), Hans Hofmann, Universität Hamburg, 1994; UCI Machine Learning Repository,
    https://doi.org/10.24432/C5NC77, licensed under CC BY 4.0. The rows are stored in original order with the
    readable category names of Weka's ``credit-g`` version; no value was altered.

    Examples
    --------
    >>> from fragility import load_credit_g
    >>> X, y = load_credit_g()
    >>> X.shape, y.value_counts().to_dict()
    ((1000, 20), {'good': 700, 'bad': 300})
    """
    import pandas as pd

    with files("fragility").joinpath("data", "credit_g.parquet").open("rb") as stream:
        table = pd.read_parquet(stream)
    return table.drop(columns="class"), table["class"]
