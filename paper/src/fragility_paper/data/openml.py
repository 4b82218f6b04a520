"""Fetch a data set from OpenML: scikit-learn downloads, checks OpenML's checksum and parses; we check the values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import fetch_openml

from fragility.base.errors import DataError
from fragility_paper.arrays import Array
from fragility_paper.data.content import verify_rows
from fragility_paper.data.declared import COVERTYPE_COLUMNS, dataset_spec
from fragility_paper.data.spec import DatasetSpec
from fragility_paper.library import replacing


def download(name: str, folder: str | Path, *, cache: str | Path | None = None) -> Path:
    """Fetch one data set, verify it, and write ``folder/name.parquet``; a copy that fails a check is not written.

    ``cache`` is scikit-learn's data folder (``data_home``), where a fetched file is kept; None keeps none.
    """
    spec = dataset_spec(name)
    if spec.openml_id is None:
        raise DataError(f"{name!r} cannot be downloaded: {spec.openml_note}; put {name}.parquet in the data folder")
    table = original_table(spec, _fetched(spec, cache))
    verify_rows(spec, table, f"OpenML data set {spec.openml_id}")
    target = Path(folder) / f"{name}.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as partial:
        table.to_parquet(partial, index=False)
    return target


def _fetched(spec: DatasetSpec, cache: str | Path | None) -> pd.DataFrame:
    try:
        bunch = fetch_openml(
            data_id=spec.openml_id,
            target_column=None,
            as_frame=True,
            parser="pandas",
            cache=cache is not None,
            data_home=None if cache is None else str(cache),
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"OpenML data set {spec.openml_id} ({spec.name!r}) could not be fetched: {error}; "
            "try again or use a local folder"
        ) from error
    frame: pd.DataFrame = bunch.frame
    return frame


def original_table(spec: DatasetSpec, table: pd.DataFrame) -> pd.DataFrame:
    """OpenML's column names and class codes turned back into those of the original file."""
    if tuple(table.columns) != spec.openml_columns:
        raise DataError(
            f"OpenML data set {spec.openml_id} must have the columns {list(spec.openml_columns)}, "
            f"got {list(table.columns)}"
        )
    names = COVERTYPE_COLUMNS if spec.collapse else spec.fields
    renamed = table.set_axis([*names, spec.target], axis=1)
    numbers = {name: np.arange(1, len(table) + 1) for name in spec.drop}
    return pd.DataFrame({**numbers, **{name: _original_column(spec, renamed, name) for name in renamed.columns}})


def _original_column(spec: DatasetSpec, table: pd.DataFrame, name: str) -> Array:
    """Text or numbers, as in the original file; OpenML's missing values are the original's first marker again."""
    column = table[name].astype(object)
    if name == spec.target and spec.openml_classes:
        return column.astype(str).map(dict(zip(spec.openml_classes, spec.classes, strict=True))).to_numpy(dtype=object)
    text_field = name in spec.nominal and not spec.coded
    if text_field or (name == spec.target and not spec.classes[0].isdigit()):
        marker = dict(spec.markers).get(name, ("?",))[0]
        return column.fillna(marker).astype(str).to_numpy(dtype=object)
    return pd.to_numeric(column).to_numpy()
