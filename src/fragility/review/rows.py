"""The audited rows themselves, where they are given: matched to their certificates, and shown to be those audited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fragility.canonical import combine_digests, is_missing, row_digests
from fragility.certificates import Manifest
from fragility.errors import DataError
from fragility.evidence.replacements import Replacement, fields_of_groups, find_replacements, value_text
from fragility.evidence.rows import read_rows
from fragility.ids import IdSpan, say_other_rows
from fragility.models import Model
from fragility.protocol import Protocol


@dataclass(frozen=True)
class FieldLine:
    """One field of a row: its value, what takes the place of the value when it is lost, and its evidence groups."""

    name: str
    value: str
    replacement: str | None  # None where it is not known
    groups: tuple[str, ...]

    @property
    def changes(self) -> bool:
        return self.replacement not in (None, self.value)


@dataclass(frozen=True, eq=False)
class GivenRows:
    """Rows in the order of the audit; only the protocol's fields."""

    frame: pd.DataFrame
    ids: tuple[Any, ...]
    groups_of: Mapping[str, tuple[str, ...]]  # evidence groups that each field has a part in
    replacements: Mapping[str, Replacement]  # what each field becomes when it is lost

    def row(self, place: int) -> pd.DataFrame:
        """Return one row, as a table with the types of all."""
        return self.frame.iloc[[place]]

    def shown(self, place: int) -> list[FieldLine]:
        """Return the fields of one row, in the protocol's order."""
        row, found = self.frame.iloc[[place]], []
        for name in self.frame.columns:  # cell by cell: a row across columns would turn whole numbers into others
            lost = self.replacements[name]
            known = None if lost.state == "unknown" else str(lost)
            found.append(FieldLine(name, value_text(row[name].iloc[0]), known, self.groups_of.get(name, ())))
        return found

    def to_arrow(self) -> pa.Table:
        """Return the fields as a table that filters can ask: numbers as numbers, everything else as pages show it."""
        return pa.table({str(name): _filterable(self.frame[name]) for name in self.frame.columns})


def given_rows(
    X: pd.DataFrame, ids: Any, names: Sequence[str], protocol: Protocol, manifest: Manifest,
    model: Model | None = None,
) -> GivenRows:  # fmt: skip
    """Return the rows whose ids are ``names``, in that order; refuse rows that are not the ones audited."""
    fields = [field.name for field in protocol.fields]
    missing = [name for name in fields if name not in X.columns]
    if missing:
        raise DataError(f"the rows lack the field {missing[0]!r}, which the protocol of this audit names")
    rows = read_rows(X[fields], fields, None, ids)
    place_of = {str(own_id): i for i, own_id in enumerate(rows.ids)}
    absent = [name for name in names if name not in place_of]
    if absent:
        raise DataError(*say_other_rows(len(absent), len(names), absent[0], IdSpan(names), IdSpan(rows.ids)))
    chosen = [place_of[name] for name in names]
    assert rows.frame is not None
    frame = rows.frame.iloc[chosen]
    own_ids = tuple(rows.ids[i] for i in chosen)
    _check_audited(frame, own_ids, manifest)
    replacements = find_replacements(protocol.evidence, model, frame)
    return GivenRows(frame, own_ids, groups_of_fields(protocol, model), replacements)


def _check_audited(frame: pd.DataFrame, ids: Sequence[Any], manifest: Manifest) -> None:
    if manifest.is_selection:
        return  # a selection from an audit: the digest is over rows that are not here
    texts = np.array([str(own_id) for own_id in ids], dtype=object)
    columns = {str(name): frame[name].reset_index(drop=True) for name in frame.columns}
    if combine_digests(row_digests({**columns, "id\x00": texts})) != manifest.input.digest:
        raise DataError("the rows are not the ones that were audited: their values differ; give the rows of the audit")


def groups_of_fields(protocol: Protocol, model: Model | None = None) -> dict[str, tuple[str, ...]]:
    """Return the evidence groups that each raw field has a part in, as far as it is known."""
    fields = fields_of_groups(protocol.evidence, model)
    return {
        field.name: tuple(group for group, parts in fields.items() if field.name in parts) for field in protocol.fields
    }


def _filterable(column: pd.Series) -> pa.Array:
    if pd.api.types.is_bool_dtype(column.dtype) or not pd.api.types.is_numeric_dtype(column.dtype):
        return pa.array([None if is_missing(value) else value_text(value) for value in column], type=pa.string())
    if column.dtype in (np.float16, np.float32):  # 0.1 is meant by 0.1, and not the nearest number of 32 bits
        column = column.astype(str).astype(np.float64)
    return pa.array(column.to_numpy(dtype=np.float64, na_value=np.nan), from_pandas=True)
