"""find_any_value_budgets: how many units of evidence must change, to some values, before a decision flips. (SPEC 19)

    k_any(x) = the smallest number of units of which SOME values flip the decision

No baseline stands in for anything here, so no choice of one can dispute the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Floats, Integers
from fragility.base.errors import ProtocolError
from fragility.base.progress import Report, progress_bar
from fragility.evidence import EvidenceRows
from fragility.protocol import Protocol, bind
from fragility.questions.any_value.deciding import (
    DEFAULT_ASKED,
    DEFAULT_BUDGET,
    AnyValues,
    Witness,
)
from fragility.questions.any_value.found import (
    ASKED,
    CAN,
    CANNOT,
    NOT_COUNTED,
    READ,
    UNKNOWN,
    AnyValueBudgets,
)
from fragility.questions.any_value.native import FLIPS, HOLDS, OPEN, SizeAnswers

MOST_UNITS = 3  # of a set that is searched for


def find_any_value_budgets(
    model: Any,
    X: Any,
    protocol: Protocol,
    *,
    max_size: int = 2,
    chances: bool = True,
    budget: int = DEFAULT_BUDGET,
    asked: int = DEFAULT_ASKED,
    ids: Any = None,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: bool | Report | None = None,
) -> AnyValueBudgets:
    """Find how many groups of evidence must change, to any values of their domains, before each decision flips.

    No baseline is read, so no choice of one can dispute the finding. Tree ensembles and linear models are read, as are
    wrappers around one of them for two classes: every set of groups up to ``max_size`` is decided. Other models are
    asked about values of the catalogue, and then nothing larger than "at least 1" is proved. Every witness has been
    confirmed by the model itself, on the raw row through the whole pipeline.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    X : table of shape (n, d)
        The raw rows.
    protocol : Protocol
        Its groups, the decision, and the domain of each field; fields without a domain, and immutable ones, are not
        varied. The chances are by the weights of its value catalogue.
    max_size : int, default=2
        The largest set of groups that is searched: 1, 2 or 3.
    chances : bool, default=True
        Also weigh the values that flip by the catalogue: of one field, and of two drawn at random.
    budget : int, default=200000
        How many boxes of trees are looked at for one set of more than two fields before it is left open.
    asked : int, default=2000
        How many changed rows the model is asked about for each row that is not read.
    ids : sequence, optional
        One distinct id per row, as in :func:`audit`.
    engine : str, default="auto"
        ``auto`` reads the model where a native engine knows it exactly; ``blackbox`` asks it for everything.
    byte_budget : int, default=256 MiB
        Bound on the changed rows held in memory at a time; it changes nothing in the result.
    progress : bool or callable, optional
        A bar on the terminal (the default if there is one), or a function (rows done, rows in all).

    Returns
    -------
    AnyValueBudgets
        By row: the budget, how far it is proved, a witness, and which group alone can flip the decision.

    Raises
    ------
    ProtocolError
        ``max_size`` is out of range, or the protocol declares no values.
    FragilityError
        The rows are a sparse matrix.

    See Also
    --------
    find_safe_sets : What the decision does not need, whatever it says.
    find_failing_sets : The smallest set of groups whose loss flips each prediction.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X, y)
    >>> found = fg.find_any_value_budgets(model, X[:3], fg.Protocol.fit(model, X), progress=False)
    >>> found.budget.tolist(), found.witness(1).to_text()
    ([1, 1, 1], 'duration = 4: good')
    """
    if isinstance(max_size, bool) or max_size not in range(1, MOST_UNITS + 1):
        raise ProtocolError(f"max_size must be 1, 2 or 3, got {max_size!r}")
    rows = bind(model, X, protocol, ids=ids)
    with progress_bar("whatever the value", progress) as report:
        return budgets_of_rows(rows, protocol, max_size, chances, budget, asked, engine, byte_budget, report)


def budgets_of_rows(
    rows: EvidenceRows,
    protocol: Protocol,
    max_size: int = 2,
    chances: bool = True,
    budget: int = DEFAULT_BUDGET,
    asked: int = DEFAULT_ASKED,
    engine: str = "auto",
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    report: Report | None = None,
    narrow: Mapping[str, str] | None = None,
    *,
    by_sets: bool = False,
) -> AnyValueBudgets:
    """Return the budgets of rows as they were bound. A row's budget depends on no other row.

    narrow, by_sets: as for ``AnyValues``.
    """
    work = _Budgets(AnyValues(rows, protocol, engine, byte_budget, narrow, by_sets=by_sets), max_size)
    work.read_rows(budget, report)
    work.ask_rows(asked, report)
    if chances:
        work.weigh_rows()
    return work.finish()


class _Budgets:
    """The arrays of the result, to be filled."""

    def __init__(self, values: AnyValues, max_size: int) -> None:
        n, self.values, self.max_size = len(values.search.rows), values, max_size
        self.units = values.units
        self.names = list(self.units)
        self.size: Integers = np.full(n, max_size + 1)
        self.proved: Integers = np.zeros(n, dtype=np.int64)
        self.count: Integers = np.zeros(n, dtype=np.int64)
        self.alone: Integers = np.full((n, len(self.names)), UNKNOWN)
        self.witness: list[Witness | None] = [None] * n
        self.chance_one: Floats = np.full(n, np.nan)
        self.chance_two: Floats = np.full(n, np.nan)
        self.read = np.zeros(n, dtype=bool)

    # --- read -----------------------------------------------------------------------------------------------

    def read_rows(self, budget: int, report: Report | None) -> None:
        """Decide all sets of the rows that are read, size by size."""
        values, done = self.values, 0
        if values.native is None:
            return
        known = [name for name in self.names if values.is_known(self.units[name])]
        chosen = [list(self.units[name]) for name in known]
        wide = [name for unit in chosen if len(unit) > 1 for name in unit]
        if not chosen:
            return
        for row in np.flatnonzero(~values.left):
            if any(values.lacks_own(int(row), name) for name in wide):
                values.left[row] = True  # sets of parts of a group are none that are searched
        for rows in values.group_rows(np.flatnonzero(~values.left)):
            self.read[rows] = True
            going = rows
            for size in range(1, min(self.max_size, len(chosen)) + 1):
                going = self._read_size(going, known, chosen, size, budget)
                if not len(going):
                    break
            # no set is larger than all of them
            whole = going[(self.proved[going] >= len(chosen)) & (len(known) == len(self.names))]
            self.proved[whole] = self.max_size
            done += len(rows)
            if report is not None:
                report(done, len(self.size))
        self.read &= ~values.left

    def _read_size(self, who: Integers, known: list[str], chosen: list[list[str]], size: int, budget: int) -> Integers:
        """Decide all sets of one size; return the rows of which none is known to flip."""
        assert self.values.native is not None
        found = self.values.native.search_size(who, chosen, size, budget)
        flips, open_sets = found.counts[:, FLIPS].copy(), found.counts[:, OPEN].copy()
        jobs, owner, sets = [], [], []
        for i, row in enumerate(who):
            for own in ([found.first[i]] if found.first[i] is not None else []) + found.doubtful[i]:
                assert own is not None
                jobs.append((int(row), [name for u in own for name in chosen[u]]))
                owner.append(i)
                sets.append(own)
        settled = self.values.decide(jobs, budget)
        for i, own, (state, witness), job in zip(owner, sets, settled, jobs, strict=True):
            first = own == found.first[i]
            if witness is not None and (first or self.witness[job[0]] is None):
                self.witness[job[0]] = witness
            if not first:
                flips[i] += state == FLIPS
                open_sets[i] += state == OPEN
            if size == 1 and not first:
                found.by_unit[i, own[0]] = state  # type: ignore[index]
        self._enter(who, known, size, flips, open_sets, found)
        return np.asarray(who[(flips == 0) & ~self.values.left[who]])

    def _enter(
        self, who: Integers, known: list[str], size: int, flips: Integers, open_sets: Integers, found: SizeAnswers
    ) -> None:
        if size == 1 and found.by_unit is not None:
            places = np.array([self.names.index(name) for name in known])
            states = np.select([found.by_unit == FLIPS, found.by_unit == HOLDS], [CAN, CANNOT], UNKNOWN)
            self.alone[np.ix_(who, places)] = states
        complete = (open_sets == 0) & (len(known) == len(self.names))
        hit = flips > 0
        self.size[who[hit]] = size
        self.count[who[hit]] = np.where(complete[hit], flips[hit], NOT_COUNTED)
        before = self.proved[who] == size - 1  # the smaller sets were all decided
        self.proved[who[~hit & complete & before]] = size

    # --- asked ----------------------------------------------------------------------------------------------

    def ask_rows(self, asked: int, report: Report | None) -> None:
        """Ask the model about rows that are not read, and about sets with fields that are not."""
        values = self.values
        for row in np.flatnonzero(values.left):  # what was read of them does not stand
            self.size[row], self.proved[row], self.count[row] = self.max_size + 1, 0, 0
            self.alone[row], self.witness[row] = UNKNOWN, None
        unread = np.flatnonzero(~self.read)
        partly = [name for name in self.names if not values.is_known(self.units[name])]
        self._ask(unread, self.names, asked)
        if partly:
            self._ask(np.flatnonzero(self.read), partly, asked)
        if report is not None and len(unread):
            report(len(self.size), len(self.size))

    def _ask(self, rows: Integers, names: list[str], budget: int) -> None:
        """Try values of one unit, then of two; what flips is a witness, what does not proves nothing.

        A set is asked of all rows that are still open at once: a call of a pipeline costs as much as hundreds of rows.
        """
        left = budget  # of each row; the values of a set are as many for every row
        for size in range(1, min(self.max_size, 2) + 1):
            still = rows[self.size[rows] > size]
            sets = [own for own in combinations(self.names, size) if any(name in names for name in own)]
            share = left if size == 1 else max(1, left // max(1, len(sets)))
            for own in sets:
                if left < 1 or not len(still):
                    break
                fields = [name for unit in own for name in self.units[unit]]
                witnesses, spent = self.values.ask_set(still, fields, min(left, share))
                left -= spent
                flipped = np.array([witness is not None for witness in witnesses])
                if size == 1:
                    self.alone[still, self.names.index(own[0])] = np.where(flipped, CAN, UNKNOWN)
                for row, witness in zip(still, witnesses, strict=True):
                    if witness is not None and self.size[row] > size:
                        self.size[row], self.witness[row], self.count[row] = size, witness, NOT_COUNTED
                still = still if size == 1 else still[~flipped]
        self.count[rows[self.size[rows] == 1]] = NOT_COUNTED

    # --- chances --------------------------------------------------------------------------------------------

    def weigh_rows(self) -> None:
        """Weigh the values that flip the rows that are read, if every free field has a catalogue and is read."""
        values, native = self.values, self.values.native
        if native is None or any(not values.is_known([name]) for name in values.free):
            return
        weighed = [i for i, own in enumerate(native.values.values()) if own.weights]
        pairs = len(weighed) * (len(weighed) - 1) / 2
        for rows in values.group_rows(np.flatnonzero(self.read)):
            alone, together = native.weigh(rows)
            if weighed:
                self.chance_one[rows] = alone[:, weighed].sum(axis=1) / len(weighed)
            if pairs:
                self.chance_two[rows] = together / pairs

    def finish(self) -> AnyValueBudgets:
        """Return the answers as they stand."""
        search = self.values.search
        classes = search.rows.model.classes
        return AnyValueBudgets(
            id=np.fromiter(search.rows.ids, dtype=object, count=len(self.size)),
            predicted=tuple(classes[c] for c in search.original),
            max_size=self.max_size,
            budget=self.size,
            proved=self.proved,
            count=self.count,
            witnesses=tuple(self.witness),
            alone=self.alone,
            chance_one=self.chance_one,
            chance_two=self.chance_two,
            method=tuple(READ if own else ASKED for own in self.read),
            units=tuple((name, tuple(fields)) for name, fields in self.units.items()),
            kept=tuple(field.name for field in self.values.protocol.fields if field.name not in self.values.free),
        )
