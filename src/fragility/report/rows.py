"""The audited rows in the report: the values of the cases shown, and what replaces each of them when it is lost.

Rows are read part by part. They must be the ones that were audited: their digest is compared with the manifest's, which
holds 32 bytes per row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from fragility.auditing.auditor import input_row_digests
from fragility.certificates import Audit
from fragility.errors import DataError
from fragility.evidence.replacements import (
    SAMPLE,
    Replacement,
    fields_of_groups,
    find_replacements,
    value_text,
)
from fragility.evidence.rows import read_rows
from fragility.ids import GIVE_AUDITED, SeenIds, id_keys
from fragility.merkle import packed_root
from fragility.models import Model
from fragility.report.summary import Case, FieldValue
from fragility.segments import PART_ROWS, RowValues, TableRows


@dataclass(frozen=True, eq=False)
class GivenRows:
    """Rows that a report may show, and the model that tells what replaces their values."""

    values: RowValues
    model: Model | None = None
    just_audited: bool = False  # the audit was made from them a moment ago, so there is nothing to check

    @classmethod
    def of(cls, rows: Any, ids: Any = None, model: Any = None) -> GivenRows:
        """Read a table or array; rows that are read part by part already stay as they are."""
        if isinstance(rows, GivenRows):
            return rows
        values = rows if isinstance(rows, RowValues) else TableRows.of(rows, ids)
        return cls(values, None if model is None else Model.wrap(model))


def lacking_field(given: GivenRows, audit: Audit) -> str | None:
    """Return a field of the protocol that the rows do not have; None where they have all."""
    names = set(given.values.column_names)
    return next((field.name for field in audit.protocol.fields if field.name not in names), None)


def with_values(
    cases: Sequence[Case], given: GivenRows, audit: Audit
) -> tuple[tuple[Case, ...], dict[str, Replacement]]:
    """Return the cases with the values of their rows, and what replaces each field; the rows must be those audited."""
    evidence = audit.protocol.evidence
    found, sample = _read(given, audit, {case.id for case in cases})
    absent = next((case.id for case in cases if case.id not in found), None)
    if absent is not None:
        raise DataError(f"the rows given lack the audited row {absent!r}; ", GIVE_AUDITED)
    becomes = find_replacements(evidence, given.model, sample)
    fields = fields_of_groups(evidence, given.model)
    shown = tuple(replace(case, values=_along_path(case, fields, found[case.id], becomes)) for case in cases)
    return shown, becomes


def _along_path(
    case: Case, fields: Mapping[str, Sequence[str]], row: Mapping[str, Any], becomes: Mapping[str, Replacement]
) -> tuple[tuple[FieldValue, ...], ...]:
    return tuple(
        tuple(FieldValue(name, value_text(row[name]), str(becomes[name])) for name in fields[group])
        for group in case.path
    )


def _read(given: GivenRows, audit: Audit, wanted: Collection[str]) -> tuple[dict[str, dict[str, Any]], pd.DataFrame]:
    """Return the rows wanted by id, and some rows from the beginning; refuse rows that were not audited."""
    fields = [field.name for field in audit.protocol.fields]
    found: dict[str, dict[str, Any]] = {}
    sample, digests = pd.DataFrame(columns=fields), bytearray()
    check = not given.just_audited and audit.manifest.input.rows == len(audit)
    for ids, frame in given.values.values(fields, PART_ROWS):
        if len(sample) < SAMPLE:
            sample = pd.concat([sample, frame.iloc[:SAMPLE]], ignore_index=True) if len(sample) else frame.iloc[:SAMPLE]
        for place, own_id in enumerate(map(str, ids)):
            if own_id in wanted:
                found[own_id] = {name: frame[name].iloc[place] for name in fields}
        if check:
            digests += b"".join(input_row_digests(read_rows(frame[fields], fields, None, ids)))
        elif len(found) == len(wanted) and len(sample) >= SAMPLE:
            break
    if check:
        _check_audited(digests, given, audit, fields)
    return found, sample


def _check_audited(digests: bytearray, given: GivenRows, audit: Audit, fields: Sequence[str]) -> None:
    if len(digests) > 32 * len(audit):
        digests = _audited_only(digests, given, audit, fields)
    if f"sha256:{packed_root(digests).hex()}" != audit.manifest.input.digest:
        raise DataError(
            "the rows given are not the ones that were audited: ids or values differ; give the rows of the audit"
        )


def _audited_only(digests: bytearray, given: GivenRows, audit: Audit, fields: Sequence[str]) -> bytearray:
    """Return the digests of the rows that were audited, where more rows are given."""
    audited = SeenIds()
    for batch in audit.batches(["id"]):
        audited.add(batch.column("id").to_pylist())
    keys = [id_keys(ids) for ids, _ in given.values.values(fields[:1], PART_ROWS)]
    chosen = audited.contains(np.concatenate(keys))
    return bytearray(np.frombuffer(bytes(digests), dtype="S32")[chosen].tobytes())
