"""Stability intervals: how far one raw value may move before the decision flips, while all others stay.

For a row and a field of numbers or dates: the largest interval around the field's value, within its training range, on
which the decision does not flip (support margin of the class predicted at x >= -resolution), the nearest value on each
side at which it flips, and the class it flips to. For a nominal field: the catalogue's categories that flip it.

How an end is found depends on what is known of the model:

    trees    the tests about a field cut its values into pieces on which the decision is constant
    linear   the values that hold form an interval, since every difference of two scores is linear in the field's column
    others   the model is asked at the values of the catalogue: none of those between the flips that are named flips it

Both exact ways need columns that depend on the one field, and either never fall while it rises or are listed value by
value. The model itself is asked on both sides of every end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET
from fragility.base.errors import DataError, FragilityError, ProtocolError
from fragility.base.progress import Report, progress_bar
from fragility.evidence import EvidenceRows
from fragility.evidence.bound import Column, Group
from fragility.evidence.fields import Field
from fragility.evidence.form import Form
from fragility.evidence.origins import Origin, Origins, check_claims, check_moves, known_origins
from fragility.evidence.rows import conform_rows
from fragility.protocol import Protocol, bind
from fragility.questions.modes.scales import NARROW
from fragility.questions.modes.searching import Search
from fragility.questions.modes.stability import NominalStability, OrderedStability, StabilityIntervals


def find_stability_intervals(
    model: Any,
    X: Any,
    protocol: Protocol,
    fields: Sequence[str] | None = None,
    *,
    ids: Any = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = None,
) -> StabilityIntervals:
    """Find how far each raw value may move before the decision flips, while all others stay.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    X : table of shape (n, d)
        The raw rows.
    protocol : Protocol
        Knows the training range of each field of numbers or dates, and the categories of nominal ones.
    fields : sequence of str, optional
        The raw fields to look at; by default all of them.
    ids : sequence, optional
        One distinct id per row, as in :func:`audit`.
    engine : str, default="auto"
        Who knows the model: with the tree and the linear engine ends are exact; with any other, and with ``blackbox``,
        they are values that were tried, and a value that was not tried may flip the decision on either side of them.
    byte_budget : int, default=256 MiB
        Bound on the changed rows held in memory at a time; it changes nothing in the result.
    progress : bool or callable, optional
        A bar on the terminal (the default if there is one), or a function (fields done, fields in all).

    Returns
    -------
    StabilityIntervals
        By row and field: the interval on which the decision holds, the nearest values that flip it, and their classes.

    Raises
    ------
    FragilityError
        A field is not known, or the rows are a sparse matrix.

    See Also
    --------
    assess_modes : The chance that a wrong value flips the decision.
    """
    bound = bind(model, X, protocol, ids=ids)
    with progress_bar("stability intervals", progress) as report:
        return intervals_of_rows(bound, protocol, fields, engine, byte_budget, report)


def intervals_of_rows(
    rows: EvidenceRows,
    protocol: Protocol,
    fields: Sequence[str] | None = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    report: Report | None = None,
    narrow: Mapping[str, str] | None = None,
) -> StabilityIntervals:
    """Return the intervals of rows as they were bound. A row's intervals depend on no other row.

    narrow: the types of decimals narrower than float64, by field; by default those of the columns.
    """
    search = make_search(rows, protocol, engine, byte_budget, narrow)
    return search_fields(search, choose_fields(protocol, fields), report)


def make_search(
    rows: EvidenceRows,
    protocol: Protocol,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    narrow: Mapping[str, str] | None = None,
) -> Search:
    """Return the rows and their model, ready to be searched; the arguments are those of ``intervals_of_rows``."""
    narrow = find_narrow(rows, protocol.fields) if narrow is None else narrow
    return Search(*bind_estimator(rows, protocol), protocol, engine, byte_budget, narrow)


def search_fields(search: Search, chosen: Sequence[Field], report: Report | None = None) -> StabilityIntervals:
    """Return the intervals of some fields, in their order."""
    axes = [search.make_axis(field) for field in chosen if field.name in search.ranges or field.kind == "numeric"]
    found: dict[str, OrderedStability | NominalStability] = {}
    found |= search.find_ends(axes, lambda finished: None if report is None else report(finished, len(chosen)))
    found |= search.find_categories([field for field in chosen if field.name not in found])
    if report is not None:
        report(len(chosen), len(chosen))
    rows = search.rows
    ids = np.fromiter(rows.ids, dtype=object, count=len(rows))
    by_field = {field.name: found[field.name] for field in chosen}
    return StabilityIntervals(ids, search.original, tuple(rows.model.classes), by_field)


def choose_fields(protocol: Protocol, fields: Sequence[str] | None) -> list[Field]:
    """Return the fields to look at, in the order of the table; refuse one that is not known."""
    wanted = None if fields is None else [fields] if isinstance(fields, str) else list(fields)
    known = [field.name for field in protocol.fields]
    if unknown := [name for name in wanted or () if name not in known]:
        raise ProtocolError(f"the fields are {', '.join(known)}, got {unknown[0]!r}")
    return [field for field in protocol.fields if wanted is None or field.name in wanted]


def find_narrow(rows: EvidenceRows, fields: Sequence[Field]) -> dict[str, str]:
    """Return the types of the columns of decimals that are narrower than float64, by field."""
    frame = rows.source.frame
    if frame is None:
        return {}
    decimals = [field.name for field in fields if field.type != "integer"]
    types = {name: str(frame[name].dtype).lower() for name in decimals}
    return {name: own for name, own in types.items() if own in NARROW}


def bind_estimator(rows: EvidenceRows, protocol: Protocol) -> tuple[EvidenceRows, Origins]:
    """Return the rows as the final estimator is handed them, if that is a matrix of numbers, and its columns' origins.

    An interval is about raw values in either space; in the raw space a preprocessing would hide the estimator. Origins
    are those that the protocol stores, which were tried on its training rows.
    """
    if rows.source.frame is None:
        raise DataError("other values of fields need rows in a table or dense array, got a sparse matrix")
    space, model = protocol.evidence, rows.model
    if protocol.space == "transformed" and model.transformer is not None:
        return rows, known_origins(model, space)
    as_they_are = rows, [Origin((column.name,)) for column in protocol.columns]
    if model.transformer is None or rows.forms is not None or not space.inputs:
        return as_they_are
    names = tuple(column.name for column in space.inputs)
    columns = tuple(Column(name, "numeric", 0.0, None) for name in names)
    handed = replace(space, space="transformed", columns=columns, groups=(Group("all", names),))
    source = conform_rows(rows.source, protocol.fields, needs_categories=False, whole=True)
    try:
        bound = Form.of(model, source, handed).first
        check_claims(model, source, handed)
    except FragilityError:  # the estimator is handed something else than numbers, or this is another model
        return as_they_are
    check_moves(model, source, handed)
    return replace(bound, decided=rows.decided, source=rows.source), known_origins(model, space)
