"""find_safe_sets: the evidence that a decision does not need, whatever it says. (SPEC 19)

S is safe for x if NO values of its fields flip the decision
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from typing import Any, TypeAlias

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Integers
from fragility.base.errors import ProtocolError
from fragility.base.progress import Report, progress_bar
from fragility.evidence import EvidenceRows
from fragility.evidence.rows import list_names
from fragility.protocol import Protocol, bind
from fragility.questions.any_value.deciding import (
    DEFAULT_ASKED,
    DEFAULT_BUDGET,
    AnyValues,
    Witness,
)
from fragility.questions.any_value.found import SAFE, UNKNOWN, UNSAFE, SafeSets
from fragility.questions.any_value.native import FLIPS, HOLDS, Job

Sets: TypeAlias = Mapping[str, Sequence[str]] | Sequence[Sequence[str]]


def find_safe_sets(
    model: Any,
    X: Any,
    protocol: Protocol,
    sets: Sets | None = None,
    *,
    largest: bool = True,
    budget: int = DEFAULT_BUDGET,
    asked: int = DEFAULT_ASKED,
    ids: Any = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = None,
) -> SafeSets:
    """Find what each decision does not need: sets of fields no values of which flip it, all of them free at once.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    X : table of shape (n, d)
        The raw rows.
    protocol : Protocol
        Its groups, the decision, and the domain of each field; fields without a domain, and immutable ones, keep their
        own values.
    sets : dict of str to sequence of str, or sequence of sequences of str, optional
        Names of sets and their fields or groups, such as all that comes from one feed. By default each group.
    largest : bool, default=True
        Also collect a large safe set for each row, group by group, those first that flip the fewest rows alone.
    budget : int, default=200000
        How many boxes of trees are looked at for one set before it is left undecided.
    asked : int, default=2000
        How many combinations of values the model is asked about for one row and set that are not read.
    ids : sequence, optional
        One distinct id per row, as in :func:`audit`.
    engine : str, default="auto"
        ``auto`` reads the model where a native engine knows it exactly; ``blackbox`` asks it for everything.
    byte_budget : int, default=256 MiB
        Bound on the changed rows held in memory at a time; it changes nothing in the result.
    progress : bool or callable, optional
        A bar on the terminal (the default if there is one), or a function (sets done, sets in all).

    Returns
    -------
    SafeSets
        By row and set: whether the decision holds whatever its fields say, and a large safe set of each row.

    Raises
    ------
    ProtocolError
        A set names no field or group of the protocol.

    See Also
    --------
    find_any_value_budgets : How many groups must change before a decision flips.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X, y)
    >>> person = {"about the person": ["age", "installment_commitment"]}
    >>> found = fg.find_safe_sets(model, X[:3], fg.Protocol.fit(model, X), person, progress=False)
    >>> found.safe[:, 0].tolist(), found.largest[0]
    ([1, 0, 1], ('age', 'installment_commitment'))
    """
    rows = bind(model, X, protocol, ids=ids)
    with progress_bar("safe sets", progress) as report:
        return safe_sets_of_rows(rows, protocol, sets, largest, budget, asked, engine, byte_budget, report)


def safe_sets_of_rows(
    rows: EvidenceRows,
    protocol: Protocol,
    sets: Sets | None = None,
    largest: bool = True,
    budget: int = DEFAULT_BUDGET,
    asked: int = DEFAULT_ASKED,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    report: Report | None = None,
) -> SafeSets:
    """Return the safe sets of rows as they were bound."""
    values = AnyValues(rows, protocol, engine, byte_budget)
    named = values.units if sets is None else read_sets(sets, values)
    work = _SafeSets(values, budget, asked)
    steps = len(named) + (len(values.units) if largest else 0)
    safe, witnesses = np.full((len(rows), len(named)), UNKNOWN), list[tuple[Witness | None, ...]]()
    for s, fields in enumerate(named.values()):
        safe[:, s], found = work.decide(np.arange(len(rows)), [fields] * len(rows))
        witnesses.append(tuple(found))
        if report is not None:
            report(s + 1, steps)
    collected = (
        work.collect(lambda done: None if report is None else report(len(named) + done, steps)) if largest else None
    )
    return SafeSets(
        id=np.fromiter(rows.ids, dtype=object, count=len(rows)),
        sets=tuple((name, tuple(fields)) for name, fields in named.items()),
        safe=safe,
        witnesses=tuple(zip(*witnesses, strict=True)) if witnesses else ((),) * len(rows),
        largest=collected,
        kept=tuple(field.name for field in protocol.fields if field.name not in values.free),
    )


def read_sets(sets: Sets, values: AnyValues) -> dict[str, tuple[str, ...]]:
    """Return the free fields of each set by its name; ProtocolError if one names nothing that is known."""
    groups, known = values.protocol.evidence.group_fields, [field.name for field in values.protocol.fields]
    named = sets if isinstance(sets, Mapping) else {" and ".join(own): own for own in map(list, sets)}
    found = {}
    for name, members in named.items():
        listed = [members] if isinstance(members, str) else list(members)
        if not listed:
            raise ProtocolError(f"the set {name!r} must name fields or groups, it is empty")
        if unknown := [one for one in listed if one not in known and one not in groups]:
            raise ProtocolError(
                f"the set {name!r} must name fields or groups, got {unknown[0]!r}; they are {list_names(known)}"
            )
        fields = dict.fromkeys(chain.from_iterable((one,) if one in known else groups[one] for one in listed))
        found[str(name)] = tuple(field for field in fields if field in values.free)
    return found


class _SafeSets:
    """Decides sets of fields row by row."""

    def __init__(self, values: AnyValues, budget: int, asked: int) -> None:
        self.values, self.budget, self.asked = values, budget, asked

    def decide(self, rows: Integers, sets: Sequence[Sequence[str]]) -> tuple[Integers, list[Witness | None]]:
        """Return (1 safe, 0 not, -1 not decided) for each row and its set, and what flips it."""
        values = self.values
        safe, witnesses = np.full(len(rows), UNKNOWN), list[Witness | None]([None] * len(rows))
        safe[[not fields for fields in sets]] = SAFE  # all of its fields keep their own values
        read = [
            i
            for i, (row, fields) in enumerate(zip(rows, sets, strict=True))
            if fields and not values.left[row] and values.is_known(fields)
        ]
        jobs = [(i, job) for i in read for job in self._list_jobs(int(rows[i]), sets[i])]
        states: dict[int, list[int]] = {i: [] for i in read}
        for (i, _), (state, witness) in zip(jobs, values.decide([job for _, job in jobs], self.budget), strict=True):
            states[i].append(state)
            witnesses[i] = witnesses[i] or witness
        for i, own in states.items():
            safe[i] = UNSAFE if FLIPS in own else SAFE if all(state == HOLDS for state in own) else UNKNOWN
        for i in map(int, np.flatnonzero(safe == UNKNOWN)):
            (witnesses[i],), _ = values.ask_set([int(rows[i])], sets[i], self.asked)
            safe[i] = UNKNOWN if witnesses[i] is None else UNSAFE
        return safe, witnesses

    def _list_jobs(self, row: int, fields: Sequence[str]) -> list[Job]:
        """Return the set, and where a field's own value is in no piece that is read, the sets without it as well."""
        odd = [name for name in fields if self.values.lacks_own(row, name)]
        return [
            (row, [name for name in fields if name not in gone])
            for size in range(len(odd) + 1)
            for gone in combinations(odd, size)
        ]

    def collect(self, note: Any) -> tuple[tuple[str, ...], ...]:
        """Return a large safe set of each row: groups are added while it stays safe."""
        units, n = self.values.units, len(self.values.search.rows)
        every = np.arange(n)
        alone = {}
        for name, fields in units.items():
            alone[name], _ = self.decide(every, [fields] * n)
        order = sorted(units, key=lambda name: int((alone[name] != SAFE).sum()))
        chosen: list[list[str]] = [[] for _ in range(n)]
        for done, name in enumerate(order):
            rows = np.flatnonzero(alone[name] == SAFE)
            free = [[field for own in (*chosen[row], name) for field in units[own]] for row in rows]
            safe, _ = self.decide(rows, free)
            for row in rows[safe == SAFE]:
                chosen[row].append(name)
            note(done + 1)
        place = {name: i for i, name in enumerate(units)}
        return tuple(tuple(sorted(own, key=place.__getitem__)) for own in chosen)
