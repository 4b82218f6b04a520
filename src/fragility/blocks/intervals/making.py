"""The intervals block: how it is declared and made.

The intervals of a row depend on row, protocol and declaration alone, so a block may be made part by part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Integers
from fragility.base.errors import DataError
from fragility.base.progress import Report
from fragility.blocks.choice import ChosenRows, Wanted, name_engine, read_wanted
from fragility.blocks.intervals.values import CONTENT, IntervalsClaims, IntervalsDeclaration, Texts, write_json
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.choice import SELF_CHECK_ROWS
from fragility.evidence import EvidenceRows
from fragility.models import ClassLabel
from fragility.pages.terms import BRACKETED, EXACT
from fragility.protocol import Protocol
from fragility.questions.modes.intervals import bind_estimator, choose_fields, find_narrow, intervals_of_rows
from fragility.questions.modes.stability import (
    ABOVE,
    BELOW,
    STATES,
    NominalStability,
    OrderedStability,
    StabilityIntervals,
)


def declare_intervals(rows: EvidenceRows, protocol: Protocol, engine: str, wanted: Wanted) -> IntervalsDeclaration:
    """Return what a block of these rows will be made with."""
    names, most = read_wanted(wanted, "intervals", "search")
    fields = choose_fields(protocol, names)
    if not fields:
        raise DataError("intervals must name at least one field, got none")
    few, _ = bind_estimator(rows.between(0, SELF_CHECK_ROWS), protocol)
    return IntervalsDeclaration(
        engine=name_engine(few, engine),
        rows=None if most is None else ChosenRows(most, "exposure"),
        fields=[field.name for field in fields],
        narrow=find_narrow(rows, fields),
    )


def search_intervals(
    rows: EvidenceRows,
    protocol: Protocol,
    declared: IntervalsDeclaration,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    report: Report | None = None,
) -> StabilityIntervals:
    """Return the intervals of some rows, found as a block declares."""
    engine = BLACKBOX if declared.engine == BLACKBOX else "auto"
    return intervals_of_rows(rows, protocol, declared.fields, engine, byte_budget, report, declared.narrow)


def write_intervals(rows: EvidenceRows, found: StabilityIntervals) -> IntervalsClaims:
    """Return what was found in rows as the texts of a block."""
    columns: dict[str, list[Texts]] = {name: [] for name in CONTENT}
    for one in found.by_field.values():
        texts = _write_ordered(one, found.classes) if isinstance(one, OrderedStability) else _write_nominal(one, found)
        for name, column in columns.items():
            column.append(texts.get(name, np.full(len(rows), None)))
    stacked: dict[str, Any] = {name: np.stack(texts, axis=1) for name, texts in columns.items()}
    return IntervalsClaims(rows.ids, tuple(found.by_field), **stacked)


def _write_ordered(one: OrderedStability, classes: Sequence[ClassLabel]) -> dict[str, Texts]:
    known = np.isin(one.state, [STATES.index(EXACT), STATES.index(BRACKETED)])
    texts = {"state": np.array(STATES, dtype=object)[one.state]}
    for name, places in (("value", one.place), ("low", one.ends[:, BELOW]), ("high", one.ends[:, ABOVE])):
        texts[name] = _blank(_write_values(one, places), ~known)
    for name, side in (("below", BELOW), ("above", ABOVE)):
        pairs, which = np.unique(
            np.stack([one.flips[:, side], one.flips_to[:, side]], axis=1), axis=0, return_inverse=True
        )
        values = one.scale.values(pairs[:, 0])
        told = [write_json([v, classes[to]]) if to >= 0 else None for v, to in zip(values, pairs[:, 1], strict=True)]
        texts[name] = _blank(np.array(told, dtype=object)[which.ravel()], ~known)
    return texts


def _write_values(one: OrderedStability, places: Integers) -> Texts:
    distinct, which = np.unique(places, return_inverse=True)
    return np.array([write_json(value) for value in one.scale.values(distinct)], dtype=object)[which]


def _blank(texts: Texts, where: Booleans) -> Texts:
    """Return texts with None in some places; they are changed."""
    texts[where] = None
    return texts


def _write_nominal(one: NominalStability, found: StabilityIntervals) -> dict[str, Texts]:
    written: dict[Any, str | None] = {None: None}
    for value in one.own:
        if (type(value), value) not in written:
            plain = value if isinstance(value, (str, bool, int, float)) else str(value)
            written[type(value), value] = write_json(plain)
    own = [written[None if value is None else (type(value), value)] for value in one.own]
    patterns, which = np.unique(one.flips_to, axis=0, return_inverse=True)
    told = [
        write_json([[v, found.classes[to]] for v, to in zip(one.values, flips_to, strict=True) if to >= 0])
        for flips_to in patterns
    ]
    return {
        "state": np.array(STATES, dtype=object)[one.state],
        "value": np.array(own, dtype=object),
        "categories": _blank(np.array(told, dtype=object)[which.ravel()], one.state != STATES.index(EXACT)),
    }
