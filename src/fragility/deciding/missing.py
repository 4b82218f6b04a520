"""evaluate_missing: hide fields that are known, decide, and compare with the decision on the full row."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from hashlib import blake2b
from itertools import combinations
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pandas as pd

from fragility.auditing.auditor import Auditor
from fragility.base.arrays import Booleans, Floats, Integers, is_count
from fragility.base.errors import DataError
from fragility.base.progress import Report, progress_bar
from fragility.deciding.decisions import Decider
from fragility.deciding.evaluation import MissingEvaluation, WithoutLine, calibrate_pairs, summarise_pairs
from fragility.deciding.values import DEFAULT_DRAWS, check_draws, make_neighbours
from fragility.evidence.modes import is_ordered
from fragility.evidence.rows import rows_at
from fragility.protocol import Protocol
from fragility.questions.stress.stressors import Outages

MOST_SETS = 20
MOST_TOGETHER = 5
HiddenRows: TypeAlias = Literal["all", "top", "bottom", "random"]
SHARE = 0.2  # of the rows that hold a field, which lose it where not all do
MEASURED = ("p_change", "confidence", "changed")


def evaluate_missing(
    model: Any,
    X: Any,
    protocol: Protocol,
    *,
    sets: Sequence[Collection[str]] | Outages | None = None,
    together: int = 1,
    most_sets: int = MOST_SETS,
    training: Any = None,
    conditional: bool = False,
    hide: HiddenRows = "all",
    draws: int = DEFAULT_DRAWS,
    ids: Any = None,
    engine: str = "auto",
    progress: bool | Report | None = None,
) -> MissingEvaluation:
    """Hide each known field in turn, decide without it, and compare with the decision on the full row.

    Says whether ``p_change`` of :class:`Guard` can be relied on for this model and these rows: how many decisions
    change, how many were expected to, and how well ``p_change`` tells which.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    X : table of shape (n, d)
        Raw rows that were not used in training.
    protocol : Protocol
        Its catalogue says what hidden fields may hold.
    sets : sequence of collections of str, or Outages, optional
        The sets of fields to hide at once, for instance recorded outages. By default each field in turn.
    together : int, default=1
        Without ``sets``: also hide so many fields at once, and every smaller number.
    most_sets : int, default=20
        The most sets of two, of three, ... fields; if there are more, those with the smallest hashes of their names.
    training : table, optional
        Training rows, for ``conditional``.
    conditional : bool, default=False
        As in :class:`Guard`; the result then says how values of the catalogue do on the same rows.
    hide : {"all", "top", "bottom", "random"}, default="all"
        Whose field is hidden: every row's, or that of the fifth of the rows with its largest or smallest values, which
        shows what fields do that go missing because of their value, or of a random fifth, to compare with.
    draws : int, default=1024
        As in :class:`Guard`.
    ids : sequence, optional
        One distinct id per row, as in :func:`audit`.
    engine : str, default="auto"
        Who answers for changed rows, as in :func:`audit`.
    progress : bool or callable, optional
        A bar on the terminal (the default if there is one), or a function (sets done, sets in all).

    Returns
    -------
    MissingEvaluation
        Expected against observed changes, by set and in all; calibration and ranking. A row takes no part in a set of
        which it lacks a field.

    Raises
    ------
    FragilityError
        A field is not known, or nothing can be hidden.

    See Also
    --------
    Guard : Checks decisions as they are made.
    """
    check_draws(draws)
    if hide not in get_args(HiddenRows):
        raise DataError(f"hide must be one of {', '.join(get_args(HiddenRows))}, got {hide!r}")
    if hide in ("top", "bottom") and (together != 1 or sets is not None):
        raise DataError(f"the {hide} values of one field at a time are hidden; leave out sets and together")
    decider = Decider(Auditor(model, protocol, engine=engine), draws, None)
    decider.neighbours = make_neighbours(decider.read, training, conditional, protocol)
    full = decider.auditor.bind(X, ids)
    frame = full.source.frame
    if frame is None:
        raise DataError("fields can be hidden in a table or a dense array, got a sparse matrix")
    p_full = full.own_probabilities(0, full.dense())
    known = {field.name: frame[field.name].notna().to_numpy(dtype=bool) for field in protocol.fields}
    skipped: dict[str, str] = {}
    if sets is None:
        reasons = {name: decider.explain_unable(name, full) for name in known}
        if hide in ("top", "bottom"):
            unordered = [field.name for field in protocol.fields if not is_ordered(field)]
            reasons |= dict.fromkeys(unordered, "its values have no order")
        skipped = {name: reason for name, reason in reasons.items() if reason is not None}
        chosen = choose_sets([name for name in known if name not in skipped], together, most_sets)
    else:
        chosen = read_sets(sets, list(known))
    parts: list[HiddenSet] = []
    plain = Decider(decider.auditor, draws, None) if conditional else None
    listed = []  # the same with values of the catalogue, to compare the two
    with progress_bar("deciding without fields", progress) as report:
        for done, names in enumerate(chosen):
            places = np.flatnonzero(np.logical_and.reduce([known[name] for name in names]))
            places = choose_hidden(frame, names, places, hide)
            if len(places):
                native = rows_at(full.source.native, places)
                without = decider.decide(native, [names] * len(places), None, range(len(places)))
                # It has changed if the full row puts another class above the one decided without the fields.
                changed = protocol.rule(full.offset).flips(p_full[places], without.predicted)
                chance = np.array([0.0 if c is None else c.probability for c in without.changes])
                exact = np.array([c is None or c.exact for c in without.changes])
                parts.append(HiddenSet(names, places, chance, exact, without.confidence, changed))
                if plain is not None and all(plain.explain_unable(name, full) is None for name in names):
                    other = plain.decide(native, [names] * len(places), None, range(len(places))).changes
                    listed.append(parts[-1]._replace(p_change=np.array([c.probability if c else 0.0 for c in other])))
            else:
                skipped[" + ".join(names)] = "no row holds all of them"
            if report is not None:
                report(done + 1, len(chosen))
    if not parts and hide in ("top", "bottom"):
        raise DataError(f"there is nothing to hide: only numbers and dates have {hide} values, and no row holds one")
    if not parts:
        raise DataError("there is nothing to hide: no row holds a field of which the protocol lists values")
    return collect_sets(parts, full.ids, skipped, conditional, hide, listed if len(listed) == len(parts) else [])


def choose_hidden(frame: pd.DataFrame, names: tuple[str, ...], places: Integers, hide: HiddenRows) -> Integers:
    """Return the rows, among those that hold these fields, that lose them."""
    count = math.ceil(SHARE * len(places))
    if hide == "all":
        return places
    if hide == "random":
        seed = int.from_bytes(blake2b("\x1f".join(names).encode(), digest_size=8).digest(), "big")
        return np.sort(np.random.default_rng(seed).permutation(places)[:count])
    order = frame[names[0]].iloc[places].reset_index(drop=True).sort_values(kind="stable").index.to_numpy()
    return np.sort(places[order[len(order) - count :] if hide == "top" else order[:count]])


def choose_sets(fields: Sequence[str], together: int, most: int) -> list[tuple[str, ...]]:
    """Return each field, then sets of two, of three, ... fields, at most ``most`` of each size, chosen by a hash."""
    if not is_count(together) or together > MOST_TOGETHER:
        raise DataError(f"together must be a whole number from 1 to {MOST_TOGETHER}, got {together!r}")
    if not is_count(most):
        raise DataError(f"most_sets must be a whole number of at least 1, got {most!r}")
    chosen: list[tuple[str, ...]] = [(name,) for name in fields]
    for size in range(2, together + 1):
        every = combinations(fields, size)
        if len(fields) < size:
            break
        ranked = sorted(every, key=lambda names: blake2b("\x1f".join(names).encode(), digest_size=16).digest())
        place = {name: i for i, name in enumerate(fields)}
        chosen += sorted(ranked[:most], key=lambda names: [place[name] for name in names])
    return chosen


def read_sets(given: Sequence[Collection[str]] | Outages, fields: Sequence[str]) -> list[tuple[str, ...]]:
    """Return declared sets of fields, each in the order of the table; refuse a field that is not known."""
    declared = given.patterns if isinstance(given, Outages) else given
    sets = []
    for declared_set in declared:
        names = {declared_set} if isinstance(declared_set, str) else set(declared_set)
        if unknown := sorted(str(name) for name in names if name not in fields):
            raise DataError(
                f"a set of fields names {unknown[0]!r}, which the model does not know; the fields are "
                f"{', '.join(fields)}"
            )
        if not names:
            raise DataError("a set of fields to hide must name at least one field, got an empty one")
        sets.append(tuple(name for name in fields if name in names))
    if not sets:
        raise DataError("at least one set of fields to hide is needed, got none")
    return list(dict.fromkeys(sets))


class HiddenSet(NamedTuple):
    """The decisions made without one set of fields, m rows."""

    names: tuple[str, ...]
    places: Integers  # (m,) rows
    p_change: Floats
    exact: Booleans
    confidence: Floats
    changed: Booleans


def collect_sets(
    parts: Sequence[HiddenSet],
    ids: Sequence[Hashable],
    skipped: dict[str, str],
    conditional: bool,
    hide: HiddenRows = "all",
    catalogue: Sequence[HiddenSet] = (),
) -> MissingEvaluation:
    """Return the evaluation of all sets; catalogue: the same sets with values of the catalogue, if both were tried."""

    def summarise(label: str, some: Sequence[HiddenSet]) -> WithoutLine:
        places, *columns = (np.concatenate([getattr(part, name) for part in some]) for name in ("places", *MEASURED))
        sets = np.repeat(np.arange(len(some)), [len(part.places) for part in some])
        return summarise_pairs(label, len(some[0].names), places, columns[0], columns[1], columns[2], sets)

    def sum_up(some: Sequence[HiddenSet]) -> tuple[WithoutLine, ...]:
        sizes = sorted({len(part.names) for part in some})
        return tuple(
            summarise("each field" if size == 1 else f"{size} fields", [p for p in some if len(p.names) == size])
            for size in sizes
        )

    p_change, changed = (np.concatenate([getattr(part, name) for part in parts]) for name in ("p_change", "changed"))
    places = np.concatenate([part.places for part in parts])
    return MissingEvaluation(
        id=np.fromiter((ids[i] for i in places), dtype=object, count=len(places)),
        hidden=np.concatenate([np.full(len(part.places), " + ".join(part.names), dtype=object) for part in parts]),
        p_change=p_change,
        exact=np.concatenate([part.exact for part in parts]),
        confidence=np.concatenate([part.confidence for part in parts]),
        changed=changed,
        rows=len(ids),
        by_size=sum_up(parts),
        lines=tuple(summarise(" + ".join(part.names), [part]) for part in parts),
        curve=calibrate_pairs(p_change, changed),
        skipped=skipped,
        conditional=conditional,
        hide=hide,
        catalogue=sum_up(catalogue),
    )
