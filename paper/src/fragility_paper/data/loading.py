"""Rows of a data set, verified: from a folder, or the copy bundled with fragility (Credit-G only)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fragility as fg
from fragility.base.errors import DataError
from fragility_paper.arrays import Array
from fragility_paper.data.content import file_digest, verify_rows
from fragility_paper.data.declared import dataset_spec
from fragility_paper.data.spec import DatasetSpec

DATA_VARIABLE = "FRAGILITY_DATA"


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Rows ready for the study: raw fields in declared order and the class index of every row."""

    spec: DatasetSpec
    X: pd.DataFrame
    y: Array
    unavailable: Array  # (n, fields) bool: the raw value is one of the field's markers

    @property
    def has_markers(self) -> bool:
        return bool(self.unavailable.any())


def load(name: str, *, data: str | Path | None = None) -> Dataset:
    """One data set with raw fields, class indices and the table of unavailable fields."""
    return prepare(dataset_spec(name), load_table(name, data=data))


def data_folder(data: str | Path | None = None) -> Path | None:
    """The folder to look in: the argument, else ``FRAGILITY_DATA``, else none."""
    chosen = data if data is not None else os.environ.get(DATA_VARIABLE)
    return Path(chosen) if chosen else None


def load_table(name: str, *, data: str | Path | None = None) -> pd.DataFrame:
    """The complete original table, verified: from the folder, else the bundled copy."""
    spec = dataset_spec(name)
    folder = data_folder(data)
    if folder is not None and (folder / f"{name}.parquet").is_file():
        return _from_file(spec, folder / f"{name}.parquet")
    if name == "credit_g":
        return _bundled(spec)
    place = f"in {folder}" if folder is not None else f"because {DATA_VARIABLE} is not set"
    raise DataError(
        f"{name}.parquet not found {place}; point --data or {DATA_VARIABLE} at a folder that holds it, "
        f"or fetch it with fragility_paper.data.download({name!r}, folder)"
    )


def _from_file(spec: DatasetSpec, path: Path) -> pd.DataFrame:
    frame = pd.read_parquet(path)
    if file_digest(path) != spec.file_sha256:
        verify_rows(spec, frame, str(path))
    return frame


def _bundled(spec: DatasetSpec) -> pd.DataFrame:
    fields, target = fg.load_credit_g()
    frame = fields.assign(**{spec.target: target})
    verify_rows(spec, frame, "the bundled copy")
    return frame


def prepare(spec: DatasetSpec, table: pd.DataFrame) -> Dataset:
    """Row-wise preparation only: drop the row number, collapse indicators, mark unavailable fields."""
    fields = {field: _field(spec, table, field) for field in spec.fields}
    X = pd.DataFrame(fields, index=pd.RangeIndex(len(table)))
    y = pd.Categorical(table[spec.target].astype(str), categories=list(spec.classes)).codes
    if (y < 0).any():
        raise DataError(f"target {spec.target!r} of {spec.name!r} holds values outside {spec.classes}")
    return Dataset(spec=spec, X=X, y=y.astype(np.int64), unavailable=_unavailable(spec, X))


def _field(spec: DatasetSpec, table: pd.DataFrame, field: str) -> Array:
    prefix = dict(spec.collapse).get(field)
    column = collapsed(table, prefix) if prefix else table[field]
    if field in spec.nominal:
        return column.astype(str).to_numpy(dtype=object)
    return column.to_numpy(dtype=np.float64)


def collapsed(table: pd.DataFrame, prefix: str) -> pd.Series[Any]:
    """The number of the indicator column ``prefix<number>`` that holds 1."""
    indicators = table[[name for name in table.columns if name.startswith(prefix)]]
    if (indicators.sum(axis=1) != 1).any():
        raise DataError(f"the columns {prefix}* must hold exactly one 1 in every row")
    numbers = np.array([int(name.removeprefix(prefix)) for name in indicators.columns])
    return pd.Series(numbers[indicators.to_numpy(dtype=np.int64).argmax(axis=1)])


def _unavailable(spec: DatasetSpec, X: pd.DataFrame) -> Array:
    found = np.zeros(X.shape, dtype=bool)
    for field, values in spec.markers:
        wanted: Iterable[object] = map(str, values) if field in spec.nominal else map(float, values)
        found[:, spec.fields.index(field)] = X[field].isin(list(wanted)).to_numpy()
    return found
