"""Whether a protocol fits a model and rows, before any of them is audited."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from fragility.blocks.checks import Check
from fragility.models import Model
from fragility.protocol import Protocol, bind
from fragility.verification.outcome import NOT_FITTED, Outcome
from fragility.verification.training import check_training


def verify_protocol(
    protocol: Protocol, model: Model, X: Any, *, ids: Sequence[Hashable] | None = None, train: Any = None
) -> Outcome:
    """Check that a protocol fits a model and rows, and with ``train`` that it is fitted on these training rows.

    A model or rows that it does not fit are refused with an error, as an audit would refuse them.
    """
    rows = bind(model, X, protocol, ids=ids)
    columns, groups = len(protocol.columns), len(protocol.groups)
    checks = [Check("rows", True, f"it fits {len(rows.ids)} rows: {columns} columns, {groups} groups")]
    checks += [check_training(model, train, protocol)] if train is not None else []
    rest = "" if train is not None else f"; not checked: {NOT_FITTED}"
    return Outcome(tuple(checks), f"verified: the protocol {protocol.digest} fits the model and the rows{rest}")
