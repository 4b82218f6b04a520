"""Are these the rows the study was run on? Digests of files and of values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd

from fragility.base.errors import DataError
from fragility_paper.data.spec import DatasetSpec


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_digest(frame: pd.DataFrame) -> str:
    """Digest of the rows in their order, independent of file format and integer width.

    The order counts because the splits are decided by row position. Numbers enter as float64; text enters as its
    rank among the sorted distinct values, which are hashed too.
    """
    header: list[object] = []
    columns = np.empty((frame.shape[1], len(frame)))
    for position, name in enumerate(frame.columns):
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column):
            columns[position] = column.to_numpy(dtype=np.float64)
            header.append([str(name), "number"])
        else:
            values, codes = np.unique(column.astype(str).to_numpy(dtype=object), return_inverse=True)
            columns[position] = codes
            header.append([str(name), [str(value) for value in values]])
    digest = hashlib.sha256(json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode())
    digest.update(np.ascontiguousarray(columns.T + 0.0, dtype="<f8").tobytes())
    return digest.hexdigest()


def verify_rows(spec: DatasetSpec, frame: pd.DataFrame, source: str) -> None:
    """Refuse rows that are not the declared ones."""
    if frame.shape != (spec.rows, spec.columns):
        raise DataError(
            f"{spec.name!r} from {source} must have {spec.rows} rows and {spec.columns} columns, "
            f"got {frame.shape[0]} and {frame.shape[1]}; fetch the complete original"
        )
    found = content_digest(frame)
    if found != spec.content_sha256:
        raise DataError(
            f"{spec.name!r} from {source} has content digest {found}, expected {spec.content_sha256}; "
            "its values are not those the study was run on"
        )
