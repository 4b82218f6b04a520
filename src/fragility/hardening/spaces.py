"""The evidence space of training rows: what a protocol for them declares, without the digests that training needs not.

A given protocol is fitted to the rows by its own rules. It may come from other rows, or from a model whose
preprocessing learned from other rows: its baseline would then be in other units.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fragility.errors import ProtocolError
from fragility.evidence.averages import BASELINES
from fragility.evidence.baselines import fit_baseline
from fragility.evidence.binding import check_baseline_accepted
from fragility.evidence.fitting import groups_for, training_evidence
from fragility.evidence.rows import Rows
from fragility.evidence.space import Column, EvidenceSpace, Group
from fragility.models import Model
from fragility.protocol import DEFAULT_BASELINE, Protocol

DEFAULT_RESOLUTION = 1e-6
FEW_ROWS = 256  # enough to see whether the final estimator is handed numbers


def space_for(model: Model, rows: Rows, protocol: Protocol | None) -> EvidenceSpace:
    """Return where evidence is replaced in these rows, and by what."""
    if protocol is not None and not isinstance(protocol, Protocol):
        raise ProtocolError(f"protocol must be a Protocol, got {type(protocol).__name__}")
    nominal = () if protocol is None or protocol.space != "raw" else _nominal_fields(protocol)
    chosen = training_evidence(model, rows.head(FEW_ROWS), None, ()).space if protocol is None else protocol.space
    evidence = training_evidence(model, rows, chosen, nominal)
    blocks, _ = groups_for(_groups(protocol), evidence, rows, threshold=1.0)
    baseline = fit_baseline(*_baseline(protocol), evidence, model, rows)
    space = EvidenceSpace(
        space=evidence.space,
        fields=evidence.fields,
        columns=tuple(
            Column(name, kind, value, None)
            for name, kind, value in zip(evidence.columns, evidence.kinds, baseline.values, strict=True)
        ),
        groups=tuple(Group(name, tuple(members)) for name, members in blocks.items()),
        decision=model.decision,
        resolution=DEFAULT_RESOLUTION,
    )
    check_baseline_accepted(model, rows, space, baseline.name)
    return space


def _nominal_fields(protocol: Protocol) -> tuple[str, ...]:
    return tuple(field.name for field in protocol.fields if field.kind == "nominal")


def _groups(protocol: Protocol | None) -> Any:
    if protocol is None or protocol.grouping == "raw-origin":
        return "raw-origin"
    return {group.name: group.columns for group in protocol.groups}


def _baseline(protocol: Protocol | None) -> tuple[Any, Any]:
    """Return the baseline and its units, as they were declared."""
    if protocol is None:
        return DEFAULT_BASELINE, "raw"
    if protocol.baseline in BASELINES:
        return protocol.baseline, "raw"
    values = {column.name: column.baseline for column in protocol.columns}
    return values, "raw" if protocol.space == "raw" else "transformed"


def protocol_for(model: Any, X: Any, protocol: Protocol | None) -> Protocol:
    """Return the protocol by which a model trained on ``X`` is audited: the usual one, or a given one fitted to X."""
    if protocol is None:
        return Protocol.fit(model, X)
    baseline, units = _baseline(protocol)
    own = Protocol.fit(
        model,
        X,
        space=protocol.space,
        groups=_groups(protocol),
        baseline=baseline,
        baseline_units=units,
        nominal=_nominal_fields(protocol) if protocol.space == "raw" else (),
    )
    return replace(
        protocol,
        fields=own.fields,
        columns=own.columns,
        groups=own.groups,
        artificial=own.artificial,
        stored=own.stored,
        depth=min(protocol.depth, len(own.groups)),
        training_digest=own.training_digest,
        training_rows=own.training_rows,
    )
