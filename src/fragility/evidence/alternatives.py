"""Alternatives: the other baselines that a model admits, fitted together with a protocol's own.

They come from the same training rows and are stored in the protocol, so that a finding can be computed again under each
of them. A model admits a baseline if it answers for the row in which all evidence is lost.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fragility.errors import EvidenceError, FragilityError
from fragility.evidence.averages import fields_without_gaps
from fragility.evidence.baselines import fit_baseline
from fragility.evidence.binding import CONFIRM_ROWS, bound_rows
from fragility.evidence.bound import EvidenceRows
from fragility.evidence.fitting import TrainingEvidence
from fragility.evidence.rows import Rows, Scalar
from fragility.evidence.space import Column, EvidenceSpace, Group
from fragility.models.adapter import Model

ALTERNATIVES = ("typical", "median", "missing", "mean")


@dataclass(frozen=True, slots=True)
class Alternative:
    """A baseline that a protocol could have instead of its own."""

    name: str
    artificial: tuple[str, ...]  # fields for which it is a value that no training row has
    values: tuple[Scalar, ...] | None = None  # one per column; None for ``missing``, whose values are all missing
    # Of ``missing``, which is in the raw space, where the columns of the protocol are not the raw fields:
    groups: tuple[Group, ...] | None = None
    spreads: tuple[float | None, ...] | None = None  # one per field


def fit_alternatives(
    own: str, evidence: TrainingEvidence, space: EvidenceSpace, model: Model, rows: Rows, bound: EvidenceRows
) -> tuple[Alternative, ...]:
    """Return the other baselines that the model admits; ``bound``: a few rows, bound under the protocol's own."""
    found = []
    for name in ALTERNATIVES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what a model says of a baseline that nobody has chosen
                if name == "missing" and own != name:
                    found.append(_missing(evidence, space, model, rows))
                elif name != own:
                    found.append(_in_the_same_space(name, evidence, space, model, rows, bound))
        except FragilityError:  # it cannot be made of these rows, or the model refuses it
            continue
    return tuple(found)


def _in_the_same_space(
    name: str, evidence: TrainingEvidence, space: EvidenceSpace, model: Model, rows: Rows, bound: EvidenceRows
) -> Alternative:
    fitted = fit_baseline(name, "raw", evidence, model, rows)
    if space.space == "transformed":
        bound.predict(np.array([[np.nan if value is None else value for value in fitted.values]], dtype=np.float64))
    else:  # the codes of the rows depend on the baseline's values
        _ask(model, rows, replace(space, columns=with_values(space.columns, fitted.values)))
    return Alternative(name, fitted.artificial, tuple(fitted.values))


def _missing(evidence: TrainingEvidence, space: EvidenceSpace, model: Model, rows: Rows) -> Alternative:
    raw = evidence.in_raw_fields()
    found = Alternative("missing", fields_without_gaps(raw))
    if evidence.columns != raw.columns:
        found = replace(found, groups=_groups_of_fields(space.groups, evidence), spreads=tuple(raw.spreads))
    _ask(model, rows, missing_space(space, found))
    return found


def _ask(model: Model, rows: Rows, space: EvidenceSpace) -> None:
    """Ask the model about the row in which all evidence is lost; what it raises says that it has no answer."""
    few = bound_rows(model, rows.head(CONFIRM_ROWS), space)
    few.predict(few.baseline[None, :])


def missing_space(space: EvidenceSpace, missing: Alternative) -> EvidenceSpace:
    """Return the raw space in which every lost field is missing."""
    spreads = missing.spreads or tuple(column.spread for column in space.columns)
    columns = tuple(Column(f.name, f.kind, None, spread) for f, spread in zip(space.fields, spreads, strict=True))
    return replace(space, space="raw", columns=columns, groups=missing.groups or space.groups)


def with_values(columns: Sequence[Column], values: Sequence[Scalar]) -> tuple[Column, ...]:
    """Return the columns with another baseline."""
    return tuple(replace(column, baseline=value) for column, value in zip(columns, values, strict=True))


def _groups_of_fields(groups: Sequence[Group], evidence: TrainingEvidence) -> tuple[Group, ...]:
    """Return the groups over raw fields instead of columns; a field that no column comes from is a group of its own."""
    fields_of = dict(zip(evidence.columns, evidence.origins, strict=True))
    group_of: dict[str, str] = {}
    for group in groups:
        for column in group.columns:
            for name in fields_of[column].fields:
                if group_of.setdefault(name, group.name) != group.name:
                    raise EvidenceError(f"the columns of the field {name!r} are in different groups")
    members: dict[str, list[str]] = {group.name: [] for group in groups}
    for field in evidence.fields:
        members.setdefault(group_of.get(field.name, field.name), []).append(field.name)
    return tuple(Group(block, tuple(names)) for block, names in members.items())
